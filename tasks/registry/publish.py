"""Registers a release: an MLflow run with the record, and a model version that contains the export or a reference to it.

Every reader of the registry can load a copy. If the export has `publish.copy_below` bytes or more, the version has only the
manifest and the folder's URI: nothing is sent, and the folder must stay where it is.

A version is identified by the sha256 of its export's manifest. So registering a release again adds nothing, and the next call
completes an interrupted one: the model's files come first, then the version with its tags, then the aliases.
"""

from datetime import datetime
from pathlib import Path
from typing import Any

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry import mlflow_runs, tracking
from surf2vec.tasks.registry.faults import TAG_PATH, TAG_SHA256, find_faults
from surf2vec.tasks.registry.mlflow_runs import Metric
from surf2vec.tasks.registry.promotion import settle_aliases
from surf2vec.tasks.registry.release_state import STATE, gather_state
from surf2vec.tasks.registry.releases import add_serving, read_model
from surf2vec.tasks.registry.tracking import Content
from surf2vec.tasks.registry.versions import Version
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, README
from surf2vec.tasks.release.release_reader import list_files
from surf2vec.tasks.report.cards import list_night, model_card, name_night, version_card
from surf2vec.tasks.report.measured import list_train_metrics
from surf2vec.tasks.root.credentials import mask_credentials, mask_values
from surf2vec.tasks.root.identity import ROOT_TAG, claim_registry, registry_uri
from surf2vec.tasks.root.records import RegisterStep, RunRecord
from surf2vec.tasks.root.run import Root, open_scratch_folder
from surf2vec.tasks.root.wording import flatten
from surf2vec.trainer.events import OnEvent, ignore_event, log
from surf2vec.trainer.system.files import digest_file, read_json, replace_file, sync_folders, verify_all
from surf2vec.trainer.system.units import parse_bytes

COST = ("seconds", "peak_bytes", "stall")
DECIMALS = 4  # MLflow's pages show all digits; run.json has the exact figures
DESCRIBED = {"window_until", "hit_at_10", "popularity_hit_at_10"}  # tags
CURVE = ("loss", "heldout_loss", "tokens_per_second")
QUALITY = ("hit_at_10", "popularity_hit_at_10", "mrr_at_20", "popularity_mrr_at_20", "coverage_at_20")
GATE = ("passes", "hit_at_10", "mrr_at_20", "cosine_median", "cosine_p1", "newest_day_events", "missing_days")


def publish_release(
    root: Root,
    publish: PublishConfig,
    record: RunRecord,
    export_dir: Path,
    on_event: OnEvent = ignore_event,
    replaced: Version | None = None,
) -> RegisterStep:
    """Register the export with the record of its run, and write its README. Returns the record of this step.

    The version becomes challenger, and champion if the step "gate" passed or if it takes the place of `replaced`. Raises
    DamageError if the export is incomplete, ResourceError if MLflow cannot be reached or written to.
    """
    manifest = read_json(export_dir / EXPORT_MANIFEST)
    way_out = f"remove {export_dir} and run the same command again: it repeats the export"
    verify_all((export_dir / name, about, way_out) for name, about in list_files(manifest).items())
    uri = registry_uri(root, publish)
    own = {"manifest_sha256": digest_file(export_dir / EXPORT_MANIFEST), ROOT_TAG: claim_registry(root, publish)}
    tags = {name: manifest[name] for name in ("release", "space_id")} | {mlflow_runs.NAME_TAG: name_night(record)}
    mlflow_run = mlflow_runs.open_run(root, publish, record.run_id, tags, flatten(record.config), _started_ms(record))
    versions = (one for one in read_model(uri, publish.model_name).versions if not one.is_copied)
    version = next((one for one in versions if own.items() <= one.tags.items()), None)
    if version is None or (uri.startswith("sqlite:///") and any(find_faults(version))):
        # The record of what it replaces may be gone with a machine.
        described = {name: replaced.tags[name] for name in DESCRIBED & replaced.tags.keys()} if replaced else {}
        version = _copy_release(root, publish, record, export_dir, mlflow_run, version, own | described, on_event)
    settle_aliases(root, publish, version.number, record.steps.gate, replaced)
    registered = RegisterStep(
        model_name=publish.model_name,
        model_version=version.number,
        mlflow_run_id=mlflow_run,
        storage=version.tags.get("storage", "copy"),
        tracking_uri=mask_credentials(uri),
        mlflow_page=mlflow_runs.find_page(uri, mlflow_run),
    )
    ended = add_serving(root, publish, record.replace(steps=record.steps.replace(registered)))
    card = version_card(ended, manifest, _count_bytes(manifest), version.tags.get("export_uri"))
    with replace_file(export_dir / README) as temporary:
        temporary.write_text(f"# {name_night(record)}\n\n{card}\n", encoding="utf-8")
    files = [export_dir / EXPORT_MANIFEST]
    documents, note = {"run.json": mask_values(record.to_json())}, "\n".join(list_night(ended))
    mlflow_runs.log_corpus(uri, mlflow_run, root.corpus(manifest["created_from"]["window_id"]), record.steps.corpus)
    mlflow_runs.log_run(uri, mlflow_run, list_metrics(record), files, documents, note, "FINISHED")
    return ended.steps.registered


def _copy_release(
    root: Root, publish: PublishConfig, record: RunRecord, export_dir: Path, mlflow_run: str, version: Version | None,
    own: dict[str, str], on_event: OnEvent,
) -> Version:  # fmt: skip
    """Send the release to MLflow and register a version, or repair the copy of `version`. own: tags of this root's release."""
    manifest, uri = read_json(export_dir / EXPORT_MANIFEST), registry_uri(root, publish)
    size_bytes = _count_bytes(manifest)
    is_copy = "export_uri" not in version.tags if version else size_bytes < parse_bytes(publish.copy_below)
    if is_copy:  # `export_path` says where in the model the manifest is
        artifacts, config = {"export": export_dir}, {}
        tags = own | {"storage": "copy", "export_path": f"artifacts/{export_dir.name}"}
    else:
        artifacts, config = {"manifest": export_dir / EXPORT_MANIFEST}, {"export_uri": export_dir.resolve().as_uri()}
        tags = own | {"storage": "reference", "export_path": "artifacts"} | config
    with open_scratch_folder(root, "mlflow") as scratch:
        state = (scratch if is_copy else export_dir) / STATE
        if publish.with_state and (digest := gather_state(root, manifest, record, state)):
            tags |= {TAG_SHA256: digest, TAG_PATH: f"artifacts/{STATE}" if is_copy else STATE}
            artifacts |= {STATE: state} if is_copy else {}
        content = Content(artifacts, config, tags, "pages" if "trail" in manifest else "seen")
        by_reference = "" if is_copy else f" by reference: they must stay in {export_dir.resolve()}"
        with_state = " with its state" if TAG_SHA256 in tags else ""
        again = f", once more, as the copy of version {version.number} is damaged," if version else ""
        message = f"registering{again} {size_bytes / 1e6:,.1f} MB{with_state} at {mask_credentials(uri)}{by_reference}"
        log(on_event, message)
        sync_folders(export_dir)  # a state by reference was just written into it
        if version:
            tracking.repair_copy(uri, version, content, scratch)
            tracking.set_tags(uri, version, dict.fromkeys((TAG_SHA256, TAG_PATH)) | content.tags)
            return version
        model_id = tracking.log_model(uri, mlflow_run, content, scratch)
    cards = model_card(publish.model_name), version_card(record, manifest, size_bytes, content.config.get("export_uri"))
    # Tags by which releases are found and compared; everything else is on the version's card.
    metrics, until = record.steps.evaluate.metrics, record.steps.corpus.until
    tags = {name: manifest[name] for name in ("release", "space_id")} | ({"window_until": until} if until else {})
    tags |= {name: f"{metrics[name]:.4f}" for name in ("hit_at_10", "popularity_hit_at_10") if name in metrics}
    return tracking.register(uri, publish.model_name, model_id, mlflow_run, cards, tags | content.tags)


def attach_report(root: Root, publish: PublishConfig, registered: RegisterStep, report_path: Path) -> None:
    mlflow_runs.log_run(registry_uri(root, publish), registered.mlflow_run_id, files=[report_path])


def _count_bytes(manifest: dict[str, Any]) -> int:
    return sum(about["bytes"] for about in list_files(manifest).values())


def _started_ms(record: RunRecord) -> int:
    return int(datetime.fromisoformat(record.created_at).timestamp() * 1000)


def list_metrics(record: RunRecord) -> list[Metric]:
    """Return the metrics of a run, at most 30, grouped by the part before the slash, and the curves of its training.

    A curve's step is thousandths of an epoch. Timestamps come from the run, so logging the same record again adds no values.
    The report and run.json have all other figures, a version's card all rules of the gate.
    """
    steps = record.steps
    corpus, train, export, gate = steps.corpus, steps.train, steps.export, steps.gate
    measured, started_ms = list_train_metrics(train), _started_ms(record)
    values: dict[str, float | None] = {f"quality/{name}": steps.evaluate.metrics.get(name) for name in QUALITY}
    values |= {f"quality/{name}": value for name, value in export.metrics.items()}
    values |= {f"gate/{name}": gate.metrics.get(f"gate_{name}") for name in GATE}
    values |= {
        "data/users": export.num_users,
        "data/items": export.num_items,
        "data/tokens": corpus.num_tokens,
        "data/users_changed": corpus.num_changed,
        "data/items_new": corpus.num_new_items,
        "cost/seconds": sum(step.seconds or 0 for step in steps.ended().values()),
        "cost/export_bytes": export.bytes,
    }
    values |= {f"cost/train_{name}": measured[f"train_{name}"] for name in COST}
    metrics = [Metric(name, float(value), started_ms, 0) for name, value in values.items() if value is not None]
    for at in train.curve:
        at_ms, step = started_ms + round(1000 * at["seconds"]), round(1000 * at["epoch"])
        metrics += [Metric(f"train/{name}", float(at[name]), at_ms, step) for name in CURVE if at.get(name) is not None]
    return [Metric(one.key, round(one.value, DECIMALS), one.timestamp, one.step) for one in metrics]
