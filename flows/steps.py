"""The steps of a night as Prefect tasks: each calls one function of `tasks` and leaves an artifact a person can read.

Only paths, ids and small dictionaries go from step to step. A step that ended on the same inputs answers what it recorded.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.config import PipelineConfig
from flows.progress import report_step
from tasks import corpus as corpus_task
from tasks import evaluate as evaluate_task
from tasks import export as export_task
from tasks import gate_figures as gate_task
from tasks import ingest as ingest_task
from tasks import publish as publish_task
from tasks.champion import side_of
from tasks.comparison import compare_with_champion
from tasks.devices import pick_device
from tasks.export_loss import measure_loss
from tasks.measured import list_caveats, list_measured
from tasks.promotion import find_champion, pin_release, release_pins
from tasks.report import write_report
from tasks.report_tables import tell_gate
from tasks.run import Root, Run
from tasks.window import select_window
from trainer.corpus import open_corpus
from trainer.errors import ResourceError
from trainer.files import digest_json
from trainer.infer import refit_held_out
from trainer.job import Job
from trainer.loop import train
from trainer.signals import stop_on_sigterm
from trainer.store import open_generation
from trainer.units import parse_bytes


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


@task(name="open-run", retries=2, retry_delay_seconds=10, retry_condition_fn=lambda task, run, state: _is_remote(state))
def open_run(night: Night, ingested: dict[str, Any], logs: list[str]) -> Run:
    """The run that these sources, this window and these settings make; its story begins, or goes on."""
    config = night.config
    window_id = corpus_task.window_id(
        night.root, config.ingest, config.evaluate, night.since, night.until, config.window_days
    )
    settings = config.outcome_settings()
    run = Run(night.root, digest_json({"window_id": window_id, "config": settings})[:12])
    story = run.story()
    if "train" not in story["steps"]:  # the release that the night meets at its end should still be this one
        run.record(champion=find_champion(night.root, config.publish))
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
            generation = open_generation(job.store_dir)
            evaluation = evaluate_task.evaluate(opened, generation, on_event, night.memory_bytes)
            if generation.manifest["stage"] != "refitted":  # after that the held-out items are no secret any more
                evaluation["comparison"] = compare_with_champion(
                    night.root, run.story().get("champion"), side_of(opened, generation), f"runs/{run.run_id}/ranks.npy",
                    night.memory_bytes, on_event,
                )  # fmt: skip
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


@task(name="gate", retries=2, retry_delay_seconds=10, retry_condition_fn=lambda task, run, state: _is_remote(state))
def judge_release(night: Night, run: Run) -> dict[str, Any]:
    """Hold the release against the champion, rule by rule; the story's "gate". Other settings judge again."""
    with report_step("gate") as on_event:
        gate = night.config.gate

        def make() -> dict[str, Any]:
            champion = find_champion(night.root, night.config.publish)
            window = select_window(night.root, night.since, night.until, night.config.window_days)
            judged = gate_task.judge_release(gate_task.open_case(run, gate, champion, window))
            overridden = run.story()["steps"].get("gate", {}).get("overridden")
            return judged | ({"overridden": overridden} if overridden else {})

        result = run.step("gate", digest_json({"run": run.run_id, "gate": gate.model_dump(mode="json")}), make)
        on_event("log", {"message": tell_gate(result)})
    create_table_artifact(key="gate", table=result["table"], description=tell_gate(result))
    return result


@task(name="register", retries=2, retry_delay_seconds=10, retry_condition_fn=lambda task, run, state: _is_remote(state))
def register_release(night: Night, run: Run) -> dict[str, Any]:
    """Log the run to MLflow, register the release and move the aliases if the gate lets it; the story's "register"."""
    with report_step("register") as on_event:
        make = _registration(night, run, on_event)
        return run.step("register", _judged(run), make)


@task(name="report")
def write_reports(night: Night, run: Run) -> None:
    """The morning's page, in the run's folder and beside the run in MLflow."""
    report_path = run.folder / "report.html"

    def make() -> dict[str, Any]:
        story = run.story()
        write_report(story, night.root.export(run.run_id), report_path)
        publish_task.attach_report(night.root, night.config.publish, story["steps"]["register"], report_path)
        return {"report": str(report_path)}

    run.step("report", _judged(run), make)
    link = f"[The report]({report_path.resolve().as_uri()})"
    create_markdown_artifact(key="report", markdown=f"# surf2vec release {run.run_id}\n\n{link}")


def _registration(
    night: Night, run: Run, on_event: Callable[[str, dict[str, Any]], None]
) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        pin_release(night.root, run.run_id)  # before it can serve: a rollback must find it
        registered = publish_task.publish_release(
            night.root, night.config.publish, run.story(), night.root.export(run.run_id), None, on_event
        )
        release_pins(night.root, night.config.publish)
        return registered

    return make


def _judged(run: Run) -> str:
    """What registering and the report hang on beside the run: the gate's word, which other settings may change."""
    gate = run.story()["steps"]["gate"]
    return digest_json({name: gate.get(name) for name in ("verdict", "overridden", "digest")})


def _is_remote(state: Any) -> bool:
    return isinstance(getattr(state, "data", None), ResourceError)


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
