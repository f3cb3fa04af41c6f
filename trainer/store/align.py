"""Rotates a new training into the space of an older one, by the rotation that fits its items best to the older ones.

A rotation keeps dot products and lengths, so rankings stay the same, and so do row-wise Adagrad's sums of squared lengths.
Source: Schönemann, "A generalized solution of the orthogonal Procrustes problem", Psychometrika 31, 1966.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.events import OnEvent, ignore_event, log_progress
from surf2vec.trainer.kernels.first_rows import round_to_bfloat16
from surf2vec.trainer.model.rows import Rows
from surf2vec.trainer.store.generation import Generation, next_generation, open_generation
from surf2vec.trainer.store.layout import items_of, rows_in
from surf2vec.trainer.store.writer import Writer, lock_store

BATCH_ROWS = 8192


@dataclass(frozen=True)
class Rotation:
    """matrix float64[D, D], orthogonal: rows @ matrix are in the older space; cosine: the mean of the `num_items` fitted."""

    matrix: NDArray[np.float64]
    cosine: float
    num_items: int


def find_rotation(
    pairs: Iterable[tuple[NDArray[np.float32], NDArray[np.float32]]], vector_size: int, num_free: int
) -> Rotation:
    """Return the rotation that turns new item vectors nearest to the old ones by direction. All items count the same.

    pairs: (new, old) float32[n, D], in batches of any size. Items without a direction are left out; without
    any items the rotation is the identity. Only the first `num_free` coordinates turn; the bias after them does not.
    """
    matrix, moment, num_items = np.eye(vector_size), np.zeros((num_free, num_free)), 0
    for new, old in pairs:
        new_units, old_units = (rows[:, :num_free].astype(np.float64) for rows in (new, old))
        lengths = np.linalg.norm(new_units, axis=1) * np.linalg.norm(old_units, axis=1)
        is_usable = np.isfinite(lengths) & (lengths > 0)
        moment += (new_units[is_usable] / lengths[is_usable, None]).T @ old_units[is_usable]
        num_items += int(is_usable.sum())
    if not num_items:
        return Rotation(matrix, 0.0, 0)
    left, stretch, right = np.linalg.svd(moment)
    matrix[:num_free, :num_free] = left @ right
    return Rotation(matrix, float(stretch.sum() / num_items), num_items)


def align_generation(
    store_dir: Path, rotations: dict[str, Rotation], values: dict[str, Any], on_event: OnEvent = ignore_event
) -> Generation:
    """Commit the current generation rotated: one micro-partition of users at a time, then one item block at a time.

    rotations: of each part that the vectors have. values: further values for the manifest. Returns an aligned generation
    unchanged. Raises ResourceError when the store is locked or the disk is full.
    """
    with lock_store(store_dir):
        generation = open_generation(store_dir)
        if generation.manifest["stage"] == "aligned":
            return generation
        manifest, seed = generation.manifest, generation.config.seed
        matrices = {part: rotation.matrix.astype(np.float32) for part, rotation in rotations.items()}
        writer = Writer(store_dir, next_generation(store_dir), manifest)
        for partition in range(generation.num_partitions):
            if writer.has("users", partition):
                image = writer.read("users", partition)
                _rotate_rows(rows_in(image), matrices["interest"], seed)
                writer.write("users", partition, image)
            log_progress(on_event, "align", partition + 1, generation.num_partitions)
        for part, block in [key for key in writer.entries if key[0] in matrices]:
            image = writer.read(part, block)
            for rows in (items_of(image.arrays).outputs, items_of(image.arrays).inputs):
                _rotate_rows(rows, matrices[part], seed)
            writer.write(part, block, image)
        return writer.commit(manifest | values | {"stage": "aligned"})


def _rotate_rows(rows: Rows, matrix: NDArray[np.float32], seed: int) -> None:
    """Rotate rows in place, a batch at a time. The optimizer's sums do not change."""
    for start in range(0, len(rows.vectors), BATCH_ROWS):
        batch = slice(start, start + BATCH_ROWS)
        turned = Rows(rows.vectors[batch], rows.squares[batch]).widened() @ matrix
        if rows.vectors.dtype == np.uint16:
            places = np.arange(start, start + len(turned), dtype=np.uint64)
            rows.vectors[batch] = round_to_bfloat16(turned, seed, -1, places)
        else:
            rows.vectors[batch] = turned
