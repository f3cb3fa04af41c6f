"""What a night returns, and whether it is complete already. Needs neither Prefect nor MLflow, whose imports take seconds."""

from typing import Any

from surf2vec.tasks.config import GateConfig, PublishConfig
from surf2vec.tasks.ingest.deliveries import find_known
from surf2vec.tasks.night.context import NightContext
from surf2vec.tasks.night.root_settings import find_new
from surf2vec.tasks.night.runs import find_run, list_gone
from surf2vec.tasks.registry.faults import is_served
from surf2vec.tasks.registry.releases import add_serving
from surf2vec.tasks.report.measured import list_train_metrics
from surf2vec.tasks.report.tables import STEPS, explain_held, list_facts, list_losses, list_notes
from surf2vec.tasks.root import records
from surf2vec.tasks.root.identity import find_record_uri
from surf2vec.tasks.root.run import Run
from surf2vec.trainer.system.files import digest_json, is_locked


def find_finished(night: NightContext, logs: list[str]) -> Run | None:
    """Return the run of a night that is complete, with all that it made; None if there may be something to do.

    Like the night itself it compares all events with their checksums, and the registered copy with its own. It changes nothing.
    """
    root, config = night.root, night.config
    is_busy = is_locked(root.path / ".lock") or root.forgetting.exists() or find_new(root, config)
    if is_busy or config.publish.stores or not find_known(root, logs, config.ingest, config.store.partitions):
        return None
    run = find_run(root, night.request()[1])
    if run is None or list_gone(run):
        return None
    steps = run.record().steps
    if steps.unchanged:
        return run if Run(root, steps.unchanged.release).record_path.exists() else None
    if not {*STEPS, "settle", "report"} <= steps.ended().keys():
        return None
    gate, verdict = digest_gate(run, config.gate), digest_verdict(run, config.publish)
    is_current = steps.gate.digest == gate and steps.registered.digest == steps.report.digest == verdict
    return run if is_current and is_served(root, config.publish, steps.registered) else None


def summarize_finished(run: Run, publish: PublishConfig) -> dict[str, Any]:
    """Return what `surf2vec run --json` prints of a run that is complete."""
    if unchanged := run.record().steps.unchanged:
        base = Run(run.root, unchanged.release)
        return summarize(base, publish) | {"run_id": run.run_id, "unchanged_since": base.run_id}
    return summarize(run, publish)


def digest_gate(run: Run, gate: GateConfig) -> str:
    """Return a digest of the gate's settings, as the input of the step "gate"."""
    return digest_json({"run": run.run_id, "gate": gate.model_dump(mode="json")})


def digest_verdict(run: Run, publish: PublishConfig) -> str:
    """Return a digest of the verdict of the gate and of a person, as the input of the steps "register" and "report"."""
    gate = add_serving(run.root, publish, run.record()).require(records.GateStep)
    return digest_json({"verdict": gate.verdict, "overridden": gate.overridden, "digest": gate.digest})


def announce_run(record: records.RunRecord) -> str:
    """Return one line about what a run will do: train all users, train the changed users, do the remaining steps, or nothing."""
    run, ended = record.run_id, [name for name in record.steps.ended() if name != "ingest"]
    begun_at = record.created_at[:16].replace("T", " ")
    if record.steps.unchanged:
        release = record.steps.unchanged.release
        return f"nothing to do: run {run}, of {begun_at}, found no user whose pages changed since release {release}"
    if record.steps.report:
        return f"nothing to do: run {run}, of {begun_at}, is complete already; its results follow"
    if ended:
        return f"resuming run {run}, of {begun_at}; done: {', '.join(ended)}"
    if record.base:
        return f"run {run} continues from release {record.base.release}: only users whose pages changed are trained"
    return f"run {run} trains all users: {record.full_because or 'as requested'}"


def summarize(run: Run, publish: PublishConfig) -> dict[str, Any]:
    """Return what `surf2vec run --json` prints, from the run's record. The alias is the version's current one."""
    record = add_serving(run.root, publish, run.record())
    recorded, gate_keys = record.require, ("passes", "verdict", "held_by", "overridden", "table")
    ingest, export = recorded(records.IngestStep), recorded(records.ExportStep)
    registered = recorded(records.RegisterStep)
    corpus, settled = recorded(records.CorpusStep), record.steps.settle
    return {
        "run_id": run.run_id,
        "release": export.release,
        "model_name": registered.model_name,
        "model_version": registered.model_version,
        "alias": registered.alias,
        "gate": {name: getattr(recorded(records.GateStep), name) for name in gate_keys},
        "tracking_uri": find_record_uri(run.root, record),
        "users": export.num_users,
        "items": export.num_items,
        "events": ingest.events,
        "rejected": ingest.num_rejected,
        "tokens": corpus.num_tokens,
        "facts": list_facts(record),
        "funnel": list_losses(record),
        "notes": [*list_notes(record), *explain_held(record)],
        "night": {
            "kind": settled.kind,
            "base": record.base.release if record.base else None,
            "full_because": record.full_because,
            "space_id": settled.space_id or record.run_id,
            "alignment": settled.cosine,
            "changed": corpus.num_users if corpus.num_changed is None else corpus.num_changed,
            "new_users": corpus.num_new_users,
            "left": corpus.num_left,
            "new_items": corpus.num_new_items,
        },
        "export_dir": str(run.root.export(run.run_id)),
        "report": str(run.folder / "report.html"),
        "training": list_train_metrics(recorded(records.TrainStep)),
        "metrics": recorded(records.EvaluateStep).metrics | export.metrics,
        "seconds": {name: step.seconds for name, step in record.steps.ended().items() if step.seconds is not None},
    }
