"""The progress of a flow: a bar on the terminal, a progress artifact and log lines in Prefect, and alarms.

A step reports through one callback (`surf2vec.trainer.events`). This module provides the callback of the flows.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich import progress as rich_progress

from surf2vec.flows.step import console, is_flow_run, print_line
from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.events import OnEvent

ARTIFACT_SECONDS = 2.0
LINE_SECONDS = 15.0
GATE_HELD = "surf2vec.gate.held"
CHAMPION_OLD = "surf2vec.champion.old"
PUSH_FAILED = "surf2vec.push.failed"


@contextmanager
def report_step(step: str) -> Iterator[OnEvent]:
    """Yield the callback for one step: `log` becomes a line, `progress` moves the bar and the artifact."""
    logger, tasks, rate = find_logger(), dict[str, rich_progress.TaskID](), ""
    artifact: Any = None
    last_artifact = last_line = time.monotonic()
    bar = rich_progress.Progress(
        "{task.description:>16}", rich_progress.BarColumn(), rich_progress.MofNCompleteColumn(), "{task.fields[unit]}",
        rich_progress.TimeElapsedColumn(), "left", rich_progress.TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip

    def on_event(name: str, values: dict[str, Any]) -> None:
        nonlocal rate
        if name == "log":
            if logger:
                logger.info(shown(values["message"]))
            print_line(step, values["message"])
        elif name == "progress":
            show_progress(values["step"], values["done"], values["total"], values["unit"])
        elif name == "train":
            rate = f", {values['tokens_per_second']:,.0f} tokens/s, loss {values['loss']:.3f}"

    def show_progress(part: str, done: int, total: int, unit: str) -> None:
        nonlocal artifact, last_artifact, last_line
        if part not in tasks:
            tasks[part] = bar.add_task(part, total=total, unit=unit)
        bar.update(tasks[part], completed=done, total=total, unit=unit + rate)
        now, percent = time.monotonic(), 100.0 * done / total if total else 100.0
        if logger and now - last_artifact >= ARTIFACT_SECONDS:
            last_artifact = now
            artifact = _show_percent(artifact, percent, step, part)
        if not console.is_terminal and now - last_line >= LINE_SECONDS:
            last_line = now
            print_line(step, f"{done:,} of {total:,} {unit}{rate} ({int(percent)} %)")

    with bar:
        yield on_event
    if artifact:
        _show_percent(artifact, 100.0, step, "")


def find_logger() -> Any:
    """Returns the logger of the flow run or task run, None where no flow runs."""
    if not is_flow_run():
        return None
    from prefect.logging import get_run_logger

    return get_run_logger()


def _show_percent(artifact: Any, percent: float, step: str, part: str) -> Any:
    """Make the progress artifact, or update it. Returns its id. A training goes on without Prefect's server."""
    import httpx
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    with suppress(httpx.HTTPError):
        if artifact is None:
            return create_progress_artifact(percent, key=f"{step}-progress", description=part)
        update_progress_artifact(artifact, progress=percent)
    return artifact


def raise_alarm(event: str, release: str, **facts: str) -> None:
    """Send an event about a release to the Prefect server; an automation of `infra/deploy.py` makes an alarm of it.

    Where no flow runs there is no such server, and no alarm: see the command's exit code.
    """
    if is_flow_run():
        from prefect.events import emit_event

        emit_event(event, {"prefect.resource.id": f"surf2vec.release.{release}"}, payload={"release": release} | facts)
