"""Stages one source: writes its events per day, and its rejects, to temporary files. `tasks/ingest/ingest.py` commits them.

The lines are loaded once into DuckDB, which spills to disk, and become events part by part (`tasks/ingest/make_events.py`), as
many lines at once as memory allows. The sorted parts of a day are merged. The files do not depend on the parts.
"""

import glob
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import duckdb
import pyarrow.parquet as pq

from surf2vec.sql.runner import create_macro, create_table, fetch_rows, stream_rows
from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.events.events_files import write_events
from surf2vec.tasks.ingest.blocks import BlockReader
from surf2vec.tasks.ingest.columns import ROLES
from surf2vec.tasks.ingest.deliveries import read_by, rules_of
from surf2vec.tasks.ingest.formats import LogFile
from surf2vec.tasks.ingest.make_events import MAX_USER_BYTES, SourceRules, make_events
from surf2vec.tasks.ingest.records import LIST_BITS, read_parquet
from surf2vec.tasks.ingest.remote_logs import RemoteLogs
from surf2vec.tasks.ingest.sources import SourceFile
from surf2vec.tasks.ingest.times import TimeScale, recognise_times
from surf2vec.tasks.ingest.visits import ASSET_PATTERN, CRAWLER_PATTERN
from surf2vec.tasks.release.url_rules import MAX_URL_BYTES, UrlRules, canonical_item
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.tombstones import FORGOTTEN, Tombstones
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent
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
# Peak memory of a part: bytes per line without its text, bytes per distinct string, and copies of each text.
LINE_BYTES, DISTINCT_BYTES, TEXT_COPIES = 120, 60, 3
Log = tuple[LogFile, SourceFile]
_ABSENT = "surf2vec_absent"
_MACROS = {
    "calendar_us": ("text",),
    "page_key": ("url", "keeps_query", "max_url_bytes"),
    "whole_number": ("value", "column_type"),
    "number_fault": ("user_id", "user_type", "url", "url_type"),
}


@dataclass
class BytesRead:
    """Counts the bytes read of the logs, for several threads."""

    total: int
    on_event: OnEvent
    done: int = 0
    _lock: Lock = field(default_factory=Lock)

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self.done += num_bytes

    def report(self) -> None:
        values = {"step": "ingest", "done": min(self.done, self.total), "total": self.total, "unit": "bytes"}
        self.on_event("progress", values)


@dataclass(frozen=True)
class Staged:
    """A staged source: its entry of sources.json without names, and its files (name under the root → path)."""

    source: SourceFile
    entry: dict[str, Any]
    files: dict[str, Path]
    rejects: Path | None
    bad_times: tuple[str, ...]
    frequent_users: tuple[tuple[str, int], ...]  # with more than a tenth of the events, and how many they have

    @property
    def num_rejected(self) -> int:
        return sum(self.entry["rejected"].values())


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
    logs: tuple[Log, ...]
    partitions: int
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))

    @property
    def num_bytes(self) -> int:
        return sum(source.bytes for _, source in self.logs)


@dataclass(frozen=True)
class Stager:
    """Stages one source at a time on its own cursor. part_bytes: memory for a part; user_key: of the pseudonyms."""

    con: duckdb.DuckDBPyConnection
    staging: Staging
    progress: BytesRead
    part_bytes: int
    user_key: bytes | None = field(repr=False)
    forgotten: Tombstones
    remote: RemoteLogs

    def stage(self, log: LogFile, source: SourceFile) -> Staged:
        """Load a log, and write the files of the source. Raises InputError when it cannot be read or changes meanwhile."""
        self._load(log, source)
        con, config = self.con, self.staging.config
        [found] = fetch_rows(con, "intermediate/int_source_size")
        scale = recognise_times(con, log, source.name, found["num_lines"], config, self.staging.now)
        create_table(con, "intermediate/int_refused_lines")
        parts = range(0, found["num_lines"], _choose_part_lines(self.part_bytes, **found))
        sorted_parts, has_frequent = self._write_parts(log, source, scale, parts)
        hints = self._find_query_hints()
        verdicts = dict(con.table("int_refused_lines").aggregate("verdict, count(*)").order("verdict").fetchall())
        rejected = {verdict: number for verdict, number in verdicts.items() if verdict not in LEFT_OUT}
        bad_times = tuple(row["time"] for row in fetch_rows(con, "intermediate/int_bad_times", {"most": BAD_TIMES}))
        con.execute("drop table stg_lines")
        files, days, about = {}, {}, {}
        for number, paths in sorted(sorted_parts.items()):
            day = (date(1970, 1, 1) + timedelta(days=number)).isoformat() if scale.is_dated else "undated"
            name = f"events/day={day}/{source.source_id}.parquet"
            files[name] = self._merge_parts(name, paths)
            days[day] = pq.read_metadata(files[name]).num_rows
            about[name] = {"rows": days[day]} | describe_file(files[name])
        frequent = self._find_frequent_users(files, sum(days.values())) if has_frequent else ()
        entry = {
            "sha256": source.sha256,
            "bytes": source.bytes,
            "format": log.describe(),
            "fields": log.fields,
            "read_by": read_by(config),
            "time": scale.description,
            "lines": found["num_lines"],
            "events": sum(days.values()),
            "left_out": {verdict: number for verdict, number in verdicts.items() if verdict in LEFT_OUT},
            "rejected": rejected,
            "many_queries": hints,
            "days": days,
            "files": about,
        }
        rejects = self._write_rejects(log, source) if rejected else None
        con.execute("drop table int_refused_lines")
        return Staged(source, entry, files, rejects, bad_times, frequent)

    def _load(self, log: LogFile, source: SourceFile) -> None:
        """Load a log into the table `stg_lines`. Raises InputError when it cannot be read or changes meanwhile."""
        config, path = self.staging.config, glob.escape(str(log.path))
        params = {
            "keeps_query": bool(config.keep_query),
            "max_url_bytes": MAX_URL_BYTES,
            "max_user_bytes": MAX_USER_BYTES,
            "max_time_bytes": MAX_TIME_BYTES,
            "crawler_pattern": CRAWLER_PATTERN,
            "asset_pattern": ASSET_PATTERN,
            "path": path,
            "views": list(log.views),
        }
        reader, sources = None, {}
        with self.remote.present(source):
            try:
                if log.format == "parquet" and log.is_nested:
                    self.con.register("source_fields", read_parquet(log))
                elif log.format == "parquet":
                    # DuckDB ignores the case of names, and renames columns that differ only in case.
                    found = self.con.read_parquet(path, hive_partitioning=False).columns
                    names = dict(zip(pq.read_schema(log.path).names, found, strict=True))
                    params |= {f"{role}_column": names.get(log.columns[role] or "", _ABSENT) for role in ROLES}
                    sources["source_fields"] = "staging/parquet_fields"
                else:
                    reader = BlockReader(log, self.progress.add)
                    is_json = log.format == "jsonl" and not log.is_nested
                    self.con.register("delivered_lines" if is_json else "source_fields", reader.open())
                    if is_json:
                        params["pointers"] = [_point_to(log.columns[role] or _ABSENT) for role in ROLES]
                        sources["source_fields"] = "staging/json_fields"
                create_table(self.con, "staging/stg_lines", params, **sources, split_fields="staging/split_fields")
            except duckdb.Error as error:
                raise _explain_reading(log.path, reader, error) from error
        self.progress.add(source.bytes - (reader.done_bytes if reader else 0))

    @property
    def _url_rules(self) -> UrlRules:
        return UrlRules.of_record(rules_of(self.staging.config))

    def _find_query_hints(self) -> list[dict[str, Any]]:
        """Return the pages in `stg_lines` with very many different queries: page, num_queries (approximate), keys."""
        params = {"asset_pattern": ASSET_PATTERN, "least_queries": LEAST_QUERIES, "most_hints": MOST_HINTS}
        rows = fetch_rows(self.con, "intermediate/int_query_hints", params)
        hints = [{"page": canonical_item(row.pop("path"), self._url_rules)} | row for row in rows]
        return [hint for hint in hints if hint["page"]]

    def _write_parts(
        self, log: LogFile, source: SourceFile, scale: TimeScale, parts: range
    ) -> tuple[dict[int, list[Path]], bool]:
        """Write the events of each part of `stg_lines`, one sorted file per day; adds to `int_refused_lines`.

        Returns the files of each day, and whether a user has more than a tenth of the events of a part.
        """
        params = scale.params | {"latest": self.staging.now + timedelta(days=1)}
        rules = SourceRules(
            int(source.source_id, 16), self._url_rules, log.is_access_log, scale.is_dated, self.staging.partitions, self.user_key,
            self.forgotten,
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
            for day, table in events.split_days():
                path = folder / f"{source.source_id}.{first_row}.{day}.parquet"
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

    def _write_rejects(self, log: LogFile, source: SourceFile) -> Path:
        path = self.staging.folder / "rejects" / f"{source.source_id}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        line_bits = LIST_BITS if log.has_lists else 0
        params = {"source_name": source.name, "left_out": list(LEFT_OUT), "line_bits": line_bits}
        rows = stream_rows(self.con, "intermediate/int_rejects", params)
        with pq.ParquetWriter(path, rows.schema, compression="zstd") as writer:
            for batch in rows:
                writer.write_batch(batch)
        return path


def _point_to(name: str) -> str:
    """Return the JSON pointer to a key of an object."""
    return f"/{name.replace('~', '~0').replace('/', '~1')}"


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
