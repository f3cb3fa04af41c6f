"""The first pass over the events: cleans each group of micro-partitions, counts its items, stores its rows as numbers.

A group is as many consecutive micro-partitions as fit into memory. A part is some groups, done by any process. The result
depends on neither. Scratch files of a group: `g00012.users.arrow` (user_id, hash, micro_partition, last_day,
digest), `.lengths.npy` int64[N] events of each user, `.items.npy` int32[E] item codes of the group, `.activity.npy` float32[N, A]
of each user whose events are not those of the base (tasks/activity/count.py), and `.item_counts.parquet`.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from glob import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.sql.runner import connect, stream_rows
from surf2vec.tasks.activity.count import NAMES, US_PER_DAY, count_activity, digest_events, read_digests
from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.corpus.cleaning import UNDATED, drop_bots, drop_repeats, find_first_visits
from surf2vec.tasks.corpus.folder import BaseCorpus
from surf2vec.tasks.corpus.window import Window
from surf2vec.tasks.events.events_files import number_strings
from surf2vec.tasks.root.memory import spare_bytes
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.events import OnEvent, log_progress
from surf2vec.trainer.system.fan_out import FanOut, cut, deliver_files

DUCKDB_SHARE = 40  # per cent of the spare memory
# Spare memory per event of a group: some 70 bytes for its numbers, some 80 in sample logs for its text until that is
# numbered; the rest is for longer urls, for DuckDB, and for what allocators keep of the group before.
BYTES_PER_EVENT = 450
COUNTS_ROWS = 100_000  # rows in a row group of item counts: each DuckDB thread holds one complete row group in memory


@dataclass(frozen=True)
class CorpusPart:
    """Groups that one process does, one after the other, and what both passes need.

    params: of the SQL steps; scratch: folder for the files between the passes; building: the corpus's folder; memory_bytes: the
    budget of the process; total_events: of the window, for the progress of `step`.
    """

    groups: tuple[range, ...]
    params: dict[str, Any]
    config: IngestConfig
    scratch: Path
    building: Path
    memory_bytes: int
    threads: int
    total_events: int
    base: BaseCorpus | None = None
    step: str = "corpus"

    def divide(self, num_events: Sequence[int], fan_out: FanOut) -> list["CorpusPart"]:
        """Return a part per process, in groups as large as memory allows. num_events: of each micro-partition."""
        fit_in_memory = spare_bytes(self.memory_bytes) // BYTES_PER_EVENT
        of_each_part = -(-self.total_events // fan_out.num_parts)
        groups = plan_groups(num_events, max(1, min(fit_in_memory, of_each_part)))
        threads = fan_out.choose_threads(self.threads)
        places = cut([len(group) for group in groups], fan_out.num_parts)
        return [replace(self, groups=tuple(groups[place] for place in part), threads=threads) for part in places]

    @property
    def is_continued(self) -> bool:
        """Whether users and items keep the places they have in the base."""
        return self.base is not None and not self.base.is_full

    def report(self, on_event: OnEvent, done: int) -> None:
        """Report the progress of both passes, in events."""
        log_progress(on_event, self.step, done, 2 * self.total_events, "events")


def group_file(folder: Path, group: range, kind: str) -> Path:
    """Return the path of a group's scratch file."""
    return folder / f"g{group.start:05d}.{kind}"


def plan_groups(num_events: Sequence[int], max_events: int) -> list[range]:
    """Cut the micro-partitions into groups of at most `max_events` events; one that has more is a group by itself."""
    starts, total = [0], 0
    for partition, events in enumerate(num_events):
        if partition > starts[-1] and total + events > max_events:
            starts.append(partition)
            total = 0
        total += events
    return [range(*edges) for edges in pairwise([*starts, len(num_events)])]


def write_item_ix(con: duckdb.DuckDBPyConnection, scratch: Path, group: range) -> None:
    """Write `.item_ix.npy` int32[I] for the second pass: the index in the table `vocabulary` of each item code, or -1."""
    params = {"item_counts": escape(str(group_file(scratch, group, "item_counts.parquet")))}
    rows = stream_rows(con, "intermediate/int_group_item_ix", params).read_all()
    np.save(group_file(scratch, group, "item_ix.npy"), rows["item_ix"].to_numpy())


def duckdb_bytes(memory_bytes: int) -> int:
    """Return DuckDB's share of a process's memory budget."""
    return spare_bytes(memory_bytes) * DUCKDB_SHARE // 100


def count_partitions(con: duckdb.DuckDBPyConnection, params: dict[str, Any], window: Window) -> list[int]:
    """Return the events of each micro-partition. Raises DamageError when they differ from sources.json."""
    events = con.read_parquet(params["files"], hive_partitioning=False)
    found = dict(events.aggregate("micro_partition, count(*)").fetchall())
    num_events = [found.get(partition, 0) for partition in range(window.partitions)]
    if {sum(num_events), sum(found.values())} != {window.num_events}:
        raise DamageError(
            f"the events files of the window do not have the {window.num_events:,} rows in {window.partitions} micro-partitions "
            "that sources.json says: run `surf2vec doctor`, then pass the logs it names to `surf2vec run --logs` again"
        )
    return num_events


def clean_part(part: CorpusPart, on_event: OnEvent) -> Counter[str]:
    """Do the first pass over the groups of a part; returns the counts of users and of events after each stage."""
    stages: Counter[str] = Counter()
    with (
        deliver_files(part.scratch, part.scratch) as folder,
        connect(duckdb_bytes(part.memory_bytes), part.scratch / "spill" / folder.name, part.threads) as con,
    ):
        for group in part.groups:
            stages.update(_clean_group(con, part, group, folder))
            part.report(on_event, stages["events"])
    return stages


def _clean_group(con: duckdb.DuckDBPyConnection, part: CorpusPart, group: range, folder: Path) -> dict[str, int]:
    """Clean the events of a group into scratch files."""
    events, users, urls, num_in_order = read_group(
        con, part.params | {"first_partition": group[0], "last_partition": group[-1]}
    )
    without_bots = drop_bots(events, part.config.max_day_events)
    last_days = np.full(len(users), UNDATED, dtype=np.int32)  # of each user's newest dated event
    np.maximum.at(last_days, without_bots["user"].to_numpy(), without_bots["day"].to_numpy())
    timed = without_bots.select(user_ix="user", us=pl.when(pl.col("day") != UNDATED).then("us"), item="item")
    hashes = con.from_arrow(pa.table({"url": urls})).select("md5_number_lower(coalesce(url, '')) as hash").fetchnumpy()
    digests = digest_events(timed, hashes["hash"], users["hash"].to_numpy())
    users = users.append_column("last_day", pa.array(last_days)).append_column("digest", pa.array(digests))
    kept = drop_repeats(without_bots)
    path = str(group_file(folder, group, "users.arrow"))
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, users.schema) as writer:
        writer.write_table(users)
    np.save(group_file(folder, group, "lengths.npy"), np.bincount(kept["user"], minlength=len(users)))
    np.save(group_file(folder, group, "items.npy"), kept["item"].to_numpy())
    if part.base and part.is_continued:
        with part.base.explain_damage():
            known = np.concatenate([read_digests(part.base.corpus, partition) for partition in group])
        timed = timed.filter(pl.Series(~np.isin(digests, known)[timed["user_ix"]]))
    with open(group_file(folder, group, "activity.npy"), "wb") as file:
        shape = (len(users), len(NAMES))
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for some in count_activity(con, timed, len(users)):  # all would take as much memory as the events of a few each
            file.write(some.data)
    user, item, codes = kept["user"].to_numpy(), kept["item"].to_numpy(), np.arange(len(urls), dtype=np.int32)
    # Zero counts stay: they are items that only bots saw.
    num_events = np.bincount(item, minlength=len(urls))
    num_users = np.bincount(item[find_first_visits(user, item)], minlength=len(urls))
    counts = pa.table({"url": urls, "item_code": codes, "events": num_events, "users": num_users})
    counts_path = group_file(folder, group, "item_counts.parquet")
    pq.write_table(counts, counts_path, row_group_size=COUNTS_ROWS, compression="none", use_dictionary=False)
    return {
        "users": len(users),
        "events": len(events),
        "in_order": num_in_order,
        "after_bots": len(without_bots),
        "after_repeats": len(kept),
    }


def read_group(con: duckdb.DuckDBPyConnection, params: dict[str, Any]) -> tuple[pl.DataFrame, pa.Table, pa.Array, int]:
    """Return a group's events in corpus order, its users (user_id, hash, micro_partition), its urls, by their numbers, and how
    many events have a later time than their user's event before.
    """
    rows = stream_rows(con, "intermediate/int_group_events", params).read_all()
    us, source, line, is_undated = (rows[name].to_numpy() for name in ("us", "source", "line", "is_undated"))
    with ThreadPoolExecutor(2) as pool:
        (code, user_ids), (item, urls) = pool.map(number_strings, (rows["user_id"], rows["url"]))
    first = np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))  # codes follow first appearance
    users = pa.table({"user_id": user_ids, "hash": rows["user_hash"].take(first)})
    users = users.append_column("micro_partition", rows["micro_partition"].take(first))
    del rows  # frees their strings
    by_order = pc.sort_indices(users, [("micro_partition", "ascending"), ("user_id", "ascending")])
    rank = np.empty(len(users), dtype=np.int32)
    rank[by_order.to_numpy()] = np.arange(len(users), dtype=np.int32)
    user: NDArray[np.int32] = rank[code]
    # Files are sorted by user, time, source and line and read by day, so one sort is enough unless times interleave.
    order = np.argsort(user, kind="stable")
    later, source_after = np.diff(us[order]), source[order]
    is_late = (later < 0) | ((later == 0) & (source_after[1:] < source_after[:-1]))
    if ((np.diff(user[order]) == 0) & is_late).any():
        order = np.lexsort((line, source, us, user))
    day = np.where(is_undated, UNDATED, us // US_PER_DAY).astype(np.int32)
    num_in_order = int(((np.diff(user[order]) == 0) & (np.diff(us[order]) > 0)).sum())
    events = pl.DataFrame({"user": user[order], "day": day[order], "us": us[order], "item": item[order]})
    return events, users.take(by_order), urls, num_in_order
