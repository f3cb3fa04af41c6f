"""What a person finds in Prefect after a night: the name of its run, the artifact `night`, and the tables of its steps.

Keys begin with the name of the model, so that two models on one server keep their artifacts apart. Where no flow runs nothing
is left.
"""

import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from surf2vec.flows.step import is_flow_run
from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.report.cards import describe_time, list_night, name_night
from surf2vec.tasks.root.records import RegisterStep
from surf2vec.tasks.root.run import Run
from surf2vec.tasks.root.wording import as_markdown


def key_of(publish: PublishConfig, name: str) -> str:
    """Returns the key of an artifact: lower-case letters, digits and dashes, as Prefect demands."""
    return re.sub(r"[^a-z0-9]+", "-", f"{publish.model_name}-{name}".lower()).strip("-")


def leave_table(publish: PublishConfig, name: str, rows: Sequence[dict[str, Any]], description: str) -> None:
    """Leave a table of texts."""
    if is_flow_run():
        from prefect.artifacts import create_table_artifact

        create_table_artifact(key=key_of(publish, name), table=list(rows), description=description)


def leave_night(publish: PublishConfig, run: Run) -> None:
    """Leave the artifact that says what happened, with links to the report and to MLflow."""
    if is_flow_run():
        from prefect.artifacts import create_markdown_artifact

        create_markdown_artifact(key=key_of(publish, "night"), markdown=describe_night(run))


def describe_night(run: Run) -> str:
    """Returns what happened in a run, as Markdown: its lines, and where the rest is."""
    record = run.record()
    registered = record.require(RegisterStep)
    page, report = registered.mlflow_page, str((run.folder / "report.html").resolve())
    place, _, view = (page or "").partition("?")
    links = [f"[The run in MLflow]({page})", f"[The report]({place}/artifacts/report.html?{view})"] if page else []
    links += [f"The report as a file: {as_markdown(report)}", f"MLflow: {as_markdown(registered.tracking_uri)}"]
    lines = [f"* {line}" for line in [*list_night(record), describe_time(record), *links]]
    return f"# {as_markdown(name_night(record))}\n\n" + "\n".join(lines)


def name_flow_run(run: Run) -> None:
    """Give the flow run the name of its night. A night of a backfill is a flow run of its own."""
    if is_flow_run():
        from prefect import get_client
        from prefect.runtime import flow_run

        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(flow_run.get_id()), name=name_night(run.record()))
