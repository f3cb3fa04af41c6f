"""The first pass over the events: clean each group of micro-partitions, count its items, keep its rows as numbers.

A group is as many consecutive micro-partitions as the memory allows; what comes out does not depend on it, nor on who does it.
Scratch files: of a micro-partition `p00012.lengths.npy` int64[N] events of each user, `p00012.items.npy` int32[E] item codes
of its group and `p00012.users.arrow` (user_id, hash, last_day); of a group the Parquet file of int_item_counts.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sql.runner import fetch_rows
from tasks.config import IngestConfig
from tasks.corpus.cleaning import UserEvents, count_item_users, find_bots, find_last_days, find_repeats
from tasks.corpus.folder import partition_name
from tasks.corpus.read_events import PartitionRows, read_group
from tasks.corpus.window import Window
from trainer.errors import DamageError

COUNTS_ROWS = 100_000  # a row group of int_item_counts: DuckDB holds one a thread whole, with all its strings


@dataclass(frozen=True)
class Group:
    """Consecutive micro-partitions, both ends included, that are cleaned together."""

    first: int
    last: int

    @property
    def partitions(self) -> range:
        return range(self.first, self.last + 1)

    def item_counts(self, scratch: Path) -> Path:
        return scratch / f"g{self.first:05d}.item_counts.parquet"

    def item_ix(self, scratch: Path) -> Path:
        """Where the item_ix of each of its item codes are between the passes, int32[I], -1 outside the vocabulary."""
        return scratch / f"g{self.first:05d}.item_ix.npy"


@dataclass
class Stages:
    """What is left after each stage of cleaning, summed over micro-partitions."""

    users: int = 0
    events: int = 0
    after_bots: int = 0
    after_repeats: int = 0

    def add(self, other: "Stages") -> None:
        for stage, number in vars(other).items():
            setattr(self, stage, getattr(self, stage) + number)


class GroupCounts:
    """Events and distinct users of each item code of a group, int64[I]; several threads add to them."""

    def __init__(self, num_items: int) -> None:
        self.num_items = num_items
        self.events: NDArray[np.int64] = np.zeros(num_items, dtype=np.int64)
        self.users: NDArray[np.int64] = np.zeros(num_items, dtype=np.int64)
        self._lock = Lock()

    def add(self, events: UserEvents) -> None:
        """Count the events of a whole micro-partition."""
        num_events = np.bincount(events.item, minlength=self.num_items)
        num_users = count_item_users(events, self.num_items)
        with self._lock:
            self.events += num_events
            self.users += num_users

    def write(self, path: Path, urls: pa.Array) -> None:
        """Write int_item_counts: (url, item_code, events, users). Zero counts stay: items seen in the window, if only by bots."""
        codes = np.arange(self.num_items, dtype=np.int32)
        columns = {"url": urls, "item_code": codes, "events": self.events, "users": self.users}
        pq.write_table(pa.table(columns), path, row_group_size=COUNTS_ROWS, compression="none", use_dictionary=False)


def plan_groups(num_events: NDArray[np.int64], max_events: int) -> list[Group]:
    """Cut the micro-partitions into groups of at most `max_events` events; one that has more is a group by itself.

    num_events int64[P].
    """
    groups: list[Group] = []
    first, total = 0, 0
    for partition, events in enumerate(num_events.tolist()):
        if partition > first and total + events > max_events:
            groups.append(Group(first, partition - 1))
            first, total = partition, 0
        total += events
    return [*groups, Group(first, len(num_events) - 1)]


def count_partitions(con: duckdb.DuckDBPyConnection, params: dict[str, Any], window: Window) -> NDArray[np.int64]:
    """Events of each micro-partition, int64[P]. Raises DamageError unless they are those that sources.json has."""
    num_events = np.zeros(window.partitions, dtype=np.int64)
    rows = fetch_rows(con, "intermediate/int_partition_events", params)
    is_strange = any(not 0 <= row["micro_partition"] < window.partitions for row in rows)
    if is_strange or sum(row["num_events"] for row in rows) != window.num_events:
        raise DamageError(
            f"the events files of the window do not have the {window.num_events:,} rows in {window.partitions} micro-partitions "
            "that sources.json says: run `surf2vec doctor`, then give the logs it names again, which repairs them"
        )
    for row in rows:
        num_events[row["micro_partition"]] = row["num_events"]
    return num_events


def clean_group(
    con: duckdb.DuckDBPyConnection,
    pool: ThreadPoolExecutor,
    group: Group,
    params: dict[str, Any],
    config: IngestConfig,
    scratch: Path,
) -> Stages:
    """Clean the events of a group into scratch files; returns what each stage left."""
    params = params | {"first_partition": group.first, "last_partition": group.last}
    rows = read_group(con, params)
    counts, total = GroupCounts(len(rows.urls)), Stages()
    clean = partial(_clean_partition, config=config, counts=counts, scratch=scratch)
    for cleaned in pool.map(clean, rows.split_partitions()):
        total.add(cleaned)
    counts.write(group.item_counts(scratch), rows.urls)
    return total


def _clean_partition(partition: PartitionRows, config: IngestConfig, counts: GroupCounts, scratch: Path) -> Stages:
    """Clean one micro-partition into its scratch files and count what is left of it."""
    events, num_users = partition.arrange(), len(partition.users)
    stages = Stages(users=num_users, events=len(events.user))
    is_bot = find_bots(events, num_users, config.max_day_events)
    if is_bot.any():
        events = events.select(~is_bot[events.user])
    stages.after_bots = len(events.user)
    users = partition.users.append_column("last_day", pa.array(find_last_days(events, num_users)))
    events = events.select(~find_repeats(events))
    stages.after_repeats = len(events.user)
    counts.add(events)
    path = str(scratch / partition_name(partition.number))
    np.save(f"{path}.lengths.npy", np.bincount(events.user, minlength=num_users), allow_pickle=False)
    np.save(f"{path}.items.npy", events.item, allow_pickle=False)
    with pa.OSFile(f"{path}.users.arrow", "wb") as file, pa.ipc.new_file(file, users.schema) as writer:
        writer.write_table(users)
    return stages
