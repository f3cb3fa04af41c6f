"""Nights in this process without Prefect, whose server takes longer than a small night: for tests of what nights make."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prefect import Task

from flows import nightly as flow
from flows import steps
from trainer.events import OnEvent, ignore_event


@contextmanager
def without_prefect() -> Iterator[Any]:
    """Yield the flow `nightly` as a function whose steps are functions, too."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (flow, steps):
            for name, value in list(vars(module).items()):
                if isinstance(value, Task):
                    patch.setattr(module, name, value.fn)
            patch.setattr(module, "report_step", _report)
        for name in ("leave_table", "leave_night", "raise_alarm"):
            patch.setattr(steps, name, lambda *arguments, **named: None)
        yield flow.nightly.fn


@contextmanager
def _report(step: str) -> Iterator[OnEvent]:
    yield ignore_event
