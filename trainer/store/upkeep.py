"""Maintains a store: checks it, and erases rows."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.model.rows import Rows
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.images import verify_image
from surf2vec.trainer.store.layout import image_of_rows, read_rows
from surf2vec.trainer.store.manifests import manifest_paths, read_manifest
from surf2vec.trainer.store.writer import Writer, referenced_files

_WAY_OUT = (
    "restore a copy, or remove {} and run again: that may train everything, in another space, which the gate may hold"
)


def examine_store(folder: Path) -> list[tuple[str, str, str]]:
    """Return the findings of `doctor` for a store: (level "ok" | "warning" | "damage", place, message). Reads every file."""
    findings: list[tuple[str, str, str]] = []
    for path in manifest_paths(folder):
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
    writer = Writer(generation.folder, number, generation.manifest)
    for partition, gone in going.items():
        rows = read_rows(generation.folder, generation.manifest["users"][str(partition)])
        if len(rows.squares) != num_users[partition]:
            raise DamageError(
                f"micro-partition {partition} of generation {generation.generation} has {len(rows.squares):,} rows where its "
                f"corpus has {num_users[partition]:,} users: they do not belong together; nothing was changed"
            )
        kept = np.setdiff1d(np.arange(len(rows.squares)), gone)
        if len(kept):
            writer.write("users", partition, image_of_rows(Rows(rows.vectors[kept], rows.squares[kept])))
        else:  # a training writes no file for a micro-partition without users
            del writer.entries["users", partition]
    writer.sync()
    return writer.list_files(generation.num_blocks)["users"]
