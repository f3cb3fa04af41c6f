"""The manifests of a store, which list its valid files. Each has a digest of its content."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.system.files import raise_if_unwritten, read_json, write_manifest_json

FORMAT_VERSION = 6
STORE_MANIFEST = "MANIFEST.json"


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest in `path`. Raises DamageError when it is missing, altered or of another version."""
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format_version") != FORMAT_VERSION:
        raise DamageError(
            f"{path} is not a manifest of format {FORMAT_VERSION}: it was altered or is of another version"
        )
    return manifest


def write_manifest(folder: Path, name: str, manifest: dict[str, Any]) -> None:
    """Write the manifest and its digest to the file `name` of a store."""
    with raise_if_unwritten(folder, name):
        write_manifest_json(folder / name, manifest)


@contextmanager
def explain_damage(folder: Path) -> Iterator[None]:
    """Add to a DamageError in the block how a person can repair it."""
    try:
        yield
    except DamageError as error:
        raise DamageError(
            f"{error}; nothing was trained on it: restore a copy, or remove {folder / STORE_MANIFEST} and the files in "
            f"{folder / 'pinned'} that name it, and train again"
        ) from None


def next_generation(store_dir: Path) -> int:
    """Return the number of the next generation: above that of all generations, pinned ones included."""
    return 1 + max((read_json(path)["generation"] for path in manifest_paths(store_dir)), default=0)


def manifest_paths(folder: Path) -> list[Path]:
    """Return the paths of the current and the pinned manifests of a store."""
    current = folder / STORE_MANIFEST
    return [*([current] if current.exists() else []), *sorted((folder / "pinned").glob("*.json"))]
