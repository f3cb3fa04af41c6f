"""Is the copy that a root's own registry has of a release whole? Its files against what was registered. What a server keeps,
whoever reads it looks at: `surf2vec pull`, and the served model.
"""

from collections.abc import Iterator
from pathlib import Path

from tasks.export.export import EXPORT_MANIFEST, list_files
from tasks.registry import tracking
from tasks.registry.release_state import TAG_PATH, TAG_SHA256
from tasks.registry.tracking import Version
from trainer.errors import DamageError
from trainer.system.files import digest_file, read_json, verify_file


def find_faults(tracking_uri: str, version: Version) -> Iterator[str]:
    """What of a version's copy is missing or altered, a line each; of a version by reference, of its manifest."""
    is_own = tracking_uri.startswith("sqlite:///") and "export_path" in version.tags
    folder = tracking.find_folder(tracking_uri, version) if is_own else None
    if folder is None:
        return
    is_copy = "export_uri" not in version.tags
    if not (folder / "MLmodel").exists():
        yield f"{folder / 'MLmodel'} is missing"
    yield from (f"{path} is empty" for path in sorted(folder.rglob("*")) if path.is_file() and not path.stat().st_size)
    yield from _look_at(folder / version.tags["export_path"], version.tags["manifest_sha256"], is_copy)
    if is_copy and TAG_SHA256 in version.tags:
        yield from _look_at(folder / version.tags[TAG_PATH], version.tags[TAG_SHA256], is_copy)


def _look_at(folder: Path, digest: str, has_files: bool) -> Iterator[str]:
    """What of an export's or a state's manifest with this sha256, and of the files that it names, is not as it was registered."""
    path = folder / EXPORT_MANIFEST
    if not path.exists() or digest_file(path) != digest:
        yield f"{path} is missing or not the one that was registered"
        return
    manifest = read_json(path)
    for name, about in (
        (manifest["files"] if "files" in manifest else list_files(manifest)).items() if has_files else ()
    ):
        try:
            verify_file(folder / name, about)
        except DamageError as error:
            yield str(error)
