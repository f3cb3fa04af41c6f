"""The steps of a night. Each calls one function of another folder of `tasks`, and reports a table of what it made.

Only paths and ids go from step to step; results are read from the run's record (tasks/root/records.py). A step that ended with
the same inputs is not repeated.
"""

import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from surf2vec.tasks.corpus import build as corpus_task
from surf2vec.tasks.corpus.window import select_window
from surf2vec.tasks.evaluation.comparison import evaluate_and_compare
from surf2vec.tasks.evaluation.evaluate import measure_loss
from surf2vec.tasks.export import export as export_task
from surf2vec.tasks.export.noise import open_noise_key
from surf2vec.tasks.gate import figures as gate_task
from surf2vec.tasks.ingest import ingest as ingest_task
from surf2vec.tasks.night import runs
from surf2vec.tasks.night.context import NightContext
from surf2vec.tasks.night.page import write_nights_page
from surf2vec.tasks.night.ray_cluster import open_fan_out
from surf2vec.tasks.night.reporter import GATE_HELD, PUSH_FAILED
from surf2vec.tasks.night.root_settings import remember
from surf2vec.tasks.night.step import needs_server
from surf2vec.tasks.night.summary import announce_run, digest_gate, digest_verdict
from surf2vec.tasks.registry import promotion
from surf2vec.tasks.registry.faults import is_served
from surf2vec.tasks.registry.releases import add_serving, check_experiment, read_registry
from surf2vec.tasks.report.measured import describe_sharing, list_caveats, list_loads, list_measured
from surf2vec.tasks.report.report import write_report
from surf2vec.tasks.report.tables import describe_gate, list_losses, list_notes
from surf2vec.tasks.root import records
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.identity import registry_uri
from surf2vec.tasks.root.run import Run
from surf2vec.tasks.root.wording import as_markdown, shown_values
from surf2vec.tasks.stores.places import open_store
from surf2vec.tasks.stores.push import open_pushed, push
from surf2vec.tasks.training import beginning as night_task
from surf2vec.tasks.training import choice
from surf2vec.tasks.training.worker_processes import WorkerProcesses, count_workers, pick_device, train_together
from surf2vec.tasks.upkeep.restore import restore_run_record
from surf2vec.tasks.users.tombstones import read_tombstones
from surf2vec.trainer.errors import DamageError, SurfError
from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.store.writer import find_pinned
from surf2vec.trainer.system.files import digest_json
from surf2vec.trainer.system.signals import stop_on_sigterm
from surf2vec.trainer.training.loop import train


def ingest_events(night: NightContext, logs: list[str]) -> records.IngestStep:
    """Read the new sources among `logs` into events/. Returns the record of step "ingest"."""
    root, config = night.root, night.config
    with night.reporter.step("ingest") as on_event, open_fan_out(config.resources, root) as fan_out:
        started, work = time.monotonic(), (config.host_bytes, config.threads, on_event, fan_out)
        keep = partial(remember, root, config, on_event)
        make = partial(ingest_task.ingest, before_commit=keep, days=night.days)
        result = make(root, logs, config.ingest, config.store.partitions, *work)
        return records.IngestStep(**result, seconds=round(time.monotonic() - started, 3))


@needs_server
def open_run(night: NightContext, ingested: records.IngestStep, logs: list[str]) -> Run:
    """Return the run of these sources, this window and these settings, and begins or continues its record."""
    with night.reporter.step("open-run") as on_event:
        check_experiment(night.root, night.config.publish)
        run = _find_or_plan(night, logs, on_event)
        log(on_event, announce_run(run.record()))
        run.step(records.IngestStep, "", lambda: ingested)
    return run


def _find_or_plan(night: NightContext, logs: list[str], on_event: OnEvent) -> Run:
    """Return the run that the same command began before, or a new one, planned from the current champion.

    A run that has not trained yet and started from another champion is planned again. If the champion's record is missing, it is
    restored from the registry first.
    """
    config, root = night.config, night.root
    inputs, digest = night.request()
    found = runs.find_run(root, digest)
    registry = read_registry(root, config.publish)
    promotion.refuse_lost_champion(root, registry, found.run_id if found else None)
    if found:
        for kind in runs.list_gone(found):
            if kind is records.TrainStep:
                found.forget_steps()
            else:
                found.reopen(kind)
        if found.record().steps.train:
            return found
    champion = registry.serving
    if champion and restore_run_record(root, config.publish, champion, on_event) and not found:
        found = runs.find_run(root, digest)
    if found and champion in (found.record().champion, found.run_id):
        return found
    night_request = night_task.NightRequest(config.train, config.nightly, inputs, night.is_full)
    plan = night_task.plan_night(root, champion, night_request, digest)
    window_id = night.corpus_request(plan).name(root)
    made_of = {"window_id": window_id, "config": config.outcome_settings()} | ({"full": True} if night.is_full else {})
    run = Run(root, digest_json(made_of)[:12])
    if not run.record().steps.train:
        run.update(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=f"surf2vec run {' '.join(f'--logs {log}' for log in logs)}".strip(),
            window_id=window_id,
            config=config.model_dump(mode="json"),
            **dict(plan),
        )
    return run


def build_corpus(night: NightContext, run: Run) -> None:
    """Clean the window's events and write each user's tokens. Records the step "corpus"."""
    root, config = night.root, night.config
    with night.reporter.step("corpus") as on_event, open_fan_out(config.resources, root) as fan_out:
        record = run.record()
        work = (night.corpus_request(record), config.host_bytes, config.threads, on_event, fan_out)
        build = partial(corpus_task.build_corpus, root, *work)
        run.step(records.CorpusStep, record.window_id, lambda: records.CorpusStep(**build()))
    ended = run.record()
    notes = " ".join(["From lines to tokens.", *list_notes(ended)])
    night.reporter.add_table(night.config.publish, "funnel", list_losses(ended), notes)


def find_unchanged_base(night: NightContext, run: Run) -> Run | None:
    """Return the run of the base release if no user's tokens changed since, so that there is nothing to do; else None."""
    record = run.record()
    if not record.base or record.require(records.CorpusStep).num_changed:
        return None
    release = record.base.release
    base = Run(night.root, release)
    if not base.record_path.exists():
        raise DamageError(
            f"no user's tokens changed since release {release}, but its record {base.record_path} is missing here and in the "
            "registry: run with --full"
        )
    if not record.steps.unchanged:
        with night.reporter.step("unchanged") as on_event:
            log(on_event, f"no changes since release {release}; it stays champion")
    run.step(records.UnchangedStep, run.run_id, lambda: records.UnchangedStep(release=release))
    return base


def train_vectors(night: NightContext, run: Run) -> None:
    """Train user and item vectors, or continue from the last commit. Records the step "train"."""
    with night.reporter.step("train") as on_event:
        device = pick_device(night.config.train, night.config.resources)
        if device.reason:
            log(on_event, device.reason)
        record = run.record()
        job, num_workers = night.job(record), count_workers(device, night.config.resources)

        def make() -> records.TrainStep:
            night_task.begin_training(night.root, job, record, on_event)
            if num_workers == 1:
                return records.TrainStep(**train(job, on_event))
            crew = WorkerProcesses(num_workers, device, run.folder / "workers")
            with stop_on_sigterm() as stop:
                return records.TrainStep(**train_together(job, crew, on_event, stop))

        result = run.step(records.TrainStep, run.run_id, make)
    measured = " ".join(["Planned and measured.", *list_caveats(result, night.config.train.epochs)])
    night.reporter.add_table(night.config.publish, "training", list_measured(result), measured)
    if loads := list_loads(result):
        night.reporter.add_table(night.config.publish, "workers", loads, describe_sharing(result))


def choose_values(night: NightContext, run: Run) -> None:
    """Choose the weight of the parts and the popularity by held-out users, or keep the champion's. Records the step "choose"."""
    with night.reporter.step("choose") as on_event:
        record = run.record()
        corpus, space = open_corpus(night.job(record).corpus_dir), record.space.release if record.space else None
        chosen = partial(choice.choose_values, night.root, corpus, space, on_event)
        run.step(records.ChooseStep, run.run_id, lambda: records.ChooseStep(**chosen()))


def evaluate_vectors(night: NightContext, run: Run) -> None:
    """Rank the held-out items, and compare with popularity and with the champion. Records the step "evaluate"."""
    with night.reporter.step("evaluate") as on_event:
        record = run.record()
        corpus_dir, ranks = night.job(record).corpus_dir, f"runs/{run.run_id}/ranks.npy"
        drop, host_bytes = night.config.gate.hit_at_10_drop, night.config.host_bytes
        arguments = (night.root, corpus_dir, record.champion, ranks, drop, host_bytes, on_event)
        result = run.step(
            records.EvaluateStep, run.run_id, lambda: records.EvaluateStep(**evaluate_and_compare(*arguments))
        )
    quality = [
        {"metric": name, "vectors": f"{value:.4f}", "popularity": f"{result.metrics['popularity_' + name]:.4f}"}
        for name, value in result.metrics.items()
        if not name.startswith("popularity_")
    ]
    night.reporter.add_table(night.config.publish, "quality", quality, f"{result.num_users:,} held-out users")


def refit_vectors(night: NightContext, run: Run) -> None:
    """Fit the held-out users again, on all their events including the held-out ones. Records the step "refit"."""
    with night.reporter.step("refit") as on_event, open_fan_out(night.config.resources, night.root) as fan_out:
        record = run.record()
        job = night.job(record)
        run.step(records.RefitStep, run.run_id, lambda: night_task.refit(night.root, job, record, on_event, fan_out))


def settle_vectors(night: NightContext, run: Run) -> None:
    """Merge the night's rows with its base's, or rotate a full night into the champion's space. Records the step "settle"."""
    with night.reporter.step("settle") as on_event:
        record = run.record()
        job = night.job(record)
        run.step(records.SettleStep, run.run_id, lambda: night_task.settle(night.root, job, record, on_event))


def export_vectors(night: NightContext, run: Run) -> None:
    """Write the release: vectors, index and manifest. Records the step "export". Raises DamageError if another generation
    replaced the one of this run.
    """
    root, config = night.root, night.config
    with night.reporter.step("export") as on_event, open_fan_out(config.resources, root) as fan_out:
        record = run.record()
        settled, space = record.require(records.SettleStep), record.space
        corpus_dir, space_dir = root.corpus(record.window_id), root.export(space.release) if space else None
        export = export_task.Export(
            corpus_dir, root.export(run.run_id), release=run.run_id, run_id=run.run_id, space_id=settled.space_id,
            config=config.export, memory_bytes=config.host_bytes,
            space_dir=space_dir if space and space.space_id == settled.space_id else None,
            noise_key=open_noise_key(root) if config.export.noise else b"",
        )  # fmt: skip

        def make() -> records.ExportStep:
            generation = find_pinned(root.store, run.run_id) or open_generation(root.store)
            if generation.generation != settled.generation:
                raise DamageError(
                    f"{root.store} has generation {generation.generation}, not {settled.generation}, which run {run.run_id} "
                    "made: it cannot be exported any more; run with --full"
                )
            exported = export_task.export_vectors(export, generation, on_event, fan_out)
            lost = measure_loss(open_corpus(corpus_dir), generation, export.export_dir, config.threads, on_event)
            return records.ExportStep(**exported | {"metrics": exported["metrics"] | lost})

        run.step(records.ExportStep, run.run_id, make)


@needs_server
def judge_release(night: NightContext, run: Run) -> None:
    """Compare the release with the champion, rule by rule. Records the step "gate". Changed gate settings judge again.

    The same command also judges again until the release is registered, because the champion may have changed.
    """
    with night.reporter.step("gate") as on_event:
        if not run.record().steps.registered:
            run.reopen(records.GateStep)
        _judge(night, run, on_event)


@needs_server
def register_release(night: NightContext, run: Run) -> None:
    """Log the run to MLflow, register the release, and move the aliases if the gate passed. Records the step "register"."""
    root, publish = night.root, night.config.publish
    with night.reporter.step("register") as on_event:

        def make() -> records.RegisterStep:
            from surf2vec.tasks.registry.publish import publish_release  # imports MLflow, for seconds

            promotion.pin_release(root, run.run_id)  # before it serves, because a rollback needs it
            export_dir = root.export(run.run_id)
            registered = publish_release(root, publish, run.record(), export_dir, on_event)
            promotion.release_pins(root, publish)
            return registered

        done = run.record().steps.registered
        if done and not is_served(root, publish, done):
            run.reopen(records.RegisterStep)
        try:
            run.step(records.RegisterStep, digest_verdict(run, publish), make)
        except promotion.ChampionMovedError as error:
            log(on_event, str(error))
            run.reopen(records.GateStep)
            _judge(night, run, on_event)
            run.step(records.RegisterStep, digest_verdict(run, publish), make)


def push_release(night: NightContext, run: Run) -> None:
    """Push what serves to every store of `publish.stores`. Records the step "push".

    It is pushed whatever the gate said of tonight's release, so that a store that was away catches up. One that fails raises an
    alarm and leaves the night as it is.
    """
    if not night.config.publish.stores:
        return
    with night.reporter.step("push") as on_event:
        results = [_push_to(night, url, on_event) for url in night.config.publish.stores]
    run.record_steps(records.PushStep(stores=results, seconds=sum(one.get("seconds", 0.0) for one in results)))


def _push_to(night: NightContext, url: str, on_event: OnEvent) -> dict[str, Any]:
    """Push what serves to one store. Returns the result, or the store and its error."""
    root, publish, place = night.root, night.config.publish, mask_credentials(url)
    try:
        uri, registry = f"models:/{publish.model_name}@champion", registry_uri(root, publish)
        with open_store(url) as store, open_pushed(root, uri, registry, on_event) as pushed:
            return push(store, pushed, False, on_event, read_tombstones(root))
    except SurfError as error:
        log(on_event, f"the push to {place} failed, the release stays: {error}")
        champion = read_registry(root, publish).serving or "none"
        night.reporter.raise_alarm(PUSH_FAILED, champion, store=place, reason=str(error))
        return {"store": place, "error": str(error)}


@needs_server
def write_reports(night: NightContext, run: Run) -> None:
    """Write the report into the run's folder, and log it to the run in MLflow."""
    path, publish = run.folder / "report.html", night.config.publish

    def make() -> records.ReportStep:
        from surf2vec.tasks.registry.publish import attach_report

        record = add_serving(night.root, publish, run.record())
        write_report(record, night.root.export(run.run_id), path)
        attach_report(night.root, publish, record.require(records.RegisterStep), path)
        return records.ReportStep(report=str(path))

    run.step(records.ReportStep, digest_verdict(run, publish), make)
    write_nights_page(night.root, night.config.publish)
    night.reporter.add_night(night.config.publish, run)


def _judge(night: NightContext, run: Run, on_event: OnEvent) -> None:
    """Judge the release and record the record of step "gate". A release that is held back raises an alarm."""
    gate = night.config.gate

    def make() -> records.GateStep:
        registry = read_registry(night.root, night.config.publish)
        promotion.refuse_lost_champion(night.root, registry, run.run_id)
        spaces = {version.release: version.tags.get("space_id", "") for version in registry.versions}
        window = select_window(night.root, night.since, night.until, night.config.window_days)
        has_served = any("promoted_at" in one.tags for one in promotion.versions_of(night.root, registry, run.run_id))
        case = gate_task.open_case(run, gate, registry.serving, spaces, window, has_served)
        judged = records.GateStep(**gate_task.judge_release(case))
        is_first = judged.verdict == "first"
        log(on_event, "there is no champion to compare the release with" if is_first else describe_gate(judged))
        return judged

    result = run.step(records.GateStep, digest_gate(run, gate), make)
    if result.is_held:
        night.reporter.raise_alarm(GATE_HELD, run.run_id, held_by=", ".join(result.held_by))
    night.reporter.add_table(
        night.config.publish, "gate", shown_values(result.table), as_markdown(describe_gate(result))
    )
