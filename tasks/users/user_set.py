"""The users that a call searches for, and the micro-partitions that can contain them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.release.release_reader import user_hash
from surf2vec.tasks.users.tombstones import Tombstones


@dataclass(frozen=True)
class UserSet:
    """find: bool[n] of a column of ids; hashes: of the wanted users, uint64[m], or None; seen: whose ids `find` met, if known."""

    find: Callable[[Any], NDArray[np.bool_]]
    hashes: NDArray[np.uint64] | None
    seen: set[str] = field(default_factory=set)

    def partitions(self, num_partitions: int) -> list[int]:
        """Return the micro-partitions that can contain wanted users, ascending."""
        if self.hashes is None:
            return list(range(num_partitions))
        return np.unique(self.hashes % np.uint64(num_partitions)).astype(np.int64).tolist()

    def groups(self, metadata: pq.FileMetaData, num_partitions: int) -> list[int]:
        """Return the row groups of an events file, sorted by micro-partition, that can contain wanted users."""
        groups = range(metadata.num_row_groups)
        if self.hashes is None or not groups:
            return list(groups)
        column = metadata.schema.names.index("micro_partition")
        found = [metadata.row_group(group).column(column).statistics for group in groups]
        partitions = np.array(self.partitions(num_partitions))
        starts = np.searchsorted(partitions, [statistics.min for statistics in found])
        ends = np.searchsorted(partitions, [statistics.max for statistics in found], side="right")
        return np.flatnonzero(ends > starts).tolist()

    def join(self, other: "UserSet") -> "UserSet":
        """Return the set of the users of both; `seen` is of this one."""
        return UserSet(lambda ids: self.find(ids) | other.find(ids), None, self.seen)


def want_users(user_ids: list[str]) -> UserSet:
    """Return the set of users with these ids, as the root uses them."""
    values = pa.array(user_ids, pa.string())
    hashes = np.array([user_hash(user_id) for user_id in user_ids], dtype=np.uint64)
    seen: set[str] = set()

    def find(ids: Any) -> NDArray[np.bool_]:
        is_wanted = pc.is_in(ids, value_set=values)
        seen.update(ids.filter(is_wanted).to_pylist())
        return np.asarray(is_wanted)

    return UserSet(find, hashes, seen)


def want_forgotten(tombstones: Tombstones) -> UserSet:
    """Return the set of forgotten users: only their digests are known, so every user is checked."""
    return UserSet(tombstones.is_forgotten, None)
