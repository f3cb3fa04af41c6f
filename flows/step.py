"""A step of a night: a task inside a Prefect flow, a plain call elsewhere. Prefect is imported only where a flow runs."""

import sys
import time
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from rich.console import Console
from rich.markup import escape

from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.errors import UnavailableError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
WAITS: list[float] = [10, 20, 40, 80, 160, 320]
"""Seconds before each retry of a step that needs a server: ten minutes in all. The training is kept."""

console = Console(stderr=True, emoji=False)


def is_flow_run() -> bool:
    """Returns whether the caller runs inside a Prefect flow."""
    context = sys.modules.get("prefect.context")
    return context is not None and context.FlowRunContext.get() is not None


def step(
    name: str, *, needs_server: bool = False
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Make a function a step. With `needs_server` it is retried after `WAITS` while it raises UnavailableError."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @cache
        def make_task() -> Any:
            from prefect import task

            retries = len(WAITS) if needs_server else 0
            return task(name=name, retries=retries, retry_delay_seconds=WAITS, retry_condition_fn=_is_away)(function)

        @wraps(function)
        def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
            if is_flow_run():
                return make_task()(*arguments, **named)
            for seconds in WAITS if needs_server else []:
                try:
                    return function(*arguments, **named)
                except UnavailableError as error:
                    _print_retry(name, error)
                    time.sleep(seconds)
            return function(*arguments, **named)

        return call

    return decorate


def _is_away(task: Any, task_run: Any, state: Any) -> bool:
    error = getattr(state, "data", None)
    if isinstance(error, UnavailableError):
        _print_retry(task.name, error)
    return isinstance(error, UnavailableError)


def _print_retry(name: str, error: UnavailableError) -> None:
    print_line(name, f"{error}; trying again, for {sum(WAITS) / 60:.0f} minutes in all")


def print_line(step: str, message: str) -> None:
    """Print a line about a step on the terminal; control characters and markup in it are escaped."""
    console.print(f"[dim]{step:>16}[/dim]  {escape(shown(message))}", highlight=False, soft_wrap=True)
