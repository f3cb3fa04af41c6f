"""The steps of a night as Prefect tasks: each calls one function of `tasks` and leaves an artifact a person can read.

Only paths and ids go from step to step; what a step recorded is read from the run's story (tasks/root/story.py). A step that
ended on the same inputs is not done again.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from rich.markup import escape

from flows.alarms import tell_gate_held
from flows.context import Night, find_or_plan
from flows.progress import console, report_step
from flows.ray_cluster import open_fan_out
from tasks.corpus import build as corpus_task
from tasks.corpus.window import select_window
from tasks.evaluation.comparison import evaluate_and_compare
from tasks.evaluation.export_loss import measure_loss
from tasks.export import export as export_task
from tasks.gate import figures as gate_task
from tasks.ingest import ingest as ingest_task
from tasks.registry import publish as publish_task
from tasks.registry.promotion import ChampionMovedError, name_release, pin_release, read_registry, release_pins
from tasks.report.funnel import list_notes
from tasks.report.loads import list_loads, tell_sharing
from tasks.report.measured import list_caveats, list_measured
from tasks.report.report import write_report
from tasks.report.tables import tell_gate
from tasks.root.run import Run
from tasks.root.story import (
    CorpusStep,
    EvaluateStep,
    ExportStep,
    GateStep,
    IngestStep,
    RefitStep,
    RegisterStep,
    ReportStep,
    SettleStep,
    Story,
    TrainStep,
    UnchangedStep,
)
from tasks.root.wording import as_markdown, shown, shown_values
from tasks.training import beginning as night_task
from tasks.training.devices import count_workers, pick_device
from tasks.training.worker_processes import WorkerProcesses, train_together
from trainer.errors import DamageError, UnavailableError
from trainer.events import OnEvent
from trainer.store.generation import Generation, open_generation
from trainer.store.tokens import open_corpus
from trainer.store.writer import find_pinned
from trainer.system.files import digest_json
from trainer.system.signals import stop_on_sigterm
from trainer.training.loop import train

WAITS: list[float] = [10, 20, 40, 80, 160, 320]
"""Seconds before each new try at what needs a server: ten minutes in all, while what was trained stays."""


def is_away(task: Any, task_run: Any, state: Any) -> bool:
    """Whether a step failed because a server was away, so that it is tried again."""
    error = getattr(state, "data", None)
    if isinstance(error, UnavailableError):
        console.print(
            f"[dim]{task.name:>16}[/dim]  {escape(shown(str(error)))}; trying again, for {sum(WAITS) / 60:.0f} minutes in all",
            highlight=False,
        )
    return isinstance(error, UnavailableError)


@task(name="ingest")
def ingest_events(night: Night, logs: list[str]) -> dict[str, Any]:
    """Read the new sources among `logs` into events/; the story's "ingest"."""
    with report_step("ingest") as on_event, open_fan_out(night.config.resources, night.root) as fan_out:
        started = datetime.now(UTC)
        config = night.config
        result = ingest_task.ingest(
            night.root,
            logs,
            config.ingest,
            config.store.partitions,
            night.memory_bytes,
            night.threads,
            on_event,
            fan_out,
        )
        return result | {"seconds": round((datetime.now(UTC) - started).total_seconds(), 3)}


@task(name="open-run", retries=len(WAITS), retry_delay_seconds=WAITS, retry_condition_fn=is_away)
def open_run(night: Night, ingested: dict[str, Any], logs: list[str]) -> Run:
    """The run that these sources, this window and these settings make; its story begins, or goes on."""
    with report_step("open-run") as on_event:
        run = find_or_plan(night, logs, on_event)
        story = run.story()
        on_event("log", {"message": tell_run(story)})
        run.step(IngestStep, "", lambda: ingested)
    create_table_artifact(
        key="sources",
        table=_rows(ingested, ("lines", "events", "left_out", "rejected")),
        description="From lines to events",
    )
    return run


def tell_run(story: Story) -> str:
    """What a run is about to do, in a line: all, what is new, what is left, or nothing."""
    run, ended = story.run_id, [name for name in story.steps.ended() if name != "ingest"]
    begun_at = story.created_at[:16].replace("T", " ")
    if story.steps.unchanged:
        release = story.steps.unchanged.release
        return f"nothing to do: run {run}, of {begun_at}, found no user whose pages changed since release {release}"
    if story.steps.report:
        return f"nothing to do: run {run}, of {begun_at}, did all of this; what follows is what it made"
    if ended:
        return f"run {run}, of {begun_at}, goes on; done before: {', '.join(ended)}"
    if story.base:
        return f"run {run} goes on from release {story.base.release}: only users whose pages changed are trained"
    return f"run {run} trains all users: {story.full_because or 'as asked'}"


@task(name="corpus")
def build_corpus(night: Night, run: Run) -> None:
    """Clean the window's events and write each user's tokens; the story's "corpus"."""
    with report_step("corpus") as on_event, open_fan_out(night.config.resources, night.root) as fan_out:
        story = run.story()
        result = run.step(
            CorpusStep,
            story.window_id,
            lambda: corpus_task.build_corpus(
                night.root, night.corpus_request(story), night.memory_bytes, night.threads, on_event, fan_out
            ),
        )
    funnel = [{"stage": stage, "number": f"{number:,}"} for stage, number in result.funnel]
    notes = " ".join(["From events to tokens.", *list_notes(run.story())])
    create_table_artifact(key="funnel", table=funnel, description=notes)


def find_unchanged(night: Night, run: Run) -> Run | None:
    """The run of the release that this one builds on, where no user's tokens changed since: then there is nothing to do."""
    story = run.story()
    if not story.base or story.require(CorpusStep).num_changed:
        return None
    release = story.base.release
    base = Run(night.root, release)
    if not base.story_path.exists():
        raise DamageError(
            f"no user's tokens changed since release {release}, and {base.story_path}, which says what it is, is gone here and "
            "in the registry: run with --full"
        )

    def make() -> dict[str, Any]:
        with report_step("unchanged") as on_event:
            on_event("log", {"message": f"nothing to do: no user's pages changed since release {release}, which stays"})
        return {"release": release}

    run.step(UnchangedStep, run.run_id, make)
    return base


@task(name="train")
def train_vectors(night: Night, run: Run) -> None:
    """Train user and item vectors, or go on from the last commit; the story's "train"."""
    with report_step("train") as on_event:
        device = pick_device(night.config.train, night.config.resources)
        if device.reason:
            on_event("log", {"message": device.reason})
        story = run.story()
        job, num_workers = night.job(story), count_workers(device, night.config.resources)

        def make() -> dict[str, Any]:
            night_task.begin_training(night.root, job, story, night.config.nightly, on_event)
            if num_workers == 1:
                return train(job, on_event)
            with stop_on_sigterm() as stop:
                return train_together(job, WorkerProcesses(num_workers, device, run.folder / "workers"), on_event, stop)

        result = run.step(TrainStep, run.run_id, make)
    caveats = list_caveats(result, night.config.train.epochs)
    create_table_artifact(
        key="training", table=list_measured(result), description=" ".join(["Planned and measured.", *caveats])
    )
    if loads := list_loads(result):
        create_table_artifact(key="workers", table=loads, description=tell_sharing(result))


@task(name="evaluate")
def evaluate_vectors(night: Night, run: Run) -> None:
    """Rank the held-out items, beside popularity and beside the champion; the story's "evaluate"."""
    with report_step("evaluate") as on_event:
        story = run.story()
        corpus_dir, ranks = night.job(story).corpus_dir, f"runs/{run.run_id}/ranks.npy"
        result = run.step(
            EvaluateStep,
            run.run_id,
            lambda: evaluate_and_compare(night.root, corpus_dir, story.champion, ranks, night.memory_bytes, on_event),
        )
    metrics = result.metrics
    names = [name for name in metrics if not name.startswith("popularity_")]
    quality = [
        {"metric": name, "vectors": f"{metrics[name]:.4f}", "popularity": f"{metrics['popularity_' + name]:.4f}"}
        for name in names
    ]
    create_table_artifact(key="quality", table=quality, description=f"{result.num_users:,} held-out users")


@task(name="refit")
def refit_vectors(night: Night, run: Run) -> None:
    """Fit the held-out users again, on all they did, now that they are no secret any more; the story's "refit"."""
    with report_step("refit") as on_event, open_fan_out(night.config.resources, night.root) as fan_out:
        story = run.story()
        job = night.job(story)
        run.step(RefitStep, run.run_id, lambda: night_task.refit(night.root, job, story, on_event, fan_out))


@task(name="settle")
def settle_vectors(night: Night, run: Run) -> None:
    """Lay the night's rows beside those it builds on, or turn a full night into the champion's space; the story's "settle"."""
    with report_step("settle") as on_event:
        story = run.story()
        job, nightly = night.job(story), night.config.nightly
        run.step(SettleStep, run.run_id, lambda: night_task.settle(night.root, job, story, nightly, on_event))


@task(name="export")
def export_vectors(night: Night, run: Run) -> None:
    """Write the release: vectors, index and manifest; the story's "export"."""
    with report_step("export") as on_event, open_fan_out(night.config.resources, night.root) as fan_out:
        story = run.story()
        space_id, space = story.require(SettleStep).space_id, story.space
        corpus_dir = night.root.corpus(story.window_id)
        shared = night.root.export(space.release) if space and space.space_id == space_id else None
        asked = export_task.Export(
            corpus_dir, night.root.export(run.run_id), release=run.run_id, run_id=run.run_id, space_id=space_id,
            config=night.config.export, memory_bytes=night.memory_bytes, space_dir=shared,
            since_dir=night.root.export(space.release) if space else None,
        )  # fmt: skip

        def make() -> dict[str, Any]:
            generation = _settled_generation(night, run)
            told = export_task.export_vectors(asked, generation, on_event, fan_out)
            lost = measure_loss(open_corpus(corpus_dir), generation, asked.export_dir, night.threads, on_event)
            return told | {"metrics": told["metrics"] | lost}

        run.step(ExportStep, run.run_id, make)


def _settled_generation(night: Night, run: Run) -> Generation:
    """Return the generation that the run made. Raises DamageError when another took its place."""
    generation = find_pinned(night.root.store, run.run_id) or open_generation(night.root.store)
    settled = run.story().require(SettleStep).generation
    if generation.generation != settled:
        raise DamageError(
            f"{night.root.store} has generation {generation.generation}, not {settled}, which run {run.run_id} made: "
            "it cannot be exported any more; run with --full"
        )
    return generation


@task(name="gate", retries=len(WAITS), retry_delay_seconds=WAITS, retry_condition_fn=is_away)
def judge_release(night: Night, run: Run) -> None:
    """Hold the release against the champion, rule by rule; the story's "gate". Other settings judge again.

    So does the same command before the release is registered: by then another release may serve.
    """
    with report_step("gate") as on_event:
        if not run.story().steps.registered:
            run.reopen(GateStep)
        _judge(night, run, on_event)


@task(name="register", retries=len(WAITS), retry_delay_seconds=WAITS, retry_condition_fn=is_away)
def register_release(night: Night, run: Run) -> None:
    """Log the run to MLflow, register the release and move the aliases if the gate lets it; the story's "register"."""
    with report_step("register") as on_event:
        make = _registration(night, run, on_event)
        done = run.story().steps.registered
        if done and not publish_task.is_served(night.root, night.config.publish, done):
            run.reopen(RegisterStep)
        try:
            run.step(RegisterStep, _judged(run), make)
        except ChampionMovedError as error:
            on_event("log", {"message": str(error)})
            run.reopen(GateStep)
            _judge(night, run, on_event)
            run.step(RegisterStep, _judged(run), make)


@task(name="report", retries=len(WAITS), retry_delay_seconds=WAITS, retry_condition_fn=is_away)
def write_reports(night: Night, run: Run) -> None:
    """The morning's page, in the run's folder and beside the run in MLflow."""
    report_path = run.folder / "report.html"

    def make() -> dict[str, Any]:
        story = run.story()
        write_report(story, night.root.export(run.run_id), report_path)
        publish_task.attach_report(night.root, night.config.publish, story.require(RegisterStep), report_path)
        return {"report": str(report_path)}

    run.step(ReportStep, _judged(run), make)
    create_markdown_artifact(key="report", markdown=describe_run(run, report_path))


def describe_run(run: Run, report_path: Path) -> str:
    """What a person finds of a run in Prefect (Markdown): what it made, and where to look further."""
    registered = run.story().require(RegisterStep)
    page = registered.mlflow_page
    links = [f"* [The run in MLflow]({page})", f"* [The report]({page}/artifacts/report.html)"] if page else []
    made = f"{registered.model_name} version {registered.model_version}, {registered.alias or 'without an alias'}"
    file, uri = as_markdown(str(report_path.resolve())), as_markdown(registered.tracking_uri)
    lines = [*links, f"* The report as a file: {file}", f"* MLflow: {uri}"]
    return f"# surf2vec release {run.run_id}\n\n{as_markdown(made)}\n\n" + "\n".join(lines)


def _judge(night: Night, run: Run, on_event: OnEvent) -> None:
    """The story's "gate"; what is held back is told to whom it concerns."""
    gate = night.config.gate

    def make() -> dict[str, Any]:
        there = read_registry(night.root, night.config.publish)
        spaces = {name_release(one): one.tags.get("space_id", "") for one in there.versions}
        champion = name_release(there.champion) if there.champion else None
        window = select_window(night.root, night.since, night.until, night.config.window_days)
        judged = gate_task.judge_release(gate_task.open_case(run, gate, champion, spaces, window))
        before = run.story().steps.gate
        judged |= {"overridden": before.overridden} if before and before.overridden else {}
        is_first = judged["verdict"] == "first"
        told = "there is no champion to hold the release against" if is_first else tell_gate(GateStep(**judged))
        on_event("log", {"message": told})
        return judged

    result = run.step(GateStep, digest_json({"run": run.run_id, "gate": gate.model_dump(mode="json")}), make)
    if result.is_held:
        tell_gate_held(run.run_id, result.held_by)
    create_table_artifact(key="gate", table=shown_values(result.table), description=as_markdown(tell_gate(result)))


def _registration(night: Night, run: Run, on_event: OnEvent) -> Callable[[], dict[str, Any]]:
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
    gate = run.story().require(GateStep)
    return digest_json({"verdict": gate.verdict, "overridden": gate.overridden, "digest": gate.digest})


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
