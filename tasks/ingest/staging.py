"""One source from its lines to its files: events a day, and rejects. Nothing is visible, or on the disk for good, until
`tasks/ingest/ingest.py` commits.

The lines are loaded once into DuckDB, which spills what does not fit into memory, with their URLs cut to what can tell pages
apart. They become events part by part (`tasks/ingest/make_events.py`), as many lines as memory allows; a source is one part
unless it is large, and the sorted parts of a day are merged. The files do not depend on it.
"""

import glob
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import duckdb
import pyarrow.parquet as pq

from sql.runner import append_rows, copy_to_parquet, create_macro, create_table, fetch_rows, stream_rows
from tasks.config import IngestConfig
from tasks.events.events_files import write_events
from tasks.ingest.blocks import BlockReader
from tasks.ingest.deliveries import read_by
from tasks.ingest.formats import LogFile, largest_group
from tasks.ingest.log_columns import OPTIONAL, REQUIRED
from tasks.ingest.make_events import MAX_USER_BYTES, SourceRules, make_events, name_users
from tasks.ingest.sources import SourceFile, check_unchanged
from tasks.ingest.times import EARLIEST, TimeScale, recognise_times
from tasks.ingest.urls import ASSET_PATTERN, CRAWLER_PATTERN, UrlRules, canonical_item
from tasks.users.placement import user_hash
from tasks.users.tombstones import FORGOTTEN, NOBODY, Tombstones
from trainer.errors import InputError
from trainer.events import OnEvent
from trainer.system.files import describe_file
from trainer.system.units import size

LEFT_OUT = ("not a GET request", "status 400 or above", "crawler", "static asset", "not a page", FORGOTTEN)
UNDATED = "undated"
MAX_URL_BYTES = 8192
MAX_TIME_BYTES = 100
BAD_TIMES = 3  # shown to a person: times are of no person
SAMPLE_FACTOR = 256
LEAST_QUERIES, MOST_HINTS = 100, 3  # of a page that is told of, and such pages of a source
# What a part of a source takes at its peak: a line beside its text, a distinct string, and copies of its text.
LINE_BYTES, DISTINCT_BYTES, TEXT_COPIES = 120, 60, 3
_MODELS = {
    "csv": "delimited",
    "tsv": "delimited",
    "jsonl": "json",
    "access": "delimited",
    "pattern": "delimited",
    "parquet": "parquet",
}
_ABSENT = "surf2vec_absent"
_EPOCH = date(1970, 1, 1)


@dataclass
class Progress:
    """How many bytes of the logs are read, and who reads now; files are read on several threads, one reports."""

    total: int
    on_event: OnEvent
    done: int = 0
    readers: set[BlockReader] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def begin(self, reader: BlockReader | None) -> None:
        with self._lock:
            self.readers |= {reader} if reader else set()

    def end(self, reader: BlockReader | None, num_bytes: int) -> None:
        with self._lock:
            self.readers -= {reader} if reader else set()
            self.done += num_bytes

    def report(self) -> None:
        with self._lock:
            done = self.done + sum(reader.done_bytes for reader in self.readers)
        values = {"step": "ingest", "done": min(done, self.total), "total": self.total, "unit": "bytes"}
        self.on_event("progress", values)


@dataclass(frozen=True)
class Staged:
    """A source that is ready: its entry of sources.json but for its names, and its files (name under the root → where it is)."""

    source: SourceFile
    entry: dict[str, Any]
    files: dict[str, Path]
    rejects: Path | None
    bad_times: tuple[str, ...] = ()

    @property
    def paths(self) -> list[Path]:
        return [*self.files.values(), *([self.rejects] if self.rejects else [])]

    @property
    def num_rejected(self) -> int:
        return sum(self.entry["rejected"].values())


def define_session(con: duckdb.DuckDBPyConnection, config: IngestConfig) -> None:
    """Make what each cursor of a connection has of its own and the SQL steps share: the zone of times without one, macros."""
    con.execute("set TimeZone = $timezone", {"timezone": config.timezone})
    con.execute("set preserve_insertion_order = false")  # lines have numbers; what is ordered says so
    line = ("rejected", "url", "method", "status", "agent", "max_url_bytes", "crawler_pattern")
    create_macro(con, "staging/line_verdict", line)
    create_macro(con, "staging/page_key", ("url", "keeps_query", "max_url_bytes"))
    create_macro(con, "staging/bounded", ("value", "max_bytes"))
    create_macro(con, "staging/whole_number", ("value", "column_type"))
    create_macro(con, "staging/is_fraction", ("value", "column_type"))
    create_macro(con, "staging/sampled_query", ("url", "keeps_query", "max_url_bytes"))


@dataclass(frozen=True)
class Stager:
    """What is the same for every source of a call: a connection with its rules, the user key, where files go.

    A connection stages one source at a time; several stagers may work at once, each with a cursor.
    """

    con: duckdb.DuckDBPyConnection
    config: IngestConfig
    user_key: bytes | None = field(repr=False)
    folder: Path
    part_bytes: int
    progress: Progress
    forgotten: Tombstones = NOBODY
    present: Callable[[SourceFile], AbstractContextManager[None]] = check_unchanged
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))

    def with_cursor(self) -> "Stager":
        """Another stager on the same database."""
        cursor = self.con.cursor()
        define_session(cursor, self.config)
        return replace(self, con=cursor)

    def sample_users(self, log: LogFile, source: SourceFile) -> set[int]:
        """The hashes of one in SAMPLE_FACTOR of the users of a source; its lines stay loaded."""
        self.load(log, source)
        has_key = self.user_key is not None
        params = {"max_user_bytes": MAX_USER_BYTES, "sample_factor": SAMPLE_FACTOR, "has_key": has_key}
        sampled: set[int] = set()
        for batch in stream_rows(self.con, "intermediate/int_sampled_users", params):
            hashes = map(user_hash, name_users(batch["user_id"], self.user_key).to_pylist())
            sampled |= {number for number in hashes if number % SAMPLE_FACTOR == 0}
        return sampled

    def stage(self, log: LogFile, source: SourceFile, partitions: int, is_loaded: bool = False) -> Staged:
        """Write the files of a source. With `is_loaded`, it is the one that was loaded last.

        Raises InputError when the file cannot be read or changes while it is read.
        """
        if not is_loaded:
            self.load(log, source)
        [found] = fetch_rows(self.con, "intermediate/int_source_size")
        num_lines = found["num_lines"]
        scale = recognise_times(self.con, log, num_lines, self.config.timezone, self.config.time_format)
        create_table(self.con, "intermediate/int_refused_lines")
        parts = range(0, num_lines, _choose_part_lines(self.part_bytes, **found))
        sorted_parts = self._write_parts(source, parts, self._rules(log, source, scale, partitions))
        hints = self._find_query_hints()
        counts = fetch_rows(self.con, "intermediate/int_verdict_counts")
        bad_times = [row["time"] for row in fetch_rows(self.con, "intermediate/int_bad_times", {"most": BAD_TIMES})]
        self._drop_tables("stg_lines")
        verdicts: dict[str, int] = {row["verdict"]: row["num_lines"] for row in counts}
        rejected = {verdict: number for verdict, number in verdicts.items() if verdict not in LEFT_OUT}
        days = {_day_name(day if scale.is_dated else None): sorted_parts[day] for day in sorted(sorted_parts)}
        names = {day: f"events/day={day}/{source.source_id}.parquet" for day in days}
        files = {names[day]: self._merge_parts(names[day], days[day], partitions) for day in days}
        rows = {name: pq.read_metadata(path).num_rows for name, path in files.items()}
        entry = {
            "sha256": source.sha256,
            "bytes": source.bytes,
            "format": log.describe(),
            "fields": log.fields,
            "read_by": read_by(self.config),
            "time": scale.description,
            "lines": num_lines,
            "events": sum(rows.values()),
            "left_out": {verdict: number for verdict, number in verdicts.items() if verdict in LEFT_OUT},
            "rejected": rejected,
            "many_queries": hints,
            "days": {day: rows[name] for day, name in names.items()},
            "files": {name: {"rows": rows[name]} | describe_file(path) for name, path in files.items()},
        }
        rejects = self._write_rejects(source) if rejected else None
        self._drop_tables("int_refused_lines")
        return Staged(source, entry, files, rejects, tuple(bad_times))

    def load(self, log: LogFile, source: SourceFile) -> None:
        """Make `stg_lines` of a log."""
        with self.present(source):
            self._load(log, source)

    def _load(self, log: LogFile, source: SourceFile) -> None:
        path = str(log.path)
        params = {
            "keeps_query": bool(self.config.keep_query),
            "max_url_bytes": MAX_URL_BYTES,
            "max_user_bytes": MAX_USER_BYTES,
            "max_time_bytes": MAX_TIME_BYTES,
            "crawler_pattern": CRAWLER_PATTERN,
            "path": glob.escape(path),
            "pointers": [_pointer(log.column(role)) for role in (*REQUIRED, *OPTIONAL)],
        }
        reader = None if log.format == "parquet" else BlockReader(log)
        if reader:
            self.con.register("delivered_lines" if log.format == "jsonl" else "delivered_fields", reader.open())
        self.progress.begin(reader)
        try:
            if log.format == "parquet":
                params |= self._name_columns(log, glob.escape(path))
            create_table(self.con, f"staging/{_MODELS[log.format]}/stg_lines", params)
        except duckdb.Error as error:
            raise _explain_reading(path, reader, error) from error
        finally:
            self.progress.end(reader, source.bytes)

    def _name_columns(self, log: LogFile, path: str) -> dict[str, str]:
        """DuckDB's names of the columns of a Parquet file: it knows no upper and lower case, and renames what is alike then."""
        described = self.con.execute(
            "describe select * from read_parquet($path, hive_partitioning = false)", {"path": path}
        )
        names = dict(zip(log.header, (row[0] for row in described.fetchall()), strict=True))
        return {f"{role}_column": names.get(log.column(role) or "", _ABSENT) for role in (*REQUIRED, *OPTIONAL)}

    @property
    def _url_rules(self) -> UrlRules:
        config = self.config
        return UrlRules(config.item_kind, config.prefix_depth, config.keep_query, config.mask_secrets)

    def _find_query_hints(self) -> list[dict[str, Any]]:
        """Pages of the loaded `stg_lines` with very many different queries: page, num_queries (about), keys."""
        params = {"asset_pattern": ASSET_PATTERN, "least_queries": LEAST_QUERIES, "most_hints": MOST_HINTS}
        rows = fetch_rows(self.con, "intermediate/int_query_hints", params)
        pages = [canonical_item(row["path"], self._url_rules) for row in rows]
        return [
            {"page": page, "num_queries": row["num_queries"], "keys": row["keys"]}
            for page, row in zip(pages, rows, strict=True)
            if page
        ]

    def _rules(self, log: LogFile, source: SourceFile, scale: TimeScale, partitions: int) -> SourceRules:
        params = {
            "time_kind": scale.kind,
            "time_formats": list(self.config.time_format) or ["%Y"],
            "is_dated": scale.is_dated,
            "earliest": EARLIEST,
            "latest": self.now + timedelta(days=1),
        }
        return SourceRules(
            int(source.source_id, 16), self._url_rules, log.is_access_log, scale.is_dated, partitions, params, self.user_key,
            self.forgotten,
        )  # fmt: skip

    def _write_parts(self, source: SourceFile, parts: range, rules: SourceRules) -> dict[int, list[Path]]:
        """Write the events of each part of `stg_lines`, a sorted file a day; adds to `int_refused_lines`."""
        paths: dict[int, list[Path]] = {}
        folder = self.folder / "parts"
        folder.mkdir(exist_ok=True)
        for first_row in parts:
            rows = {"first_row": first_row, "end_row": first_row + parts.step}
            lines = stream_rows(self.con, "intermediate/int_timed_lines", rules.sql | rows)
            events = make_events(self.con, lines, rules)
            append_rows(self.con, "int_refused_lines", events.refused)
            for day, table in events.split_days():
                path = folder / f"{source.source_id}.{first_row}.{day}.parquet"
                write_events(path, table.to_reader())
                paths.setdefault(day, []).append(path)
        return paths

    def _merge_parts(self, name: str, parts: list[Path], partitions: int) -> Path:
        """One sorted file of a day's parts."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if len(parts) == 1:
            os.replace(parts[0], path)
        else:
            params = {"files": [glob.escape(str(part)) for part in parts], "partitions": partitions}
            write_events(path, stream_rows(self.con, "intermediate/int_sorted_events", params))
            for part in parts:
                part.unlink()
        return path

    def _write_rejects(self, source: SourceFile) -> Path:
        path = self.folder / "rejects" / f"{source.source_id}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        params = {"source_name": source.name, "left_out": list(LEFT_OUT)}
        copy_to_parquet(self.con, "intermediate/int_rejects", path, params)
        return path

    def _drop_tables(self, *names: str) -> None:
        for name in names:
            self.con.execute(f"drop table if exists {name}")


def _explain_reading(path: str, reader: BlockReader | None, error: duckdb.Error) -> Exception:
    """What went wrong while a log was loaded: the reader's own error, or DuckDB's about a Parquet file."""
    if reader and reader.error:
        return reader.error
    if isinstance(error, duckdb.OutOfMemoryException):
        place = (
            f"near line {reader.at_line:,}"
            if reader
            else f"its largest row group has {size(largest_group(Path(path)))}"
        )
        return duckdb.OutOfMemoryException(f"{path}: {place}; {error}")
    if reader or "No space left" in str(error):
        return error
    if "UTF8" in str(error):  # the rest of that message is a value out of the file
        return InputError(f"{path} has text that is not valid UTF-8, which Parquet demands: write it anew, or as CSV")
    return InputError(f"{path} cannot be read as Parquet ({type(error).__name__}): it is damaged; deliver it again")


def _choose_part_lines(
    part_bytes: int, num_lines: int, text_bytes: int, num_distinct: int, distinct_text_bytes: int
) -> int:
    """Lines a part, so that parts are about as large as may be: all its strings may be new, but no more than the source has."""
    line_text_bytes = text_bytes / max(1, num_lines)
    line_bytes = LINE_BYTES + line_text_bytes
    most_new_bytes = 2 * DISTINCT_BYTES + TEXT_COPIES * line_text_bytes
    all_new_bytes = num_distinct * DISTINCT_BYTES + TEXT_COPIES * distinct_text_bytes
    part_lines = max(part_bytes / (line_bytes + most_new_bytes), (part_bytes - all_new_bytes) / line_bytes, 1)
    return max(1, math.ceil(num_lines / max(1, math.ceil(num_lines / part_lines))))


def _pointer(key: str | None) -> str:
    """The JSON pointer to a key; to one that no log has, where there is none."""
    return "/" + (key or _ABSENT).replace("~", "~0").replace("/", "~1")


def _day_name(day: int | None) -> str:
    return UNDATED if day is None else (_EPOCH + timedelta(days=day)).isoformat()
