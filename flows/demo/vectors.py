"""Vectors of an export in memory, and which of them are near each other: for the demo's few thousand users and pages."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

BATCH_ROWS = 500  # rows whose similarities to all others are in memory at once


class Vectors(NamedTuple):
    """Names (user ids or URLs) and their vectors, float32 (n, D)."""

    names: list[str]
    values: np.ndarray


def read_vectors(folder: Path, name: str) -> Vectors:
    """The vectors of all parts in a folder of an export; `name` is the column of their names."""
    table = pq.ParquetDataset(sorted(folder.glob("part-*.parquet"))).read(columns=[name, "vector"]).combine_chunks()
    vectors = table["vector"].combine_chunks()
    values = vectors.flatten().to_numpy().reshape(len(vectors), vectors.type.list_size)
    return Vectors(table[name].to_pylist(), values)


def to_units(vectors: np.ndarray) -> np.ndarray:
    """The same directions at length 1; zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def nearest_rows(vectors: np.ndarray, rows: np.ndarray, num: int) -> np.ndarray:
    """The `num` rows nearest to each of `rows` by cosine, itself left out: int64 (len(rows), num), nearest first.

    vectors: float32 (n, D). With fewer than num others, all of them.
    """
    num = min(num, len(vectors) - 1)
    unit = to_units(vectors)
    found = []
    for start in range(0, len(rows), BATCH_ROWS):
        batch = rows[start : start + BATCH_ROWS]
        cosines = unit[batch] @ unit.T
        cosines[np.arange(len(batch)), batch] = -np.inf
        nearest = np.argpartition(-cosines, num - 1, axis=1)[:, :num]
        order = np.argsort(-np.take_along_axis(cosines, nearest, axis=1), axis=1, kind="stable")
        found.append(np.take_along_axis(nearest, order, axis=1))
    return np.concatenate(found)


def spread_rows(num_rows: int, num_wanted: int) -> np.ndarray:
    """At most `num_wanted` rows, evenly spread over all: the same ones at every call."""
    num = min(num_rows, num_wanted)
    return np.arange(num) * num_rows // max(1, num)
