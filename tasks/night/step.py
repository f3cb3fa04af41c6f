"""How the steps of a night are called: here as plain functions; in a Prefect flow as tasks (surf2vec/flows/nightly.py)."""

import time
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

from surf2vec.tasks.night.reporter import print_line
from surf2vec.trainer.errors import UnavailableError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])
WAITS: list[float] = [10, 20, 40, 80, 160, 320]
"""Seconds before each retry of a step that needs a server: ten minutes in all. The training is kept."""


class Call(Protocol):
    def __call__(
        self, step: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result: ...


def needs_server(step: Function) -> Function:
    """Mark a step that is retried after `WAITS` while it raises UnavailableError."""
    step.needs_server = True  # type: ignore[attr-defined]
    return step


def call_plainly(step: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    for seconds in WAITS if hasattr(step, "needs_server") else []:
        try:
            return step(*args, **kwargs)
        except UnavailableError as error:
            print_retry(step.__name__.replace("_", "-"), error)
            time.sleep(seconds)
    return step(*args, **kwargs)


def print_retry(name: str, error: UnavailableError) -> None:
    print_line(name, f"{error}; trying again, for {sum(WAITS) / 60:.0f} minutes in all")
