"""How far vectors moved that had no reason to: of users whose tokens are the champion's, in the two exports as readers get them.

Users are spread over micro-partitions by a hash, so the first few micro-partitions are a sample like any other.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.evaluation.comparison import find_users, match_items, match_unchanged
from tasks.export.export import path_of, read_part_of
from tasks.export.vector_files import decode_vectors, read_vectors
from trainer.store.tokens import Corpus

MAX_USERS = 100_000
NORM_BATCH_ROWS = 16_384


@dataclass(frozen=True)
class Released:
    """A release on disk: its corpus, whole, and its export with the manifest."""

    corpus: Corpus
    export_dir: Path
    manifest: dict[str, Any]


def measure_drift(challenger: Released, champion: Released) -> NDArray[np.float64]:
    """The cosines between both releases' vectors of users whose tokens did not change, float64[m], m at most MAX_USERS.

    Needs releases of one space and of the same number of micro-partitions.
    """
    to_champion, _ = match_items(challenger.corpus.vocabulary, champion.corpus.vocabulary)
    cosines: list[NDArray[np.float64]] = []
    for partition in range(challenger.corpus.num_partitions):
        room = MAX_USERS - sum(map(len, cosines))
        if room <= 0:
            break
        ids = find_unchanged(challenger.corpus, champion.corpus, partition, to_champion)
        cosines.append(compare_vectors(ids, challenger, champion, partition)[:room])
    return np.concatenate(cosines) if cosines else np.zeros(0)


def find_unchanged(
    challenger: Corpus, champion: Corpus, partition: int, to_champion: NDArray[np.int64]
) -> pa.ChunkedArray:
    """The ids of a micro-partition's users who have the same tokens in both corpora; to_champion int64[V]: items' numbers."""
    rows = match_unchanged(challenger, champion, partition, to_champion)
    return challenger.read_ids(partition).take(pa.array(np.flatnonzero(rows >= 0)))


def compare_vectors(ids: pa.ChunkedArray, one: Released, other: Released, partition: int) -> NDArray[np.float64]:
    """The cosine between two exports' vectors of each of these users whom both have, float64[m]."""
    sides = [read_part_of(side.export_dir, side.manifest, partition) for side in (one, other)]
    if None in sides:
        return np.zeros(0)
    rows = [find_users(ids, table["user_id"]) for table in sides if table is not None]
    are_there = (rows[0] >= 0) & (rows[1] >= 0)
    first, second = (
        decode_vectors(table)[place[are_there]].astype(np.float64)
        for table, place in zip(sides, rows, strict=True)
        if table is not None
    )
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.clip((first * second).sum(axis=1)[lengths > 0] / lengths[lengths > 0], -1, 1)


def measure_norms(export_dir: Path, manifest: dict[str, Any]) -> NDArray[np.float64]:
    """Lengths of users' vectors, float64[m]: of all of them, or of every so manieth row group, at most about MAX_USERS."""
    paths = [path_of(export_dir, manifest, f"user_vectors/{name}") for name in sorted(manifest["user_files"])]
    every = max(1, round(manifest["num_users"] / MAX_USERS))
    lengths = [
        np.linalg.norm(vectors.astype(np.float64), axis=1) for _, vectors in read_vectors(paths, every, NORM_BATCH_ROWS)
    ]
    return np.concatenate(lengths) if lengths else np.zeros(0)
