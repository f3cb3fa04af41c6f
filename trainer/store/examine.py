"""Is a store what its manifests say? Reads every file, changes nothing."""

from pathlib import Path

from trainer.errors import DamageError
from trainer.store.generation import Generation
from trainer.store.images import verify_image
from trainer.store.manifests import STORE_MANIFEST, is_of_earlier_version, read_manifest
from trainer.store.writer import referenced_files
from trainer.system.files import read_json

_WAY_OUT = "bring back a copy, or remove {} and run again: what needs it is trained anew, and may be held back as another space"


def examine_store(folder: Path) -> list[tuple[str, str, str]]:
    """What `doctor` says of a store: (level "ok" | "warning" | "damage", place, message) a finding."""
    findings: list[tuple[str, str, str]] = []
    manifests = [folder / STORE_MANIFEST, *sorted((folder / "pinned").glob("*.json"))]
    for path in (path for path in manifests if path.exists()):
        try:
            if is_of_earlier_version(read_json(path)):
                findings.append(("warning", str(path), "is of an earlier version: the next run trains anew"))
                continue
            generation = Generation(folder, read_manifest(path))
            for name, entry in generation.files().items():
                verify_image(folder / name, entry)
            findings.append(
                ("ok", str(path), f"generation {generation.generation}: {len(generation.files())} files whole")
            )
        except DamageError as error:
            findings.append(("damage", str(path), f"{error}; {_WAY_OUT.format(path)}"))
        except (KeyError, TypeError, AttributeError):
            findings.append(
                ("damage", str(path), f"is not a manifest of a store: it was altered; {_WAY_OUT.format(path)}")
            )
    if not any(level == "damage" for level, _, _ in findings):
        orphans = {path.name for path in folder.glob("*.safetensors")} - referenced_files(folder)
        if orphans:
            findings.append(
                ("warning", str(folder), f"{len(orphans)} files belong to no generation; the next commit removes them")
            )
    return findings
