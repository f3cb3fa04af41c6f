"""Finds damage in the copies of releases in a root's own registry, without MLflow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry.releases import read_model
from surf2vec.tasks.registry.versions import Version
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.release.release_reader import list_files
from surf2vec.tasks.root.identity import registry_uri
from surf2vec.tasks.root.records import RegisterStep
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.system.files import digest_file, read_json, verify_file

TAG_SHA256, TAG_PATH = "state_sha256", "state_path"


def is_served(root: Root, publish: PublishConfig, registered: RegisterStep) -> bool:
    """Return whether the registered version's copy is intact; True if it was deleted, or on a server, which checks its own."""
    uri = registry_uri(root, publish)
    if not uri.startswith("sqlite:///"):
        return True
    version = read_model(uri, registered.model_name).get(registered.model_version)
    return version is None or not any(find_faults(version))


def find_faults(version: Version) -> Iterator[str]:
    """Yield a line for each missing or altered file of a version's copy.

    For a version by reference only the manifest is read. `surf2vec pull` and the served model check copies on a server.
    """
    folder, tags = version.folder, version.tags
    if folder is None or "export_path" not in tags:
        return
    is_copy = "export_uri" not in tags
    if not (folder / "MLmodel").exists():
        yield f"{folder / 'MLmodel'} is missing"
    yield from (f"{path} is empty" for path in sorted(folder.rglob("*")) if path.is_file() and not path.stat().st_size)
    yield from _find_altered(folder / tags["export_path"], tags["manifest_sha256"], is_copy)
    if is_copy and TAG_SHA256 in tags:
        yield from _find_altered(folder / tags[TAG_PATH], tags[TAG_SHA256], is_copy)


def _find_altered(folder: Path, digest: str, has_files: bool) -> Iterator[str]:
    """Yield a line for each altered file: the manifest of an export or a state, and with `has_files` the files that it names."""
    path = folder / EXPORT_MANIFEST
    if not path.exists() or digest_file(path) != digest:
        yield f"{path} is missing or not the one that was registered"
        return
    manifest: dict[str, Any] = read_json(path) if has_files else {"files": {}}
    for name, about in (manifest["files"] if "files" in manifest else list_files(manifest)).items():
        try:
            verify_file(folder / name, about)
        except DamageError as error:
            yield str(error)
