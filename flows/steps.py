"""The steps of a night as Prefect tasks: each calls one function of `tasks` and leaves an artifact a person can read.

Only paths, ids and small dictionaries go from step to step. A step that ended on the same inputs answers what it recorded.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.config import PipelineConfig
from flows.progress import console, report_step
from tasks import corpus as corpus_task
from tasks import evaluate as evaluate_task
from tasks import export as export_task
from tasks import ingest as ingest_task
from tasks import publish as publish_task
from tasks.devices import pick_device
from tasks.export_loss import measure_loss
from tasks.measured import list_caveats, list_measured
from tasks.report import write_report
from tasks.run import Root, Run
from trainer.corpus import open_corpus
from trainer.errors import UnavailableError
from trainer.files import digest_json
from trainer.infer import refit_held_out
from trainer.job import Job
from trainer.loop import train
from trainer.signals import stop_on_sigterm
from trainer.store import lock_store, open_generation, pin_generation, remove_unreferenced, unpin_generations
from trainer.units import parse_bytes

WAITS: list[float] = [10, 20, 40, 80, 160, 320]
"""Seconds before each new try at what needs a server: ten minutes in all, while what was trained stays."""


def is_away(task: Any, task_run: Any, state: Any) -> bool:
    """Whether a step failed because a server was away, so that it is tried again."""
    error = getattr(state, "data", None)
    if isinstance(error, UnavailableError):
        console.print(
            f"[dim]{task.name:>16}[/dim]  {error}; trying again, for {sum(WAITS) / 60:.0f} minutes in all",
            highlight=False,
        )
    return isinstance(error, UnavailableError)


@dataclass(frozen=True)
class Night:
    """What every step of a night knows: the root, the window asked for, and the configuration."""

    root: Root
    since: date | None
    until: date | None
    config: PipelineConfig

    @property
    def threads(self) -> int:
        return self.config.train.threads or os.cpu_count() or 1

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.config.resources.host_memory)

    def job(self, window_id: str) -> Job:
        device = pick_device(self.config.train, self.config.resources)
        return Job(
            self.root.corpus(window_id), self.root.store, self.config.train, self.memory_bytes, device.kernel,
            device.memory_bytes,
        )  # fmt: skip


@task(name="ingest")
def ingest_events(night: Night, logs: list[str]) -> dict[str, Any]:
    """Read the new sources among `logs` into events/; the story's "ingest"."""
    with report_step("ingest") as on_event:
        started = datetime.now(UTC)
        config = night.config
        result = ingest_task.ingest(
            night.root, logs, config.ingest, config.store.partitions, night.memory_bytes, night.threads, on_event
        )
        return result | {"seconds": round((datetime.now(UTC) - started).total_seconds(), 3)}


@task(name="open-run")
def open_run(night: Night, ingested: dict[str, Any], logs: list[str]) -> Run:
    """The run that these sources, this window and these settings make; its story begins, or goes on."""
    config = night.config
    window_id = corpus_task.window_id(
        night.root, config.ingest, config.evaluate, night.since, night.until, config.window_days
    )
    settings = config.outcome_settings()
    run = Run(night.root, digest_json({"window_id": window_id, "config": settings})[:12])
    story = run.story()
    if "created_at" not in story:
        run.record(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=f"surf2vec run {' '.join(f'--logs {log}' for log in logs)}".strip(),
            window_id=window_id,
            config=config.model_dump(mode="json"),
        )
        run.step("ingest", "", lambda: ingested)
    create_table_artifact(
        key="sources",
        table=_rows(ingested, ("lines", "events", "left_out", "rejected")),
        description="From lines to events",
    )
    return run


@task(name="corpus")
def build_corpus(night: Night, run: Run) -> dict[str, Any]:
    """Clean the window's events and write each user's tokens; the story's "corpus"."""
    with report_step("corpus") as on_event:
        config = night.config
        result = run.step(
            "corpus",
            run.story()["window_id"],
            lambda: corpus_task.build_corpus(
                night.root, config.ingest, config.evaluate, night.since, night.until, config.window_days,
                night.memory_bytes, night.threads, on_event,
            ),
        )  # fmt: skip
    funnel = [{"stage": stage, "number": f"{number:,}"} for stage, number in result["funnel"]]
    create_table_artifact(key="funnel", table=funnel, description="From events to tokens")
    return result


@task(name="train")
def train_vectors(night: Night, run: Run, corpus: dict[str, Any]) -> dict[str, Any]:
    """Train user and item vectors, or go on from the last commit; the story's "train"."""
    with report_step("train") as on_event, stop_on_sigterm() as stop:
        if reason := pick_device(night.config.train, night.config.resources).reason:
            on_event("log", {"message": reason})
        result = run.step("train", run.run_id, lambda: train(night.job(corpus["window_id"]), on_event, stop=stop))
    caveats = list_caveats(result, night.config.train.epochs)
    create_table_artifact(
        key="training", table=list_measured(result), description=" ".join(["Planned and measured.", *caveats])
    )
    return result


@task(name="evaluate")
def evaluate_vectors(night: Night, run: Run, corpus: dict[str, Any]) -> dict[str, Any]:
    """Rank the held-out items, then fit the held-out users again on all they did; the story's "evaluate"."""
    job = night.job(corpus["window_id"])

    def make() -> dict[str, Any]:
        with report_step("evaluate") as on_event:
            opened = open_corpus(job.corpus_dir)
            evaluation = evaluate_task.evaluate(opened, open_generation(job.store_dir), on_event, night.memory_bytes)
            refit_held_out(job, opened, {"evaluation": evaluation}, on_event)
            return evaluation

    result = run.step("evaluate", run.run_id, make)
    metrics = result["metrics"]
    names = [name for name in metrics if not name.startswith("popularity_")]
    quality = [
        {"metric": name, "vectors": f"{metrics[name]:.4f}", "popularity": f"{metrics['popularity_' + name]:.4f}"}
        for name in names
    ]
    create_table_artifact(key="quality", table=quality, description=f"{result['num_users']:,} held-out users")
    return result


@task(name="export")
def export_vectors(night: Night, run: Run, corpus: dict[str, Any]) -> dict[str, Any]:
    """Write the release: vectors, index and manifest; the story's "export"."""
    with report_step("export") as on_event:
        job = night.job(corpus["window_id"])
        asked = export_task.Export(
            job.corpus_dir, night.root.export(run.run_id), release=run.run_id, run_id=run.run_id, space_id=run.run_id,
            config=night.config.export, memory_bytes=night.memory_bytes,
        )  # fmt: skip

        def make() -> dict[str, Any]:
            generation = open_generation(job.store_dir)
            told = export_task.export_vectors(asked, generation, on_event)
            lost = measure_loss(open_corpus(job.corpus_dir), generation, asked.export_dir, night.threads, on_event)
            return told | {"metrics": told["metrics"] | lost}

        return run.step("export", run.run_id, make)


@task(name="register", retries=len(WAITS), retry_delay_seconds=WAITS, retry_condition_fn=is_away)
def register_release(night: Night, run: Run) -> dict[str, Any]:
    """Log the run to MLflow, register the release and move the aliases; the story's "register"."""
    with report_step("register") as on_event:
        make = _registration(night, run, on_event)
        return run.step("register", run.run_id, make)


@task(name="report", retries=len(WAITS), retry_delay_seconds=WAITS, retry_condition_fn=is_away)
def write_reports(night: Night, run: Run) -> None:
    """The morning's page, in the run's folder and beside the run in MLflow."""
    report_path = run.folder / "report.html"

    def make() -> dict[str, Any]:
        story = run.story()
        write_report(story, night.root.export(run.run_id), report_path)
        publish_task.attach_report(night.root, night.config.publish, story["steps"]["register"], report_path)
        return {"report": str(report_path)}

    run.step("report", run.run_id, make)
    create_markdown_artifact(key="report", markdown=describe_run(run, report_path))


def describe_run(run: Run, report_path: Path) -> str:
    """What a person finds of a run in Prefect (Markdown): what it made, and where to look further."""
    registered = run.story()["steps"]["register"]
    page = registered.get("mlflow_page")
    links = [f"* [The run in MLflow]({page})", f"* [The report]({page}/artifacts/report.html)"] if page else []
    made = (
        f"{registered['model_name']} version {registered['model_version']}, {registered['alias'] or 'without an alias'}"
    )
    lines = [*links, f"* The report as a file: `{report_path.resolve()}`", f"* MLflow: `{registered['tracking_uri']}`"]
    return f"# surf2vec release {run.run_id}\n\n{made}\n\n" + "\n".join(lines)


def _registration(
    night: Night, run: Run, on_event: Callable[[str, dict[str, Any]], None]
) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        story = run.story()
        registered = publish_task.publish_release(
            night.root, night.config.publish, story, night.root.export(run.run_id), None, on_event
        )
        if registered["alias"] == "champion":
            with lock_store(night.root.store):
                pin_generation(night.root.store, run.run_id)
                unpin_generations(night.root.store, keep={run.run_id})
                remove_unreferenced(night.root.store)  # the champion's before: as large as this one's
        return registered

    return make


def _rows(values: dict[str, Any], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for key in keys:
        value = values[key]
        rows += (
            [{"what": f"{key}: {k}", "number": f"{v:,}"} for k, v in value.items()]
            if isinstance(value, dict)
            else [{"what": key, "number": f"{value:,}"}]
        )
    return rows
