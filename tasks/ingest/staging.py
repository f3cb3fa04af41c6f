"""Stages a batch of logs: writes their events per day, and their rejects, to temporary files. `tasks/ingest/ingest.py` commits
them.

The lines are loaded once into DuckDB, which spills to disk, and become events part by part (`tasks/ingest/make_events.py`), as
many lines at once as memory allows. The sorted parts of a day are merged. The files do not depend on the parts.
"""

import glob
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import compress
from pathlib import Path
from threading import Lock
from typing import Any

import duckdb
import pyarrow.parquet as pq

from surf2vec.sql.runner import create_macro, create_table, fetch_rows, stream_rows
from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.events.events_files import write_events
from surf2vec.tasks.ingest.batches import Batch
from surf2vec.tasks.ingest.blocks import BlockReader
from surf2vec.tasks.ingest.columns import ROLES
from surf2vec.tasks.ingest.deliveries import read_by, rules_of
from surf2vec.tasks.ingest.make_events import MAX_USER_BYTES, SourceRules, make_events
from surf2vec.tasks.ingest.make_items import ASSET_PATTERN, CRAWLER_PATTERN
from surf2vec.tasks.ingest.records import LIST_BITS
from surf2vec.tasks.ingest.remote_logs import RemoteLogs
from surf2vec.tasks.ingest.sources import SourceFile, number_source
from surf2vec.tasks.ingest.times import TimeScale, recognise_times
from surf2vec.tasks.release.url_rules import MAX_URL_BYTES, UrlRules, canonical_item
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.tombstones import FORGOTTEN, Tombstones
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent, log_progress
from surf2vec.trainer.system.files import describe_file
from surf2vec.trainer.system.units import size

LEFT_OUT = (
    "not a GET request", "status 400 or above", "crawler", "static asset", "not a page view", "not a page", "no page", "no user",
    FORGOTTEN,
)  # fmt: skip
MAX_TIME_BYTES = 100
BAD_TIMES = 3  # shown in messages: times are not personal data
LEAST_QUERIES, MOST_HINTS = 100, 3  # of a page to be reported; most reported pages of a source
MOST_FREQUENT = 3  # users of a source that are named
# Peak memory of a part, as measured: bytes per line without its text, bytes per distinct string, and copies of each text.
LINE_BYTES, DISTINCT_BYTES, TEXT_COPIES = 120, 150, 3
_ABSENT = "surf2vec_absent"
_MACROS = {
    "calendar_us": ("text",),
    "page_key": ("url", "keeps_query", "max_url_bytes"),
    "whole_number": ("value", "column_type"),
    "number_fault": ("user_id", "user_type", "url", "url_type"),
}


@dataclass
class BytesDone:
    """Counts the bytes done of the logs, for several threads: half of them when read, a quarter when sorted, and when merged."""

    total: int
    on_event: OnEvent
    done: float = 0
    _lock: Lock = field(default_factory=Lock)

    def add(self, num_bytes: int, share: float = 1 / 2) -> None:
        with self._lock:
            self.done += num_bytes * share

    def report(self) -> None:
        log_progress(self.on_event, "ingest", min(round(self.done), self.total), self.total, "bytes")


@dataclass(frozen=True)
class Staged:
    """Staged logs: the entry in sources.json of each source, without its names, and their files (name under the root → path).

    about: name of a file → its record in sources.json; rejects: source id → path; frequent_users: as `_find_frequent_users`.
    """

    sources: tuple[SourceFile, ...]
    entries: tuple[dict[str, Any], ...]
    files: dict[str, Path]
    about: dict[str, dict[str, Any]]
    rejects: dict[str, Path]
    bad_times: tuple[str, ...]
    frequent_users: tuple[tuple[str, int], ...]


def define_session(con: duckdb.DuckDBPyConnection, config: IngestConfig) -> None:
    """Set the default time zone and the macros of the SQL steps on a cursor, as cursors do not inherit them."""
    con.execute("set TimeZone = $timezone", {"timezone": config.timezone})
    con.execute("set preserve_insertion_order = false")  # lines have numbers; queries that need an order state it
    for name, arguments in _MACROS.items():
        create_macro(con, f"staging/{name}", arguments)


@dataclass(frozen=True)
class Staging:
    """Logs to stage, as plain data: each process reads the user key and the forgotten users itself.

    folder: for the files; downloads: for remote logs while they are read; user_key: the key's fingerprint; threads: 0 for all
    cores; now: events more than a day after it count as from the future.
    """

    root: Root
    folder: Path
    downloads: Path
    config: IngestConfig
    user_key: str | None
    memory_bytes: int
    threads: int
    batches: tuple[Batch, ...]
    partitions: int
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))

    @property
    def num_bytes(self) -> int:
        return sum(batch.bytes for batch in self.batches)


@dataclass(frozen=True)
class Stager:
    """Stages one batch at a time on its own cursor. part_bytes: memory for a part; user_key: of the pseudonyms."""

    con: duckdb.DuckDBPyConnection
    staging: Staging
    progress: BytesDone
    part_bytes: int
    user_key: bytes | None = field(repr=False)
    forgotten: Tombstones
    remote: RemoteLogs

    def stage(self, batch: Batch) -> list[Staged]:
        """Load logs and write their files, apart if times differ in kind. Raises InputError for unreadable or changed ones."""
        con, config, sources = self.con, self.staging.config, batch.sources
        with ExitStack() as stack:
            for source in sources:
                stack.enter_context(self.remote.present(source))
            self._load(batch)
            scales = recognise_times(con, batch, config, self.staging.now)
            if len(kinds := dict.fromkeys(scales)) > 1:
                alike = [Batch(tuple(compress(batch.logs, (scale == kind for scale in scales)))) for kind in kinds]
                return [staged for part in alike for staged in self.stage(part)]
        [size] = fetch_rows(con, "intermediate/int_source_size")
        create_table(con, "intermediate/int_refused_lines")
        parts = range(0, size["num_lines"], _choose_part_lines(self.part_bytes, **size))
        sorted_parts, has_frequent = self._write_parts(batch, scales[0], parts)
        self.progress.add(batch.bytes, 0 if sorted_parts else 1 / 4)  # without days nothing is merged
        bad_times = tuple(row["time"] for row in fetch_rows(con, "intermediate/int_bad_times", {"most": BAD_TIMES}))
        entries = self._describe_sources(batch, scales[0])
        con.execute("drop table stg_lines")  # frees memory for the merges
        files, about = {}, {}
        for number, paths in sorted(sorted_parts.items()):
            day = (date(1970, 1, 1) + timedelta(days=number)).isoformat() if scales[0].is_dated else "undated"
            name = f"events/day={day}/{batch.batch_id}.parquet"
            files[name] = self._merge_parts(name, paths)
            self.progress.add(batch.bytes, 1 / 4 / len(sorted_parts))
            rows = dict(_count(con.read_parquet(glob.escape(str(files[name])), hive_partitioning=False), "source"))
            about[name] = {"rows": sum(rows.values())} | describe_file(files[name])
            for entry in entries:
                if num_events := rows.get(number_source(entry["sha256"])):
                    entry["events"] += num_events
                    entry["days"][day] = num_events
                    entry["files"].append(name)
        frequent = self._find_frequent_users(files, sum(entry["events"] for entry in entries)) if has_frequent else ()
        rejects = self._write_rejects(batch, [bool(entry["rejected"]) for entry in entries])
        con.execute("drop table int_refused_lines")
        return [Staged(sources, entries, files, about, rejects, bad_times, frequent)]

    def _describe_sources(self, batch: Batch, scale: TimeScale) -> tuple[dict[str, Any], ...]:
        """Return the entry of each source in sources.json, as if it had no events."""
        place_of = f"line >> {batch.place_bits}"
        num_lines = dict(_count(self.con.table("stg_lines"), place_of))
        verdicts: dict[int, dict[str, int]] = {}
        for place, verdict, number in _count(self.con.table("int_refused_lines"), place_of, "verdict"):
            verdicts.setdefault(place, {})[verdict] = number
        hints = self._find_query_hints()
        entries = []
        for place, source in enumerate(batch.sources):
            counts = verdicts.get(place, {})
            entry = {
                "sha256": source.sha256,
                "bytes": source.bytes,
                "format": batch.log.describe(),
                "fields": batch.log.fields,
                "read_by": read_by(self.staging.config),
                "time": scale.description,
                "lines": num_lines.get(place, 0),
                "events": 0,
                "left_out": {verdict: number for verdict, number in counts.items() if verdict in LEFT_OUT},
                "rejected": {verdict: number for verdict, number in counts.items() if verdict not in LEFT_OUT},
                "many_queries": [] if place else hints,
                "days": {},
                "files": [],
            }
            entries.append(entry)
        return tuple(entries)

    def _load(self, batch: Batch) -> None:
        """Load the logs into the table `stg_lines`. Raises InputError when one cannot be read."""
        config, log = self.staging.config, batch.log
        paths = [glob.escape(str(log.path)) for log, _ in batch.logs]
        params = {
            "keeps_query": bool(config.keep_query),
            "max_url_bytes": MAX_URL_BYTES,
            "max_user_bytes": MAX_USER_BYTES,
            "max_time_bytes": MAX_TIME_BYTES,
            "crawler_pattern": CRAWLER_PATTERN,
            "asset_pattern": ASSET_PATTERN,
            "paths": paths,
            "place_bits": batch.place_bits,
            "views": list(log.layout.views) if log.columns["view"] else [],
        }
        reader, sources = None, {}
        try:
            if log.format == "parquet" and not log.is_nested:
                # DuckDB ignores the case of names, and renames columns that differ only in case.
                found = self.con.read_parquet(paths[0], hive_partitioning=False).columns
                names = dict(zip(pq.read_schema(log.path).names, found, strict=True))
                params |= {f"{role}_column": names.get(log.columns[role] or "", _ABSENT) for role in ROLES}
                sources["source_fields"] = "staging/parquet_fields"
            else:
                reader = BlockReader(batch, self.progress.add)
                is_json = log.format == "jsonl" and not log.is_nested
                self.con.register("delivered_lines" if is_json else "source_fields", reader.open())
                if is_json:
                    keys = [log.columns[role] or _ABSENT for role in ROLES]
                    params["pointers"] = [f"/{key.replace('~', '~0').replace('/', '~1')}" for key in keys]
                    sources["source_fields"] = "staging/json_fields"
            create_table(self.con, "staging/stg_lines", params, **sources, split_fields="staging/split_fields")
        except duckdb.Error as error:
            if not reader and len(batch.logs) > 1:
                for alone in batch.logs:  # find which of them
                    self._load(Batch((alone,)))
            raise _explain_reading(reader.log.path if reader else batch.log.path, reader, error) from error
        self.progress.add(batch.bytes - (reader.done_bytes if reader else 0))

    @property
    def _url_rules(self) -> UrlRules:
        return UrlRules.of_record(rules_of(self.staging.config))

    def _find_query_hints(self) -> list[dict[str, Any]]:
        """Return the pages in `stg_lines` with very many different queries: page, num_queries (approximate), keys."""
        params = {"asset_pattern": ASSET_PATTERN, "least_queries": LEAST_QUERIES, "most_hints": MOST_HINTS}
        rows = fetch_rows(self.con, "intermediate/int_query_hints", params)
        hints = [{"page": canonical_item(row.pop("path"), self._url_rules)} | row for row in rows]
        return [hint for hint in hints if hint["page"]]

    def _write_parts(self, batch: Batch, scale: TimeScale, parts: range) -> tuple[dict[int, list[Path]], bool]:
        """Write the events of each part of `stg_lines`, one sorted file per day; adds to `int_refused_lines`.

        Returns the files of each day, and whether a user has more than a tenth of the events of a part.
        """
        params = scale.params | {"latest": self.staging.now + timedelta(days=1), "place_bits": batch.place_bits}
        rules = SourceRules(
            [number_source(source.sha256) for source in batch.sources], batch.place_bits, self._url_rules,
            batch.log.is_access_log, scale.is_dated, self.staging.partitions, self.user_key, self.forgotten,
        )  # fmt: skip
        paths: dict[int, list[Path]] = {}
        has_frequent = False
        folder = self.staging.folder / "parts"
        folder.mkdir(exist_ok=True)
        for first_row in parts:
            rows = {"first_row": first_row, "end_row": first_row + parts.step}
            lines = stream_rows(self.con, "intermediate/int_timed_lines", params | rows)
            events = make_events(self.con, lines, rules)
            has_frequent |= events.has_frequent
            self.con.from_arrow(events.refused).insert_into("int_refused_lines")
            self.progress.add(batch.bytes, 1 / 4 / len(parts))
            for day, table in events.split_days():
                path = folder / f"{batch.batch_id}.{first_row}.{day}.parquet"
                write_events(path, table.to_reader())
                paths.setdefault(day, []).append(path)
        return paths, has_frequent

    def _find_frequent_users(self, files: Mapping[str, Path], num_events: int) -> tuple[tuple[str, int], ...]:
        """Return the users with more than a tenth of the events in these files, and how many they have."""
        events = self.con.read_parquet([glob.escape(str(path)) for path in files.values()], hive_partitioning=False)
        counts = events.aggregate("user_id, count(*) as num_events").filter(f"10 * num_events > {num_events}")
        return tuple(counts.order("num_events desc, user_id").limit(MOST_FREQUENT).fetchall())

    def _merge_parts(self, name: str, parts: list[Path]) -> Path:
        """Merge a day's parts into one sorted file."""
        path = self.staging.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if len(parts) == 1:
            os.replace(parts[0], path)
        else:
            params = {"files": [glob.escape(str(part)) for part in parts], "partitions": self.staging.partitions}
            write_events(path, stream_rows(self.con, "intermediate/int_sorted_events", params))
            for part in parts:
                part.unlink()
        return path

    def _write_rejects(self, batch: Batch, has_some: Sequence[bool]) -> dict[str, Path]:
        """Write the rejected lines of each source that has some to a file of its own; returns them by source id."""
        folder = self.staging.folder / "rejects"
        folder.mkdir(parents=True, exist_ok=True)
        params = {"left_out": list(LEFT_OUT), "line_bits": LIST_BITS if batch.log.has_lists else 0}
        paths = {}
        for place, source in compress(enumerate(batch.sources), has_some):
            own = {"source_name": source.name, "place": place, "place_bits": batch.place_bits}
            rows = stream_rows(self.con, "intermediate/int_rejects", params | own)
            paths[source.source_id] = folder / f"{source.source_id}.parquet"
            with pq.ParquetWriter(paths[source.source_id], rows.schema, compression="zstd") as writer:
                for batch_rows in rows:
                    writer.write_batch(batch_rows)
        return paths


def _count(rows: duckdb.DuckDBPyRelation, *columns: str) -> list[tuple[Any, ...]]:
    """Return the distinct values of columns, each with the number of its rows."""
    return sorted(rows.aggregate(f"{', '.join(columns)}, count(*)").fetchall())


def _explain_reading(path: Path, reader: BlockReader | None, error: duckdb.Error) -> Exception:
    """Return the error to raise when a log could not be loaded: the reader's own, or one about a Parquet file."""
    if reader and reader.error:
        return reader.error
    if isinstance(error, duckdb.OutOfMemoryException):
        if reader:
            return duckdb.OutOfMemoryException(f"{path}: near line {reader.at_line:,}; {error}")
        with pq.ParquetFile(path) as file:
            groups = [file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups)]
        return duckdb.OutOfMemoryException(f"{path}: its largest row group has {size(max(groups))}; {error}")
    if reader or "No space left" in str(error):
        return error
    if "UTF8" in str(error):  # the rest of that message is a value from the file
        return InputError(f"{path} has text that is not valid UTF-8, which Parquet requires: write it again, or as CSV")
    return InputError(f"{path} cannot be read as Parquet ({type(error).__name__}): it is damaged; deliver it again")


def _choose_part_lines(
    part_bytes: int, num_lines: int, text_bytes: int, num_distinct: int, distinct_text_bytes: int
) -> int:
    """Return the lines per part, as many as fit: all strings of a part may be distinct, but not more than the source has."""
    line_text_bytes = text_bytes / max(1, num_lines)
    line_bytes = LINE_BYTES + line_text_bytes
    most_new_bytes = 2 * DISTINCT_BYTES + TEXT_COPIES * line_text_bytes
    all_new_bytes = num_distinct * DISTINCT_BYTES + TEXT_COPIES * distinct_text_bytes
    part_lines = max(part_bytes / (line_bytes + most_new_bytes), (part_bytes - all_new_bytes) / line_bytes, 1)
    return max(1, math.ceil(num_lines / max(1, math.ceil(num_lines / part_lines))))
