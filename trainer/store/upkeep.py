"""Maintains a store: checks it, erases rows, and switches to a manifest with more or fewer micro-partitions.

When micro-partitions were split or joined, the new manifest waits as `pinned/repartitioned.json`, so that its files are not
removed. A file of the root has the valid number of micro-partitions. If the waiting manifest has the same number, the next
writer makes it the current one, otherwise it removes it.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.model.rows import Rows
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.images import verify_image
from surf2vec.trainer.store.layout import image_of_rows, read_rows
from surf2vec.trainer.store.manifests import STORE_MANIFEST, read_manifest, write_manifest
from surf2vec.trainer.store.writer import Writer, referenced_files, remove_unreferenced
from surf2vec.trainer.system.files import read_json, sync_folder

_WAITING = "pinned/repartitioned.json"
_WAY_OUT = (
    "bring back a copy, or remove {} and run again: that may train anew, in another space, which the gate may hold back"
)


def examine_store(folder: Path) -> list[tuple[str, str, str]]:
    """Return the findings of `doctor` for a store: (level "ok" | "warning" | "damage", place, message). Reads every file."""
    findings: list[tuple[str, str, str]] = []
    manifests = [folder / STORE_MANIFEST, *sorted((folder / "pinned").glob("*.json"))]
    for path in (path for path in manifests if path.exists()):
        level, way_out = "damage", _WAY_OUT.format(path)
        try:
            generation = Generation(folder, read_manifest(path))
            for name, entry in generation.files().items():
                verify_image(folder / name, entry)
            level, message = "ok", f"generation {generation.generation}: {len(generation.files())} files whole"
        except DamageError as error:
            message = f"{error}; {way_out}"
        except (KeyError, TypeError, AttributeError):
            message = f"is not a manifest of a store: it was altered; {way_out}"
        findings.append((level, str(path), message))
    if not any(level == "damage" for level, _, _ in findings):
        orphans = {path.name for path in folder.glob("*.safetensors")} - referenced_files(folder)
        if orphans:
            message = f"{len(orphans)} files belong to no generation; the next commit removes them"
            findings.append(("warning", str(folder), message))
    return findings


def erase_rows(
    generation: Generation, going: dict[int, NDArray[np.int64]], num_users: list[int], number: int
) -> dict[str, Any]:
    """Write users' files without these rows for a generation `number`, and return their entries. Nothing is committed.

    going: micro-partition → rows, ascending; num_users: current rows of each micro-partition. A file with rows to erase is
    rewritten without gaps and with its delta's changes. All other rows keep their bits. One micro-partition is in memory at a
    time. Raises DamageError when a file has another number of rows, or was altered.
    """
    writer = Writer(generation.folder, number, generation.manifest["users"])
    for partition, gone in going.items():
        rows = read_rows(generation.folder, generation.manifest["users"][str(partition)])
        if len(rows.squares) != num_users[partition]:
            raise DamageError(
                f"micro-partition {partition} of generation {generation.generation} has {len(rows.squares):,} rows where its "
                f"corpus has {num_users[partition]:,} users: they do not belong together; nothing was changed"
            )
        kept = np.setdiff1d(np.arange(len(rows.squares)), gone)
        if len(kept):
            writer.write_users(partition, image_of_rows(Rows(rows.vectors[kept], rows.squares[kept])))
        else:  # a training writes no file for a micro-partition without users
            del writer.users[str(partition)]
    writer.sync()
    return writer.users


def has_waiting(folder: Path) -> bool:
    """Return whether a manifest waits in the store."""
    return (folder / _WAITING).exists()


def hold_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write a waiting manifest; its files are written. The caller holds the store's lock."""
    write_manifest(folder, _WAITING, manifest)


def settle_manifest(folder: Path, partitions: int | None) -> None:
    """Make the waiting manifest the current one if it has `partitions` micro-partitions; otherwise remove it.

    The caller holds the store's lock. After a crash, calling it again completes it. If the store was trained on meanwhile, its
    current manifest stays.
    """
    if not has_waiting(folder):
        return
    waiting, current = read_json(folder / _WAITING), read_json(folder / STORE_MANIFEST)
    if waiting["partitions"] == partitions and waiting["generation"] > current["generation"]:
        os.replace(folder / _WAITING, folder / STORE_MANIFEST)
    else:
        (folder / _WAITING).unlink()
    sync_folder(folder)
    remove_unreferenced(folder)
