"""Writes the vector that a user had at a time, for each row of a file: to train models on what was known then, not on the future.

A row belongs to the newest release that served and whose window ended by its time; the interest is that of the release. Trail
and activity are made by the steps of a night from the user's events strictly before the time, with the release's settings, items
and quantiles. Events are read once, in groups of micro-partitions. The vectors wait in a file for the order of the rows.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from duckdb.func import SPECIAL
from numpy.typing import NDArray

from surf2vec.sql.runner import connect, create_macro, create_table, stream_rows
from surf2vec.tasks.activity.count import count_activity, find_circles
from surf2vec.tasks.activity.scale import scale_activity
from surf2vec.tasks.config import IngestConfig, PublishConfig
from surf2vec.tasks.corpus.clean_pass import BYTES_PER_EVENT, count_partitions, duckdb_bytes, plan_groups, read_group
from surf2vec.tasks.corpus.cleaning import drop_bots, drop_repeats
from surf2vec.tasks.corpus.window import explain_unreadable, select_window
from surf2vec.tasks.ingest.user_key import read_user_key
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, ReleaseFolder, open_folder
from surf2vec.tasks.release.release_reader import decode_vectors
from surf2vec.tasks.root.failures import check_out, explain_failures
from surf2vec.tasks.root.memory import spare_bytes
from surf2vec.tasks.root.records import CorpusStep, RunRecord
from surf2vec.tasks.root.run import Root, Run, note_partial, open_scratch_folder
from surf2vec.tasks.users.pseudonyms import pseudonym
from surf2vec.tasks.users.tombstones import Tombstones, read_tombstones
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent, ignore_event, log_progress
from surf2vec.trainer.store.tokens import gather_spans, to_offsets
from surf2vec.trainer.system.files import replace_file, verify_all

ROW_GROUP_ROWS = 8192
BATCH_EVENTS, ROW_EVENTS = 300_000, 4
"""The events of rows whose vectors are made together; a row itself takes as long as so many."""
Vectors = NDArray[np.float32]


class Served(NamedTuple):
    """A release that served, the last day of its window, and the record of its run."""

    release: ReleaseFolder
    until: str
    record: RunRecord


def as_of(
    root: Root, publish: PublishConfig, ingest: IngestConfig, rows: Path, out: Path, memory_bytes: int, threads: int,
    on_event: OnEvent = ignore_event,
) -> dict[str, Any]:  # fmt: skip
    """Write `out`: the file `rows` in its order, with `release` and `vector`, float32[D]. Returns a summary.

    Both are null before the first release; the vector also for a user who is not in the release, and whom a night at that time
    would not keep. Who came later has zeros for an interest. Takes no lock. Raises a SurfError: `out` is then unchanged.
    """
    started = time.monotonic()
    check_out(out, "Parquet", "vectors.parquet")
    with (
        explain_failures(root, "vectors are looked up", memory_bytes),
        explain_unreadable(root),
        open_scratch_folder(root, "as-of") as folder,
        connect(duckdb_bytes(memory_bytes), folder / "spill", threads) as con,
    ):
        num_rows, served, window = _load(con, rows), find_served(root, publish), select_window(root, None, None, None)
        window = replace(window, files=tuple(file for file in window.files if file.day))
        _name_users(con, read_user_key(root, ingest), read_tombstones(root))
        con.execute("set TimeZone = $timezone", {"timezone": ingest.timezone})
        used = _choose_releases(con, rows, served, window.partitions)
        shape = (num_rows, used[0]["vector_size"] + 1)
        with open(folder / "vectors", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 4 * shape[0] * shape[1])  # a full disk shows here
        vectors = np.memmap(folder / "vectors", np.float32, "r+", shape=shape)
        verify_all(window.files)
        room_bytes = spare_bytes(memory_bytes) - 3 * max(one.get("trail", {"bytes": 0})["bytes"] for one in used)
        partitions = con.sql("select micro_partition from int_requests").fetchnumpy()["micro_partition"]
        sizes = np.bincount(partitions, minlength=window.partitions) + count_partitions(con, window.params, window)
        for group in plan_groups(sizes.tolist(), room_bytes // BYTES_PER_EVENT):
            _fill_group(con, window.params, group, served, vectors)
            log_progress(on_event, "as-of", group.stop, window.partitions)
        with replace_file(out) as temporary:
            note_partial(folder, temporary)
            counts = _write(con, temporary, vectors, [one.release.manifest["release"] for one in served])
    spaces, seconds = len({one["space_id"] for one in used}), round(time.monotonic() - started, 3)
    return {"rows": num_rows, **counts, "releases": len(used), "spaces": spaces, "out": str(out), "seconds": seconds}


def _load(con: duckdb.DuckDBPyConnection, path: Path) -> int:
    """Make the table request_rows of a file; returns its number of rows. Raises InputError if the file cannot be used."""
    place, is_parquet = escape(str(path)), path.suffix == ".parquet"
    try:
        rows = con.read_parquet(place) if is_parquet else con.read_csv(place)
        if missing := {"user_id", "ts"} - set(rows.columns):
            raise InputError(f"{path} has no column {' and no '.join(sorted(missing))}, only {', '.join(rows.columns)}")
        if taken := {"release", "vector"} & set(rows.columns):
            raise InputError(f"{path} has a column {' and '.join(sorted(taken))}, as --out gets: rename it")
        if not is_parquet:
            rows = con.read_csv(place, dtype={"user_id": "VARCHAR", "ts": "VARCHAR"})
        rows.create("request_rows")
    except duckdb.Error as error:
        raise InputError(f"cannot read {path} as Parquet or CSV: {str(error).splitlines()[0]}") from None
    if not (num_rows := con.table("request_rows").count("*").fetchall()[0][0]):
        raise InputError(f"{path} has no rows: give a row for each vector")
    return int(num_rows)


def _name_users(con: duckdb.DuckDBPyConnection, key: bytes | None, forgotten: Tombstones) -> None:
    """Make the function stored_name: of a user's id, what the root calls the user, or null for one who was forgotten."""

    def name(user_id: str | None) -> str | None:
        stored = pseudonym(user_id, key) if key and user_id else user_id
        return None if stored is None or forgotten.day_of(stored) else stored

    con.create_function("stored_name", name, ["varchar"], "varchar", null_handling=SPECIAL)


def find_served(root: Root, publish: PublishConfig) -> list[Served]:
    """Return the root's releases that served and were not rolled back, the newest of each last day. Raises InputError if none."""
    found = {}
    for version in read_registry(root, publish).versions:
        release, until = version.tags.get("release", ""), version.tags.get("window_until")
        if version.has_served and until and (root.export(release) / EXPORT_MANIFEST).exists():
            found[until] = Served(open_folder(root.export(release)), until, Run(root, release).record())
    if not found:
        raise InputError(f"{root.path} has no release of events with times that serves: run `surf2vec run` first")
    return [found[until] for until in sorted(found)]


def _choose_releases(
    con: duckdb.DuckDBPyConnection, path: Path, served: list[Served], partitions: int
) -> list[dict[str, Any]]:
    """Make the table int_requests; returns the manifests of its releases, of the newest if it has none. Raises InputError for a
    time that cannot be read, and for releases whose vectors cannot be made or do not fit together.
    """
    about = [
        {"number": number, "since": record.require(CorpusStep).since, "until": until,
         "window_days": record.config.get("window_days"), "partitions": release.manifest["partitions"]}
        for number, (release, until, record) in enumerate(served)
    ]  # fmt: skip
    con.register("served_releases", pa.Table.from_pylist(about))
    create_macro(con, "staging/calendar_us", ["text"])
    create_table(con, "intermediate/int_requests", {"partitions": partitions})
    num_bad, first_bad = con.sql("select count(*), min(request) from int_requests where us is null").fetchall()[0]
    if num_bad:
        raise InputError(f"{path} has {num_bad:,} times ts that cannot be read, the first in row {first_bad + 1:,}")
    numbers = con.sql("select distinct number from int_requests where number is not null order by number").fetchall()
    used = [served[number].release.manifest for (number,) in numbers] or [served[-1].release.manifest]
    if any("projection" in one and "trail" in one for one in used):
        raise InputError(f"{path} has rows of a release reduced by export.pca_dim: it cannot get another trail")
    if len(sizes := dict.fromkeys(one["vector_size"] for one in used)) > 1:
        raise InputError(
            f"{path} has rows of releases with vectors of {' and of '.join(map(str, sizes))} dimensions: no model can read "
            f"both; give the rows after {served[-1].until} alone, or those before"
        )
    return used


def _fill_group(
    con: duckdb.DuckDBPyConnection, params: dict[str, Any], group: range, served: list[Served], out: Vectors
) -> None:
    """Fill in the vectors of the users of a group of micro-partitions. out float32[N, D + 1]: as of `AtRelease.make`."""
    params = params | {"first_partition": group[0], "last_partition": group[-1]}
    events, users, urls, _ = read_group(con, params)
    places = np.arange(len(users), dtype=np.int32)
    firsts = np.searchsorted(events["user"].to_numpy(), places)
    con.register("group_users", pa.table({"user_id": users["user_id"], "user_ix": places, "first_place": firsts}))
    con.register("group_events", events.select(user_ix="user", us="us").with_row_index("place").to_arrow())
    rows = stream_rows(con, "intermediate/int_request_spans", params).read_all().combine_chunks()
    numbers, events = rows["number"].to_numpy(), events.hstack(find_circles(events))
    for number in np.unique(numbers).tolist():
        start, stop = np.searchsorted(numbers, [number, number + 1]).tolist()
        release = AtRelease(con, number, served[number], events, urls)
        for requests, vectors in release.make_all(rows.slice(start, stop - start)):
            out[requests] = vectors


class AtRelease:
    """Makes vectors of a release from the events of a group. number: of the release; rows: as of int_request_spans."""

    def __init__(
        self, con: duckdb.DuckDBPyConnection, number: int, served: Served, events: pl.DataFrame, urls: pa.Array
    ) -> None:
        self.con, self.number, self.events = con, number, events
        self.cleaning = IngestConfig(**served.record.config.get("ingest", {}))
        self.release = open_folder(served.release.folder)  # opened again: this one keeps the items in memory
        self.sums = self.release.trail_sums if "trail" in self.release.manifest else None
        self.quantiles = self.release.manifest.get("activity", {}).get("quantiles", [])
        self.items = pc.index_in(urls, pa.array(self.release.urls, urls.type)).fill_null(-1).to_numpy().astype(np.intp)
        self.read_users = lru_cache(1)(self.release.read_partition)

    def make_all(self, rows: pa.Table) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
        """Yield places of requests int64[n] and their vectors, float32[n, D + 1]. Rows of the same events are made once."""
        starts, stops, users = rows["start"].to_numpy(), rows["stop"].to_numpy(), rows["user_id"]
        is_new = np.ones(len(rows), bool)
        is_new[1:] = pc.not_equal(users[1:], users[:-1]).fill_null(True).to_numpy()
        is_new[1:] |= (np.diff(starts) != 0) | (np.diff(stops) != 0)
        for batch in plan_groups((np.where(is_new, stops - starts, 0) + ROW_EVENTS).tolist(), BATCH_EVENTS):
            is_new[batch.start] = True
            own = is_new[batch.start : batch.stop]
            vectors = self.make(rows.take(batch.start + np.flatnonzero(own)))
            yield rows["request"].to_numpy()[batch.start : batch.stop], vectors[np.cumsum(own) - 1]

    def make(self, rows: pa.Table) -> Vectors:
        """Return vectors float32[n, D + 1]; the last column is the number of the release + 1. NaN: no vector."""
        vectors, is_known = self.find_users(rows)
        starts, lengths = rows["start"].to_numpy(), rows["stop"].to_numpy() - rows["start"].to_numpy()
        _, places = gather_spans(np.arange(len(self.events), dtype=np.int32), starts, lengths)
        user = pl.Series(np.repeat(np.arange(len(rows), dtype=np.int32), lengths))
        without_bots = drop_bots(self.events[places].with_columns(user=user), self.cleaning.max_day_events)
        kept = drop_repeats(without_bots)
        items, ends = self.items[kept["item"]], to_offsets(np.bincount(kept["user"], minlength=len(rows)))
        is_kept = np.diff(to_offsets(items >= 0)[ends]) >= self.cleaning.min_user_events
        if self.sums:
            chosen, nothing = self.sums.choose_last(items, ends), len(self.sums.inputs) - 1
            chosen[~is_kept], chosen[:, self.cleaning.max_user_events :] = nothing, nothing
            vectors[:, self.sums.columns] = self.sums.sum_pages(chosen)
        if size := len(self.quantiles):
            has_events = np.diff(ends) > 0
            counted = without_bots.drop("day").rename({"user": "user_ix"})
            activity = np.concatenate(list(count_activity(self.con, counted, len(rows))))
            vectors[has_events, -1 - size : -1] = scale_activity(activity[has_events, :size], self.quantiles)
        vectors[~(is_known | is_kept), :-1] = np.nan
        return vectors

    def find_users(self, rows: pa.Table) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return the users' vectors in the release, float32[n, D + 1], zeros for others, and who is in it, bool[n]."""
        vectors = np.zeros((len(rows), self.release.manifest["vector_size"] + 1), np.float32)
        is_known, partitions = np.zeros(len(rows), bool), rows["release_partition"].to_numpy()
        for partition in np.unique(partitions).tolist():
            if (users := self.read_users(partition)) is not None:
                own = np.flatnonzero(partitions == partition)
                found = pc.index_in(rows["user_id"].take(own), users["user_id"]).fill_null(-1).to_numpy()
                vectors[own[found >= 0], :-1] = decode_vectors(users.take(found[found >= 0]))
                is_known[own] = found >= 0
        vectors[:, -1] = np.where(is_known, 1, -1) * (self.number + 1)
        return vectors, is_known


def _write(con: duckdb.DuckDBPyConnection, path: Path, found: Vectors, releases: list[str]) -> dict[str, int]:
    """Write the rows with their releases and vectors, float32[N, D + 1] as of `AtRelease.make`; returns counts."""
    rows, names = con.table("request_rows").to_arrow_reader(ROW_GROUP_ROWS), pa.array([None, *releases], pa.string())
    kind = pa.list_(pa.float32(), found.shape[1] - 1)
    schema = rows.schema.append(pa.field("release", pa.string())).append(pa.field("vector", kind))
    flat = schema.names[:-1]
    compression, counts, start = dict.fromkeys(flat, "zstd") | {"vector.list.element": "none"}, Counter[str](), 0
    with pq.ParquetWriter(path, schema, use_dictionary=flat, compression=compression) as writer:
        for batch in rows:
            vectors = np.array(found[start : start + len(batch)])
            numbers, is_null = vectors[:, -1].astype(np.int64), np.isnan(vectors[:, 0]) | (vectors[:, -1] == 0)
            column = pa.FixedSizeListArray.from_arrays(vectors[:, :-1].ravel(), type=kind, mask=pa.array(is_null))
            writer.write_batch(pa.record_batch([*batch.columns, names.take(np.abs(numbers)), column], schema))
            counts["rows_without_release"] += int((numbers == 0).sum())
            counts["rows_without_vector"] += int(is_null.sum())
            counts["rows_without_interest"] += int(((numbers < 0) & ~is_null).sum())
            start += len(batch)
    return dict(counts)
