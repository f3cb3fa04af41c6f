"""What a night reports while it runs. `Reporter` writes to the terminal; surf2vec/flows/report.py has the one for Prefect.

A step reports through one callback (`surf2vec.trainer.events`), which its reporter provides.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.events import OnEvent

if TYPE_CHECKING:  # `surf2vec -h` does not wait for them
    from surf2vec.tasks.config import PublishConfig
    from surf2vec.tasks.root.run import Run

LINE_SECONDS = 15.0
GATE_HELD = "surf2vec.gate.held"
CHAMPION_OLD = "surf2vec.champion.old"
PUSH_FAILED = "surf2vec.push.failed"

console = Console(stderr=True, emoji=False)


class Reporter:
    """Reports to the terminal: a bar and lines for each step. Tables, names and alarms are for a Prefect server."""

    @contextmanager
    def step(self, name: str) -> Iterator[OnEvent]:
        """Yield the callback for a step: `log` becomes a line, `private` a line that no server gets, `progress` moves the bar."""
        from rich import progress as bars

        tasks, rate, last_line = dict[str, bars.TaskID](), "", time.monotonic()
        bar = bars.Progress(
            "{task.description:>16}", bars.BarColumn(), bars.MofNCompleteColumn(), "{task.fields[unit]}",
            bars.TimeElapsedColumn(), "left", bars.TimeRemainingColumn(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip

        def on_event(event: str, values: dict[str, Any]) -> None:
            nonlocal rate, last_line
            if event in ("log", "private"):
                print_line(name, values["message"])
            elif event == "progress":
                part, done, total, unit = (values[name] for name in ("step", "done", "total", "unit"))
                if part not in tasks:
                    tasks[part] = bar.add_task(part, total=total, unit=unit)
                bar.update(tasks[part], completed=done, total=total, unit=unit + rate)
                now = time.monotonic()
                if not console.is_terminal and now - last_line >= LINE_SECONDS:
                    last_line = now
                    print_line(name, f"{done:,} of {total:,} {unit}{rate} ({int(percent(done, total))} %)")
            elif event == "train":
                loss = "" if values["loss"] is None else f", loss {values['loss']:.3f}"
                rate = f", {values['tokens_per_second']:,.0f} tokens/s{loss}"

        with bar:
            yield on_event

    def add_table(self, publish: "PublishConfig", name: str, rows: Sequence[dict[str, Any]], description: str) -> None:
        """Publish a table of texts."""

    def add_night(self, publish: "PublishConfig", run: "Run") -> None:
        """Publish what happened, with links to the report and to MLflow."""

    def name_night(self, run: "Run") -> None:
        """Name the night, once its window is known."""

    def raise_alarm(self, event: str, release: str, **facts: str) -> None:
        """Raise an alarm about a release. Without a server there is none: see the command's exit code."""


TERMINAL = Reporter()


def percent(done: int, total: int) -> float:
    return 100.0 * done / total if total else 100.0


def print_line(step: str, message: str) -> None:
    """Print a line about a step on the terminal; control characters and markup in it are escaped."""
    console.print(f"[dim]{step:>16}[/dim]  {escape(shown(message))}", highlight=False, soft_wrap=True)


def print_event(name: str, values: dict[str, Any]) -> None:
    """Print log lines on standard error: the callback of commands that are not flows."""
    if name in ("log", "private"):
        console.print(shown(values["message"]), markup=False, highlight=False, soft_wrap=True)
