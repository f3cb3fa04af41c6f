"""How long-running work reports to its caller: by one callback, which does nothing by default.

`on_event(name, values)` is called with
    "log"       {"message"}                                    a line for a person
    "progress"  {"step", "done", "total", "unit"}              how far a step is
    "train"     {"epoch", "position", "tokens", "total_tokens", "seconds", "tokens_per_second",
                 "loss", "heldout_loss", "alpha", ...}         a point of the training curve
The values are JSON. Tasks turn them into a progress bar, Prefect progress and MLflow metrics.
"""

from collections.abc import Callable
from typing import Any

OnEvent = Callable[[str, dict[str, Any]], None]


def ignore_event(name: str, values: dict[str, Any]) -> None:
    """The default: do nothing."""


def log(on_event: OnEvent, message: str) -> None:
    on_event("log", {"message": message})


def log_progress(on_event: OnEvent, step: str, done: int, total: int, unit: str = "micro-partitions") -> None:
    on_event("progress", {"step": step, "done": done, "total": total, "unit": unit})
