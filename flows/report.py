"""What Prefect shows of a night: the name of its flow run, progress, the artifact `night`, the tables of its steps, and alarms.

Keys begin with the name of the model, so that two models on one server keep their artifacts apart.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any
from uuid import UUID

import httpx
from prefect import artifacts, get_client, runtime
from prefect.events import emit_event
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.night.reporter import Reporter, percent
from surf2vec.tasks.registry.releases import add_serving
from surf2vec.tasks.report.cards import list_held, list_night, name_night
from surf2vec.tasks.root.records import RegisterStep
from surf2vec.tasks.root.run import Run
from surf2vec.tasks.root.wording import as_markdown, shown
from surf2vec.trainer.events import OnEvent

ARTIFACT_SECONDS = 2.0


class PrefectReporter(Reporter):
    """Reports to the terminal and to the Prefect server of the flow run or task run."""

    @contextmanager
    def step(self, name: str) -> Iterator[OnEvent]:
        """Yield the callback for a step. It also writes to the run's log, and updates a progress artifact."""
        logger, run, artifact, last = get_run_logger(), copy_context(), None, time.monotonic()
        with super().step(name) as print_event:

            def on_event(event: str, values: dict[str, Any]) -> None:
                nonlocal artifact, last
                if event != "private" or not runtime.deployment.id:  # a worker's terminal is a log
                    print_event(event, values)
                if event == "log":
                    logger.info(shown(values["message"]))
                elif event == "progress" and time.monotonic() - last >= ARTIFACT_SECONDS:
                    last, done = time.monotonic(), percent(values["done"], values["total"])
                    # In the run's context: the thread that reports has none.
                    artifact = run.copy().run(_show_percent, artifact, done, name, values["step"])

            yield on_event
        if artifact:
            _show_percent(artifact, 100.0, name, "")

    def add_table(self, publish: PublishConfig, name: str, rows: Sequence[dict[str, Any]], description: str) -> None:
        artifacts.create_table_artifact(key=key_of(publish, name), table=list(rows), description=description)

    def add_night(self, publish: PublishConfig, run: Run) -> None:
        artifacts.create_markdown_artifact(key=key_of(publish, "night"), markdown=describe_night(run, publish))

    def name_night(self, run: Run) -> None:
        """Name the flow run. A night of a backfill is a flow run of its own."""
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(flow_run.get_id()), name=name_night(run.record()))

    def raise_alarm(self, event: str, release: str, **facts: str) -> None:
        """Send an event about a release; an automation of `infra/deploy.py` makes an alarm of it."""
        emit_event(event, {"prefect.resource.id": f"surf2vec.release.{release}"}, payload={"release": release} | facts)


def _show_percent(artifact: Any, done: float, step: str, part: str) -> Any:
    """Create or update the progress artifact. Returns its id. A training continues without Prefect's server."""
    with suppress(httpx.HTTPError):
        if artifact is None:
            return artifacts.create_progress_artifact(done, key=f"{step}-progress", description=part)
        artifacts.update_progress_artifact(artifact, progress=done)
    return artifact


def key_of(publish: PublishConfig, name: str) -> str:
    """Return the key of an artifact: lower-case letters, digits and dashes, as Prefect demands."""
    return re.sub(r"[^a-z0-9]+", "-", f"{publish.model_name}-{name}".lower()).strip("-")


def describe_night(run: Run, publish: PublishConfig) -> str:
    record = add_serving(run.root, publish, run.record())
    registered = record.require(RegisterStep)
    page, report = registered.mlflow_page, str((run.folder / "report.html").resolve())
    place, _, view = (page or "").partition("?")
    links = [f"[The run in MLflow]({page})", f"[The report]({place}/artifacts/report.html?{view})"] if page else []
    links += [f"The report as a file: {as_markdown(report)}", f"MLflow: {as_markdown(registered.tracking_uri)}"]
    lines = [*list_held(record), *list_night(record, "Items", "Time"), *(f"* {link}" for link in links)]
    return f"# {as_markdown(name_night(record))}\n\n" + "\n".join(lines)
