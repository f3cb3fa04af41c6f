"""What an export checks before it writes: that store and corpus fit, that vectors are finite, that disk and memory suffice."""

import shutil
from pathlib import Path

import numpy as np

from surf2vec.tasks.export.vector_files import BYTES_PER_NUMBER, ITEM_BATCH_ROWS
from surf2vec.trainer.errors import DamageError, ResourceError, TrainingError
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.system.memory import private_bytes
from surf2vec.trainer.system.units import size


def check_fit(corpus: Corpus, generation: Generation) -> None:
    """Raise DamageError unless the generation was trained on a corpus of this shape."""
    found = (generation.num_partitions, generation.num_items)
    expected = (corpus.num_partitions, corpus.num_items)
    if found != expected:
        raise DamageError(
            f"generation {generation.generation} has {found[0]:,} micro-partitions and {found[1]:,} items but "
            f"{corpus.folder} has {expected[0]:,} and {expected[1]:,}: it was trained on another corpus; train again"
        )


def check_rows(what: str, vectors: np.ndarray, rows: int, vector_size: int) -> None:
    """Raise DamageError if the shape is not (rows, vector_size), TrainingError if vectors are not finite."""
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


def estimate_bytes(num_users: int, num_items: int, vector_size: int, dtype: str, num_tables: int) -> int:
    """Return about how large an export is, without its index. Names are estimated at 40 bytes a user, 80 an item.

    num_tables: of items: their vectors, and the input vectors of the trail.
    """
    user_bytes = int(BYTES_PER_NUMBER[dtype] * vector_size) + 40
    return num_users * user_bytes + num_items * num_tables * (4 * vector_size + 80)


def check_disk(folder: Path, corpus: Corpus, vector_size: int, dtype: str, index_bytes: int, num_tables: int) -> None:
    """Raise ResourceError if the export will not fit on the disk."""
    needed = index_bytes + estimate_bytes(corpus.num_users, corpus.num_items, vector_size, dtype, num_tables)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(
            f"the export needs about {needed / 1e9:,.2f} GB but the disk of {folder.parent} has {free / 1e9:,.2f} GB "
            "free: run `surf2vec gc`, or use a root on a larger disk"
        )


def check_memory(memory_bytes: int, corpus: Corpus, generation: Generation, vector_size: int) -> int:
    """Return the free bytes of the budget. Raises ResourceError if a micro-partition or a batch of items does not fit."""
    held_bytes = private_bytes()
    room_bytes = memory_bytes - held_bytes
    # A row as read, widened, projected and encoded to `vector_size` numbers, and its name.
    row_bytes = 4 * (3 * generation.vector_size + 2 * vector_size) + 200
    most_users = int(corpus.users.max())
    needs = {f"a micro-partition of {most_users:,} users": most_users * row_bytes}
    if generation.has_item_vectors:
        num_items = min(ITEM_BATCH_ROWS, corpus.num_items)
        needs[f"{num_items:,} items at a time"] = num_items * row_bytes
    for what, needed_bytes in needs.items():
        if needed_bytes > room_bytes:
            raise ResourceError(
                f"exporting {what} needs {size(needed_bytes)} of memory, but of the budget of {size(memory_bytes)} the "
                f"process itself takes {size(held_bytes)}: raise --host-memory"
            )
    return room_bytes
