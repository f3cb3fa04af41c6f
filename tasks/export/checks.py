"""What an export refuses, with the numbers: a corpus and a generation that do not fit, bad vectors, too little room."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tasks.export.vector_files import BYTES_A_NUMBER
from trainer.errors import DamageError, ResourceError, TrainingError
from trainer.store.generation import Generation
from trainer.system.memory import private_bytes
from trainer.system.units import size


def check_fit(corpus: dict[str, Any], generation: Generation, corpus_dir: Path) -> None:
    """Raise DamageError unless the generation was trained on a corpus of this shape."""
    found = (generation.num_partitions, generation.num_items)
    expected = (corpus["partitions"], corpus["num_items"])
    if found != expected:
        raise DamageError(
            f"generation {generation.generation} has {found[0]:,} micro-partitions and {found[1]:,} items but "
            f"{corpus_dir} has {expected[0]:,} and {expected[1]:,}: it was trained on another corpus; train again"
        )


def check_vocabulary(path: Path, num_rows: int, generation: Generation) -> None:
    """Raise DamageError unless the vocabulary has as many rows as the generation has items."""
    if num_rows != generation.num_items:
        raise DamageError(
            f"{path} has {num_rows:,} items where generation {generation.generation} has {generation.num_items:,}: the store "
            "and the corpus do not belong together; train again"
        )


def check_rows(what: str, vectors: np.ndarray, rows: int, vector_size: int) -> None:
    """Raise DamageError on another shape than (rows, vector_size), TrainingError on vectors that are not finite."""
    if vectors.shape != (rows, vector_size):
        raise DamageError(
            f"{what} has vectors of shape {vectors.shape} where the corpus needs {(rows, vector_size)}: "
            "the store and the corpus do not belong together; train again"
        )
    num_bad = rows - int(np.isfinite(vectors).all(axis=1).sum())
    if num_bad:
        raise TrainingError(
            f"{what} has {num_bad:,} of {rows:,} vectors that are not finite, so nothing was exported: "
            "lower train.alpha and train again"
        )


def check_disk(folder: Path, corpus: dict[str, Any], vector_size: int, dtype: str, index_bytes: int) -> None:
    """Raise ResourceError when the export will not fit; names are reckoned at 40 bytes a user, 80 an item."""
    user_bytes = int(BYTES_A_NUMBER[dtype] * vector_size) + 40
    needed = index_bytes + corpus["num_users"] * user_bytes + corpus["num_items"] * (4 * vector_size + 80)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(
            f"the export needs about {needed / 1e9:,.2f} GB but the disk of {folder.parent} has {free / 1e9:,.2f} GB "
            "free: remove old releases there, or give a root on a larger disk"
        )


def check_memory(
    memory_bytes: int, corpus: dict[str, Any], generation: Generation, vector_size: int, item_rows: int
) -> int:
    """The bytes of the budget that are free; `vector_size`: of the vectors as exported; `item_rows`: items at a time.

    Raises ResourceError when a micro-partition or so many items do not fit.
    """
    held_bytes = private_bytes()
    room_bytes = memory_bytes - held_bytes
    row_bytes = (
        4 * (3 * generation.vector_size + 2 * vector_size) + 200
    )  # as read, widened, projected, encoded; its name
    needs = {f"a micro-partition of {max(corpus['users']):,} users": max(corpus["users"]) * row_bytes}
    if generation.has_item_vectors:
        num_items = min(item_rows, corpus["num_items"])
        needs[f"{num_items:,} items at a time"] = num_items * row_bytes
    for what, needed_bytes in needs.items():
        if needed_bytes > room_bytes:
            raise ResourceError(
                f"exporting {what} needs {size(needed_bytes)} of memory, but of the budget of {size(memory_bytes)} the "
                f"process itself takes {size(held_bytes)}: raise --host-memory"
            )
    return room_bytes
