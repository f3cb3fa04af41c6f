"""Vectors of an export in memory, which of them are near each other, and how they moved from one release to the next."""

from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
import pyarrow.parquet as pq


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


def nearest_rows(vectors: np.ndarray, rows: np.ndarray, num: int) -> np.ndarray:
    """The `num` rows nearest to each of `rows` by cosine, itself left out: int64 (len(rows), num), nearest first.

    vectors: float32 (n, D). With fewer than num others, all of them.
    """
    num = min(num, len(vectors) - 1)
    unit = np.ascontiguousarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)
    index = faiss.IndexFlatIP(unit.shape[1])
    index.add(unit)
    found = index.search(unit[rows], num + 1)[1]
    is_other = found != rows[:, None]
    is_other[is_other.all(axis=1), -1] = False  # itself stands behind others at the same place
    return found[is_other].reshape(len(rows), num)


def spread_rows(num_rows: int, num_wanted: int) -> np.ndarray:
    """At most `num_wanted` rows, evenly spread over all: the same ones at every call."""
    num = min(num_rows, num_wanted)
    return np.arange(num) * num_rows // max(1, num)


def measure_neighbours(vectors: np.ndarray, labels: np.ndarray, rows: np.ndarray, num: int) -> tuple[float, ...]:
    """The share of nearest neighbours of `rows` that have their label; what it is of random neighbours, and of the same
    neighbours for everybody, those nearest to the mean vector. labels: integers (n,).
    """
    wanted = labels[rows][:, None]
    with_mean = np.concatenate([vectors, vectors.mean(axis=0, keepdims=True)])
    middle = nearest_rows(with_mean, np.array([len(vectors)]), num)
    chance = (np.bincount(labels)[labels[rows]] - 1) / (len(labels) - 1)
    found = labels[nearest_rows(vectors, rows, num)] == wanted
    return float(found.mean()), float(chance.mean()), float((labels[middle] == wanted).mean())


def measure_movement(before: Vectors, after: Vectors, num_users: int, num: int) -> tuple[float, float]:
    """Of the users that both releases have: the share whose vector is the same to the last bit, and the mean share of a user's
    `num` nearest users that stayed the same, of a sample of `num_users`.
    """
    places = {name: row for row, name in enumerate(before.names)}
    pairs = [(places[name], row) for row, name in enumerate(after.names) if name in places]
    rows = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    one, other = before.values[rows[:, 0]], after.values[rows[:, 1]]
    sampled = spread_rows(len(rows), num_users)
    near = [nearest_rows(vectors, sampled, num) for vectors in (one, other)]
    overlaps = [len(np.intersect1d(a, b)) / num for a, b in zip(*near, strict=True)]
    return float((one == other).all(axis=1).mean()), float(np.mean(overlaps))
