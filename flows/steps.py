"""The steps of a night. Each calls one function of `tasks`; inside a Prefect flow it leaves a readable artifact.

Only paths and ids go from step to step; results are read from the run's story (tasks/root/story.py). A step that ended with
the same inputs is not repeated.
"""

from datetime import UTC, datetime
from typing import Any

from surf2vec.flows.artifacts import leave_night, leave_table
from surf2vec.flows.context import NightContext
from surf2vec.flows.progress import GATE_HELD, raise_alarm, report_step
from surf2vec.flows.ray_cluster import open_fan_out
from surf2vec.flows.step import step
from surf2vec.flows.summary import announce_run, digest_gate, digest_verdict
from surf2vec.tasks.corpus import build as corpus_task
from surf2vec.tasks.corpus.window import select_window
from surf2vec.tasks.evaluation.comparison import evaluate_and_compare
from surf2vec.tasks.evaluation.evaluate import measure_loss
from surf2vec.tasks.export import export as export_task
from surf2vec.tasks.gate import figures as gate_task
from surf2vec.tasks.ingest import ingest as ingest_task
from surf2vec.tasks.queries.nights import write_nights_page
from surf2vec.tasks.registry import promotion
from surf2vec.tasks.registry import publish as publish_task
from surf2vec.tasks.registry.faults import is_served
from surf2vec.tasks.report.measured import describe_sharing, list_caveats, list_loads, list_measured
from surf2vec.tasks.report.report import write_report
from surf2vec.tasks.report.tables import describe_gate, list_notes
from surf2vec.tasks.root import story as record
from surf2vec.tasks.root.run import Run
from surf2vec.tasks.root.wording import as_markdown, shown_values
from surf2vec.tasks.training import beginning as night_task
from surf2vec.tasks.training import choice, runs, trials
from surf2vec.tasks.training.worker_processes import WorkerProcesses, count_workers, pick_device, train_together
from surf2vec.tasks.upkeep.restore import restore_story
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.events import OnEvent
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.store.writer import find_pinned
from surf2vec.trainer.system.files import digest_json
from surf2vec.trainer.system.signals import stop_on_sigterm
from surf2vec.trainer.training.loop import train


@step("ingest")
def ingest_events(night: NightContext, logs: list[str]) -> dict[str, Any]:
    """Read the new sources among `logs` into events/. Returns the story's "ingest"."""
    root, config = night.root, night.config
    with report_step("ingest") as on_event, open_fan_out(config.resources, root) as fan_out:
        started = datetime.now(UTC)
        work = (config.host_bytes, config.threads, on_event, fan_out)
        result = ingest_task.ingest(root, logs, config.ingest, config.store.partitions, *work)
        return result | {"seconds": round((datetime.now(UTC) - started).total_seconds(), 3)}


@step("open-run", needs_server=True)
def open_run(night: NightContext, ingested: dict[str, Any], logs: list[str]) -> Run:
    """Returns the run of these sources, this window and these settings, and begins or continues its story."""
    with report_step("open-run") as on_event:
        run = _find_or_plan(night, logs, on_event)
        on_event("log", {"message": announce_run(run.story())})
        run.step(record.IngestStep, "", lambda: ingested)
    counts = {"lines": ingested["lines"], "events": ingested["events"]}
    for key in ("left_out", "rejected"):
        counts |= {f"{key}: {reason}": count for reason, count in ingested[key].items()}
    rows = [{"what": what, "number": f"{count:,}"} for what, count in counts.items()]
    leave_table(night.config.publish, "sources", rows, "From lines to events")
    return run


def _find_or_plan(night: NightContext, logs: list[str], on_event: OnEvent) -> Run:
    """Returns the run that the same command began before, or a new one, planned from the current champion.

    A run that has not trained yet and began with another champion is planned anew. If the champion's story is missing, it is
    restored from the registry first.
    """
    config, root = night.config, night.root
    request = night.corpus_request(record.NightPlan())
    inputs = request.inputs(request.select_window(root))
    settings = config.outcome_settings()
    digest = runs.name_asked(inputs, settings, night.is_full)
    found = runs.find_run(root, digest)
    if found:
        runs.reopen_gone(found)
        if found.story().steps.train:
            return found
    champion = promotion.find_champion(root, config.publish)
    if champion and restore_story(root, config.publish, champion, on_event) and not found:
        found = runs.find_run(root, digest)
    if found and champion in (found.story().champion, found.run_id):
        return found
    night_request = night_task.NightRequest(config.train, config.nightly, inputs, night.is_full)
    plan = night_task.plan_night(root, champion, night_request, digest)
    window_id = night.corpus_request(plan).name(root)
    made_of = {"window_id": window_id, "config": settings} | ({"full": True} if night.is_full else {})
    run = Run(root, digest_json(made_of)[:12])
    if not run.story().steps.train:
        run.record(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=f"surf2vec run {' '.join(f'--logs {log}' for log in logs)}".strip(),
            window_id=window_id,
            config=config.model_dump(mode="json"),
            **dict(plan),
        )
    return run


@step("corpus")
def build_corpus(night: NightContext, run: Run) -> None:
    """Clean the window's events and write each user's tokens. Records the story's "corpus"."""
    root, config = night.root, night.config
    with report_step("corpus") as on_event, open_fan_out(config.resources, root) as fan_out:
        story = run.story()
        request, work = night.corpus_request(story), (config.host_bytes, config.threads, on_event, fan_out)
        result = run.step(record.CorpusStep, story.window_id, lambda: corpus_task.build_corpus(root, request, *work))
    funnel = [{"stage": stage, "number": f"{number:,}"} for stage, number in result.funnel]
    notes = " ".join(["From events to tokens.", *list_notes(run.story())])
    leave_table(night.config.publish, "funnel", funnel, notes)


def find_unchanged(night: NightContext, run: Run) -> Run | None:
    """Returns the run of the base release if no user's tokens changed since, so that there is nothing to do; else None."""
    story = run.story()
    if not story.base or story.require(record.CorpusStep).num_changed:
        return None
    release = story.base.release
    base = Run(night.root, release)
    if not base.story_path.exists():
        raise DamageError(
            f"no user's tokens changed since release {release}, but its story {base.story_path} is missing here and in the "
            "registry: run with --full"
        )
    if not story.steps.unchanged:
        with report_step("unchanged") as on_event:
            on_event("log", {"message": f"nothing to do: no user's pages changed since release {release}, which stays"})
    run.step(record.UnchangedStep, run.run_id, lambda: {"release": release})
    return base


@step("trial")
def try_settings(night: NightContext, run: Run) -> None:
    """Choose the trail's settings by short trainings, or keep the champion's. Records the story's "trial"."""
    with report_step("trial") as on_event:
        story = run.story()
        if story.steps.train and not story.steps.trial:
            return  # an earlier version, which tried nothing, trained this run
        space = runs.open_base(night.root, story.space.release) if story.space else None
        present = space.generation if space else None
        arguments = (night.root, night.job(story), present, story.base is not None, on_event)
        run.step(record.TrialStep, run.run_id, lambda: trials.try_settings(*arguments))


@step("train")
def train_vectors(night: NightContext, run: Run) -> None:
    """Train user and item vectors, or continue from the last commit. Records the story's "train"."""
    with report_step("train") as on_event:
        device = pick_device(night.config.train, night.config.resources)
        if device.reason:
            on_event("log", {"message": device.reason})
        story = run.story()
        job, num_workers = night.job(story), count_workers(device, night.config.resources)

        def make() -> dict[str, Any]:
            night_task.begin_training(night.root, job, story, on_event)
            if num_workers == 1:
                return train(job, on_event)
            with stop_on_sigterm() as stop:
                return train_together(job, WorkerProcesses(num_workers, device, run.folder / "workers"), on_event, stop)

        result = run.step(record.TrainStep, run.run_id, make)
    caveats = list_caveats(result, night.config.train.epochs)
    measured = " ".join(["Planned and measured.", *caveats])
    leave_table(night.config.publish, "training", list_measured(result), measured)
    if loads := list_loads(result):
        leave_table(night.config.publish, "workers", loads, describe_sharing(result))


@step("choose")
def choose_weights(night: NightContext, run: Run) -> None:
    """Choose the weights of interest and trail by held-out users, or keep the champion's. Records the story's "choose"."""
    with report_step("choose") as on_event:
        story = run.story()
        corpus, space = open_corpus(night.job(story).corpus_dir), story.space.release if story.space else None
        run.step(record.ChooseStep, run.run_id, lambda: choice.choose_weights(night.root, corpus, space, on_event))


@step("evaluate")
def evaluate_vectors(night: NightContext, run: Run) -> None:
    """Rank the held-out items, and compare with popularity and with the champion. Records the story's "evaluate"."""
    with report_step("evaluate") as on_event:
        story = run.story()
        corpus_dir, ranks = night.job(story).corpus_dir, f"runs/{run.run_id}/ranks.npy"
        arguments = (night.root, corpus_dir, story.champion, ranks, night.config.host_bytes, on_event)
        result = run.step(record.EvaluateStep, run.run_id, lambda: evaluate_and_compare(*arguments))
    quality = [
        {"metric": name, "vectors": f"{value:.4f}", "popularity": f"{result.metrics['popularity_' + name]:.4f}"}
        for name, value in result.metrics.items()
        if not name.startswith("popularity_")
    ]
    leave_table(night.config.publish, "quality", quality, f"{result.num_users:,} held-out users")


@step("refit")
def refit_vectors(night: NightContext, run: Run) -> None:
    """Fit the held-out users again, on all their events including the held-out ones. Records the story's "refit"."""
    with report_step("refit") as on_event, open_fan_out(night.config.resources, night.root) as fan_out:
        story = run.story()
        job = night.job(story)
        run.step(record.RefitStep, run.run_id, lambda: night_task.refit(night.root, job, story, on_event, fan_out))


@step("settle")
def settle_vectors(night: NightContext, run: Run) -> None:
    """Merge the night's rows with its base's, or rotate a full night into the champion's space. Records the story's "settle"."""
    with report_step("settle") as on_event:
        story = run.story()
        job = night.job(story)
        run.step(record.SettleStep, run.run_id, lambda: night_task.settle(night.root, job, story, on_event))


@step("export")
def export_vectors(night: NightContext, run: Run) -> None:
    """Write the release: vectors, index and manifest. Records the story's "export". Raises DamageError if another generation
    replaced the one of this run.
    """
    root, config = night.root, night.config
    with report_step("export") as on_event, open_fan_out(config.resources, root) as fan_out:
        story = run.story()
        settled, space = story.require(record.SettleStep), story.space
        corpus_dir, space_dir = root.corpus(story.window_id), root.export(space.release) if space else None
        export = export_task.Export(
            corpus_dir, root.export(run.run_id), release=run.run_id, run_id=run.run_id, space_id=settled.space_id,
            config=config.export, memory_bytes=config.host_bytes, since_dir=space_dir,
            space_dir=space_dir if space and space.space_id == settled.space_id else None,
        )  # fmt: skip

        def make() -> dict[str, Any]:
            generation = find_pinned(root.store, run.run_id) or open_generation(root.store)
            if generation.generation != settled.generation:
                raise DamageError(
                    f"{root.store} has generation {generation.generation}, not {settled.generation}, which run {run.run_id} "
                    "made: it cannot be exported any more; run with --full"
                )
            exported = export_task.export_vectors(export, generation, on_event, fan_out)
            lost = measure_loss(open_corpus(corpus_dir), generation, export.export_dir, config.threads, on_event)
            return exported | {"metrics": exported["metrics"] | lost}

        run.step(record.ExportStep, run.run_id, make)


@step("gate", needs_server=True)
def judge_release(night: NightContext, run: Run) -> None:
    """Compare the release with the champion, rule by rule. Records the story's "gate". Changed gate settings judge again.

    The same command also judges again until the release is registered, because the champion may have changed.
    """
    with report_step("gate") as on_event:
        if not run.story().steps.registered:
            run.reopen(record.GateStep)
        _judge(night, run, on_event)


@step("register", needs_server=True)
def register_release(night: NightContext, run: Run) -> None:
    """Log the run to MLflow, register the release, and move the aliases if the gate passed. Records the story's "register"."""
    root, publish = night.root, night.config.publish
    with report_step("register") as on_event:

        def make() -> dict[str, Any]:
            promotion.pin_release(root, run.run_id)  # before it serves, because a rollback needs it
            export_dir = root.export(run.run_id)
            registered = publish_task.publish_release(root, publish, run.story(), export_dir, None, on_event)
            promotion.release_pins(root, publish)
            return registered

        done = run.story().steps.registered
        if done and not is_served(root, publish, done):
            run.reopen(record.RegisterStep)
        try:
            run.step(record.RegisterStep, digest_verdict(run), make)
        except promotion.ChampionMovedError as error:
            on_event("log", {"message": str(error)})
            run.reopen(record.GateStep)
            _judge(night, run, on_event)
            run.step(record.RegisterStep, digest_verdict(run), make)


@step("report", needs_server=True)
def write_reports(night: NightContext, run: Run) -> None:
    """Write the report into the run's folder, and log it to the run in MLflow."""
    path = run.folder / "report.html"

    def make() -> dict[str, Any]:
        story = run.story()
        write_report(story, night.root.export(run.run_id), path)
        publish_task.attach_report(night.root, night.config.publish, story.require(record.RegisterStep), path)
        return {"report": str(path)}

    run.step(record.ReportStep, digest_verdict(run), make)
    write_nights_page(night.root, night.config.publish)
    leave_night(night.config.publish, run)


def _judge(night: NightContext, run: Run, on_event: OnEvent) -> None:
    """Judge the release and record the story's "gate". A release that is held back raises an alarm."""
    gate = night.config.gate

    def make() -> dict[str, Any]:
        registry = promotion.read_registry(night.root, night.config.publish)
        spaces = {promotion.name_release(version): version.tags.get("space_id", "") for version in registry.versions}
        champion = promotion.name_release(registry.champion) if registry.champion else None
        window = select_window(night.root, night.since, night.until, night.config.window_days)
        judged = gate_task.judge_release(gate_task.open_case(run, gate, champion, spaces, window))
        before = run.story().steps.gate
        judged |= {"overridden": before.overridden} if before and before.overridden else {}
        is_first = judged["verdict"] == "first"
        message = "there is no champion to compare the release with"
        on_event("log", {"message": message if is_first else describe_gate(record.GateStep(**judged))})
        return judged

    result = run.step(record.GateStep, digest_gate(run, gate), make)
    if result.is_held:
        raise_alarm(GATE_HELD, run.run_id, held_by=", ".join(result.held_by))
    leave_table(night.config.publish, "gate", shown_values(result.table), as_markdown(describe_gate(result)))
