"""What a person sees while a step works: a bar on the terminal, a progress artifact and log lines in Prefect.

A step reports through one callback (`trainer.events`); this is the one that the flows hand in.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.logging import get_run_logger
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tasks.root.wording import shown
from trainer.events import OnEvent

ARTIFACT_SECONDS = 2.0
LINE_SECONDS = 15.0

console = Console(stderr=True, emoji=False)


@contextmanager
def report_step(step: str) -> Iterator[OnEvent]:
    """Yield the callback for one step: `log` becomes a line, `progress` moves the bar and the artifact."""
    view = _View(step)
    with view.bar:
        yield view.on_event
    view.finish()


class _View:
    """A step as shown on the terminal and in Prefect."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.logger = get_run_logger()
        self.bar = Progress(
            TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console, transient=True,
            disable=not console.is_terminal,
        )  # fmt: skip
        self.tasks: dict[str, TaskID] = {}
        self.rate = ""
        self.artifact: UUID | None = None
        self.last_artifact = self.last_line = time.monotonic()

    def on_event(self, name: str, values: dict[str, Any]) -> None:
        if name == "log":
            message = shown(values["message"])
            self.logger.info(message)
            console.print(
                f"[dim]{self.step:>16}[/dim]  {escape(message)}", highlight=False, markup=True, soft_wrap=True
            )
        elif name == "progress":
            self._progress(values["step"], values["done"], values["total"], values["unit"])
        elif name == "train":
            self.rate = f", {values['tokens_per_second']:,.0f} tokens/s, loss {values['loss']:.3f}"

    def finish(self) -> None:
        if self.artifact:
            update_progress_artifact(self.artifact, progress=100)

    def _progress(self, step: str, done: int, total: int, unit: str) -> None:
        if step not in self.tasks:
            self.tasks[step] = self.bar.add_task(step, total=total, unit=unit)
        self.bar.update(self.tasks[step], completed=done, total=total, unit=unit + self.rate)
        now = time.monotonic()
        percent = 100.0 * done / total if total else 100.0
        if now - self.last_artifact >= ARTIFACT_SECONDS:
            self.last_artifact = now
            if self.artifact is None:
                self.artifact = create_progress_artifact(percent, key=f"{self.step}-progress", description=step)  # type: ignore[assignment]
            else:
                update_progress_artifact(self.artifact, progress=percent)
        if not console.is_terminal and now - self.last_line >= LINE_SECONDS:
            self.last_line = now
            told = f"{self.step:>16}  {done:,} of {total:,} {unit}{self.rate} ({int(percent)} %)"
            console.print(told, highlight=False, soft_wrap=True)
