"""The events of a group of micro-partitions, users and items as numbers, each micro-partition's in the order of the corpus.

Events files are sorted by micro-partition, user and time, so of those of successive days, read in their order, one stable
sort by user is all; where times interleave, all keys are sorted by.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sql.runner import stream_rows
from tasks.corpus.cleaning import UNDATED, UserEvents
from tasks.events.numbering import number_strings, sort_by
from tasks.users.placement import place_users

_US_A_DAY = 86_400_000_000


@dataclass(frozen=True)
class PartitionRows:
    """One micro-partition as it lies in the files: its users in order (user_id, hash), and pieces of columns of its events.

    rank_of_code: the row of each of the group's users among all of them in order, of which this one's begin at `first`.
    """

    number: int
    users: pa.Table
    first: int
    rank_of_code: NDArray[np.int32]
    pieces: list[dict[str, NDArray]]

    def arrange(self) -> UserEvents:
        """Its events in order; a user is a row of `users`."""
        names = ("user", "us", "source", "line", "item", "is_undated")
        user, us, source, line, item, is_undated = (np.concatenate([p[name] for p in self.pieces]) for name in names)
        rank = self.rank_of_code[user] - np.int32(self.first)
        order = sort_by(rank)
        if not _is_in_order(rank[order], us[order], source, line, order):
            order = sort_by(line, source, us, rank)
        day = (us // _US_A_DAY).astype(np.int32)
        day[is_undated] = UNDATED
        return UserEvents(rank[order], day[order], item[order])


@dataclass(frozen=True)
class GroupRows:
    """All events of a group. users (user_code, user_id, hash, micro_partition) in order; urls by item code."""

    users: pa.Table
    urls: pa.Array
    pieces: dict[int, list[dict[str, NDArray]]]

    def split_partitions(self) -> Iterator[PartitionRows]:
        """Every micro-partition that has events; a user has at least one."""
        rank_of_code = np.empty(self.users.num_rows, dtype=np.int32)
        rank_of_code[self.users["user_code"].to_numpy()] = np.arange(self.users.num_rows, dtype=np.int32)
        partitions = self.users["micro_partition"].to_numpy()
        for first, end in pairwise([*np.flatnonzero(np.diff(partitions, prepend=-1)).tolist(), len(partitions)]):
            number, users = int(partitions[first]), self.users.slice(first, end - first).select(["user_id", "hash"])
            yield PartitionRows(number, users, first, rank_of_code, self.pieces.pop(number))


def read_group(con: duckdb.DuckDBPyConnection, params: dict[str, Any]) -> GroupRows:
    """The events of the micro-partitions from $first_partition to $last_partition."""
    rows = stream_rows(con, "intermediate/int_group_events", params).read_all()
    columns: dict[str, NDArray] = {name: rows[name].to_numpy() for name in ("us", "source", "line", "is_undated")}
    columns["user"], user_ids = number_strings(rows["user_id"])
    columns["item"], urls = number_strings(rows["url"])
    partition = rows["micro_partition"].to_numpy()
    del rows  # their strings
    pieces: dict[int, list[dict[str, NDArray]]] = defaultdict(list)
    for start, end in pairwise([*np.flatnonzero(np.diff(partition, prepend=-1)).tolist(), len(partition)]):
        pieces[int(partition[start])].append({name: column[start:end] for name, column in columns.items()})
    return GroupRows(place_users(con, user_ids, params["partitions"]), urls, pieces)


def _is_in_order(
    rank: NDArray[np.int32],
    us: NDArray[np.int64],
    source: NDArray[np.uint64],
    line: NDArray[np.int64],
    order: NDArray[np.int64],
) -> bool:
    """Whether each user's events are in order of time, source, line; rank and us are in `order` already."""
    is_same = rank[1:] == rank[:-1]
    if (is_same & (us[1:] < us[:-1])).any():
        return False
    tied = np.flatnonzero(is_same & (us[1:] == us[:-1]))
    first, second = order[tied], order[tied + 1]
    is_before = (source[first] < source[second]) | ((source[first] == source[second]) & (line[first] <= line[second]))
    return bool(is_before.all())
