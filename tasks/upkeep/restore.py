"""`surf2vec restore`: makes a root's store, corpus and export from a release, after the machine was lost.

Vectors and optimizer state are the same bits. There are no events and no tokens (`tasks/registry/release_state.py` explains
why). The next night trains the users in its logs, starting from their old vectors. A release has no fingerprint of the
key of pseudonyms: the key must be in the environment. sources.json is written last: without it there is no root. The new root
takes the identity of the lost one (`tasks/root/identity.py`): do not continue both.
"""

import time
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

import numpy as np

from surf2vec.tasks.config import IngestConfig, PublishConfig
from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST, open_building_folders
from surf2vec.tasks.corpus.folder import publish as publish_corpus
from surf2vec.tasks.corpus.window import name_corpus
from surf2vec.tasks.ingest.sources import Catalog, read_catalog
from surf2vec.tasks.ingest.user_key import look_up_key
from surf2vec.tasks.registry.faults import TAG_PATH, TAG_SHA256
from surf2vec.tasks.registry.pull import Fetcher, find_version, is_whole, pull, referenced_folder
from surf2vec.tasks.registry.release_state import FORMAT_VERSION, KEY_FINGERPRINT, STATE_MANIFEST
from surf2vec.tasks.registry.versions import Version
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.report.report import write_report
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.identity import ROOT_TAG, read_root_id, registry_uri, remember_registry
from surf2vec.tasks.root.records import ReportStep, RunRecord, parse_run_record
from surf2vec.tasks.root.run import Root, Run, open_scratch_folder
from surf2vec.tasks.users.pseudonyms import fingerprint
from surf2vec.tasks.users.tombstones import FILE, KEY_FILE
from surf2vec.trainer.errors import ConfigError, DamageError, InputError
from surf2vec.trainer.events import OnEvent, ignore_event, log
from surf2vec.trainer.store.generation import has_generation, read_manifest, write_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST
from surf2vec.trainer.store.tokens import partition_name
from surf2vec.trainer.store.writer import remove_unreferenced
from surf2vec.trainer.system.files import describe_file, link_file, sync_path, sync_paths


def restore(root: Root, uri: str, tracking_uri: str, on_event: OnEvent = ignore_event) -> dict[str, Any]:
    """Make a root from the release that `uri` names. Returns a summary. The caller holds the locks of root and store.

    If it is killed, the same call finishes. Raises InputError for an unknown release or one without state, ConfigError for a
    root that has another store or events, DamageError naming a file that differs from the registered one.
    """
    started = time.monotonic()
    version = find_version(uri, tracking_uri)
    release = version.tags["release"]
    _check_root(root, release)
    pulled = pull(uri, root.export(release), tracking_uri, on_event)
    with open_scratch_folder(root, "restore") as scratch:
        state = _fetch_state(tracking_uri, version, scratch, on_event)
        record = parse_run_record(state["record"], f"{STATE_MANIFEST} of {uri}")
        state["corpus"]["made_from"][KEY_FINGERPRINT] = key_fingerprint = _check_key(record, state["corpus"])
        _restore_corpus(root, scratch, state["corpus"])
        _restore_store(root, release, scratch, state)
    if not Run(root, release).record_path.exists():
        Run(root, release).amend(lambda _: record)
    generation, sources = state["generation"], state["sources"]
    remember_registry(root, version.tags.get(ROOT_TAG) or read_root_id(root) or uuid4().hex, tracking_uri)
    if not root.sources.exists():
        Catalog(generation["partitions"], key_fingerprint, sources["rules"]).write(root)
    if not (root.path / FILE).exists():
        log(on_event, f"the list of forgotten users is lost: if any, restore {KEY_FILE} and {FILE} before new logs")
    return {
        "release": release,
        "model_version": version.number,
        "window_id": state["corpus"]["window_id"],
        "generation": generation["generation"],
        "users": pulled["num_users"],
        "items": pulled["num_items"],
        "state_bytes": sum(about["bytes"] for about in state["files"].values()),
        "seconds": round(time.monotonic() - started, 3),
    }


def restore_run_record(root: Root, publish: PublishConfig, release: str, on_event: OnEvent = ignore_event) -> bool:
    """Restore the record of a release of this root from its MLflow run if its run.json is missing. Returns whether it did.

    The MLflow run has the record from before the registration. Registering and reporting again complete it.
    """
    run, export_dir = Run(root, release), root.export(release)
    if run.record_path.exists() or not (export_dir / EXPORT_MANIFEST).exists():
        return False
    from surf2vec.tasks.registry import mlflow_runs  # imports MLflow, for seconds
    from surf2vec.tasks.registry.publish import publish_release

    uri, report_path = registry_uri(root, publish), run.folder / "report.html"
    try:
        document = mlflow_runs.read_document(uri, publish.experiment, release, "run.json")
        record = parse_run_record(document, f"run.json of run {release} in the registry")
    except DamageError as error:
        log(on_event, f"the record of release {release} is gone, and cannot be restored: {error}")
        return False
    registered = publish_release(root, publish, record, export_dir, on_event)
    record = record.replace(steps=record.steps.replace(registered, ReportStep(report=str(report_path))))
    run.amend(lambda _: record)
    write_report(record, export_dir, report_path)
    log(on_event, f"the record of release {release} was gone: restored from {mask_credentials(uri)}")
    return True


def _check_root(root: Root, release: str) -> None:
    """Raise ConfigError if the root has events or vectors that the release would replace."""
    if root.sources.exists() and read_catalog(root).entries:
        raise ConfigError(f"{root.path} has events of its own: name a new folder with --root")
    if not has_generation(root.store):
        return
    pinned = root.store / "pinned" / f"{release}.json"
    if not pinned.exists() or read_manifest(pinned) != read_manifest(root.store / STORE_MANIFEST):
        raise ConfigError(f"{root.path} has the vectors of another release: name a new folder with --root")


def _fetch_state(tracking_uri: str, version: Version, folder: Path, on_event: OnEvent) -> dict[str, Any]:
    """Fetch the state into the folder and check every file. Returns its manifest."""
    if TAG_SHA256 not in version.tags:
        raise InputError(
            f"{version.place} carries no state: it was registered with publish.with_state=false, by an earlier version, or after "
            "its generation was gone; name another version"
        )
    fetcher = Fetcher(tracking_uri, on_event, TAG_PATH, "restore")
    manifest = fetcher.get_manifest(version, folder / STATE_MANIFEST, TAG_SHA256)
    if (found := manifest["format_version"]) != FORMAT_VERSION:
        raise InputError(
            f"the state of {version.place} is of format {found}, not {FORMAT_VERSION}: use the version that made it"
        )
    older = referenced_folder(version) / version.tags[TAG_PATH] if "export_uri" in version.tags else None
    fetcher.get_all(version, manifest["files"], folder, older)
    return manifest


def _check_key(record: RunRecord, corpus: dict[str, Any]) -> str | None:
    """Return the fingerprint of the key of pseudonyms, or None without. Raises ConfigError unless it is the key of the corpus."""
    name = record.setting("ingest", "user_key_env")
    if not (key := look_up_key(IngestConfig(user_key_env=name))):
        return None
    found = fingerprint(key)
    if name_corpus(corpus["made_from"] | {KEY_FINGERPRINT: found}) != corpus["window_id"]:
        raise ConfigError(f"the key in {name} is not that of the pseudonyms of the release: set it to that")
    return found


def _restore_corpus(root: Root, scratch: Path, manifest: dict[str, Any]) -> None:
    """Write the corpus without tokens: every user keeps row, id and newest day."""
    folder = root.corpus(manifest["window_id"])
    if (folder / CORPUS_MANIFEST).exists():
        return
    with open_building_folders(root, manifest["window_id"]) as (building, _):
        for path in sorted((scratch / "corpus").iterdir()):
            link_file(path, building / path.name)
        for partition, num_rows in enumerate(manifest["users"]):
            arrays = {
                "offsets": np.zeros(num_rows + 1, dtype=np.int64),
                "tokens": np.zeros(0, dtype=np.int32),
                "held_out": np.full(num_rows, -1, dtype=np.int32),
            }
            for kind, array in arrays.items():
                np.save(building / f"{partition_name(partition)}.{kind}.npy", array, allow_pickle=False)
        emptied: dict[str, Any] = dict.fromkeys(("num_tokens", "num_held_out", "num_choosing"), 0)
        emptied |= {"tokens": [0] * manifest["partitions"], "held_out_key_max": -1}
        files = {path.name: describe_file(path) for path in sorted(building.iterdir())}
        publish_corpus(building, folder, manifest | emptied | {"base": None, "without_tokens": True, "files": files})


def _restore_store(root: Root, release: str, scratch: Path, state: dict[str, Any]) -> None:
    """Put the generation's files into the store, pin it under the release's name, and make it the current one."""
    files = {name: about for name, about in state["files"].items() if name.startswith("store/")}
    for name, about in files.items():
        target = root.store / PurePosixPath(name).name
        if not is_whole(target, about):
            target.unlink(missing_ok=True)
            link_file(scratch / name, target)
    sync_paths(root.store / PurePosixPath(name).name for name in files)
    sync_path(root.store)
    for name in (f"pinned/{release}.json", STORE_MANIFEST):
        write_manifest(root.store, name, state["generation"])
    remove_unreferenced(root.store)
