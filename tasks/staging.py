"""One source from its lines to its files: events a day, and rejects. Nothing is visible, or on the disk for good, until
`tasks/ingest.py` commits.

The lines are loaded once, with their URLs cut to what can tell pages apart. Users and pages are then looked at once each,
not once an event: pseudonyms, micro-partitions and the order of users come from the first, items from the second. What
is left is a join and a sort by numbers. DuckDB spills what does not fit into memory.
"""

import glob
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import duckdb
from duckdb.func import SPECIAL

from sql.runner import copy_to_parquet, create_macro, create_table, fetch_rows
from tasks.config import IngestConfig
from tasks.logblocks import BlockReader
from tasks.logfiles import OPTIONAL, REQUIRED, LogFile
from tasks.sources import SourceFile, read_stamp
from tasks.times import EARLIEST, TimeScale, recognise_times
from tasks.urls import ASSET_PATTERN, CRAWLER_PATTERN, UrlRules, canonical_item
from trainer.errors import InputError
from trainer.events import OnEvent
from trainer.files import describe_file

LEFT_OUT = ("not a GET request", "status 400 or above", "crawler", "static asset", "not a page")
UNDATED = "undated"
MAX_URL_BYTES = 8192
MAX_USER_BYTES = 1024
# Small row groups: a corpus of many micro-partitions reads a few of each file at a time. Lengths and differences (version 2)
# instead of dictionaries: a seventh smaller, and a quarter faster to write and to read.
PARQUET_OPTIONS = "compression_level 1, row_group_size 20480, parquet_version v2, dictionary_size_limit 1"
SAMPLE_FACTOR = 256
_MODELS = {"csv": "delimited", "tsv": "delimited", "jsonl": "json", "access": "access", "parquet": "parquet"}
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

    @property
    def paths(self) -> list[Path]:
        return [*self.files.values(), *([self.rejects] if self.rejects else [])]

    @property
    def num_rejected(self) -> int:
        return sum(self.entry["rejected"].values())


def url_rules(config: IngestConfig) -> UrlRules:
    return UrlRules(config.granularity, config.prefix_depth, config.keep_query)


def define_rules(con: duckdb.DuckDBPyConnection, config: IngestConfig) -> None:
    """Make what the SQL steps of a connection share: the function canonical_item, and the rules of its session."""
    rules = url_rules(config)
    con.create_function(
        "canonical_item", lambda url: canonical_item(url, rules), ["VARCHAR"], "VARCHAR", null_handling=SPECIAL
    )
    define_session(con, config)


def define_session(con: duckdb.DuckDBPyConnection, config: IngestConfig) -> None:
    """Make what each cursor of a connection has of its own: the zone of times without one, and the macros."""
    con.execute("set TimeZone = $timezone", {"timezone": config.timezone})
    con.execute("set preserve_insertion_order = false")  # lines have numbers; what is ordered says so
    line = ("rejected", "url", "method", "status", "agent", "max_url_bytes", "crawler_pattern")
    create_macro(con, "staging/line_verdict", line)
    create_macro(con, "staging/page_key", ("url", "keeps_query", "max_url_bytes"))


@dataclass(frozen=True)
class Stager:
    """What is the same for every source of a call: a connection with its rules, the pads of the user key, where files go.

    A connection stages one source at a time; several stagers may work at once, each with a cursor.
    """

    con: duckdb.DuckDBPyConnection
    config: IngestConfig
    pads: dict[str, bytes | None]
    folder: Path
    progress: Progress
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))

    def with_cursor(self) -> "Stager":
        """Another stager on the same database."""
        cursor = self.con.cursor()
        define_session(cursor, self.config)
        return replace(self, con=cursor)

    def sample_users(self, log: LogFile, source: SourceFile) -> set[int]:
        """The hashes of one in SAMPLE_FACTOR of the users of a source; its lines stay loaded."""
        self.load(log, source)
        rows = fetch_rows(self.con, "intermediate/int_sampled_users", {"sample_factor": SAMPLE_FACTOR})
        return {row["user_hash"] for row in rows}

    def stage(self, log: LogFile, source: SourceFile, partitions: int, is_loaded: bool = False) -> Staged:
        """Write the files of a source. With `is_loaded`, it is the one that was loaded last.

        Raises InputError when the file cannot be read or changes while it is read.
        """
        if not is_loaded:
            self.load(log, source)
        num_lines = self.con.table("stg_lines").count("*").fetchall()[0][0]
        scale = recognise_times(self.con, log, num_lines, self.config.timezone)
        self._judge(log, source, scale, partitions)
        counts = fetch_rows(self.con, "intermediate/int_verdict_counts")
        verdicts: dict[str, int] = {row["verdict"]: row["num_lines"] for row in counts if row["verdict"]}
        days = {row["day"]: row["num_lines"] for row in counts if row["verdict"] is None}
        rejected = {verdict: number for verdict, number in verdicts.items() if verdict not in LEFT_OUT}
        files = {_events_name(day, source): self._write_day(day, source) for day in days}
        entry = {
            "sha256": source.sha256,
            "bytes": source.bytes,
            "format": log.describe(),
            "time": scale.description,
            "lines": num_lines,
            "events": sum(days.values()),
            "left_out": {verdict: number for verdict, number in verdicts.items() if verdict in LEFT_OUT},
            "rejected": rejected,
            "days": {_day_name(day): number for day, number in days.items()},
            "files": {
                name: {"rows": rows} | describe_file(path)
                for (name, path), rows in zip(files.items(), days.values(), strict=True)
            },
        }
        rejects = self._write_rejects(source) if rejected else None
        self._drop_tables("int_judged_lines")
        return Staged(source, entry, files, rejects)

    def load(self, log: LogFile, source: SourceFile) -> None:
        """Make `stg_lines` and `int_source_users` of a log."""
        path = str(log.path)
        params = {
            "keeps_query": bool(self.config.keep_query),
            "max_url_bytes": MAX_URL_BYTES,
            "crawler_pattern": CRAWLER_PATTERN,
            "path": glob.escape(path),
            "pointers": [_pointer(log.column(role)) for role in (*REQUIRED, *OPTIONAL)],
        } | {f"{role}_column": log.column(role) or _ABSENT for role in (*REQUIRED, *OPTIONAL)}
        reader = None if log.format == "parquet" else BlockReader(log)
        if reader:
            self.con.register("delivered_fields" if reader.layout else "delivered_lines", reader.open())
        self.progress.begin(reader)
        try:
            create_table(self.con, f"staging/{_MODELS[log.format]}/stg_lines", params)
        except duckdb.Error as error:
            raise _explain_reading(path, reader, error) from error
        finally:
            self.progress.end(reader, source.bytes)
        if read_stamp(path) != source.stamp:
            raise InputError(f"{path} changed while it was read: deliver it again when it is complete")
        create_table(self.con, "intermediate/int_source_users", self.pads | {"max_user_bytes": MAX_USER_BYTES})

    def _judge(self, log: LogFile, source: SourceFile, scale: TimeScale, partitions: int) -> None:
        """Make `int_judged_lines` of `stg_lines`."""
        params = {
            "partitions": partitions,
            "canonical_pattern": url_rules(self.config).canonical_pattern,
            "drops_assets": log.is_access_log,
            "asset_pattern": ASSET_PATTERN,
            "time_kind": scale.kind,
            "is_dated": scale.is_dated,
            "earliest": EARLIEST,
            "latest": self.now + timedelta(days=1),
        }
        for name in ("int_ranked_users", "int_source_pages", "int_judged_lines"):
            create_table(self.con, f"intermediate/{name}", params)
        self._drop_tables("stg_lines", "int_source_users", "int_ranked_users", "int_source_pages")

    def _write_day(self, day: int | None, source: SourceFile) -> Path:
        path = self.folder / _events_name(day, source)
        path.parent.mkdir(parents=True, exist_ok=True)
        params = {"day": day, "source_number": int(source.source_id, 16)}
        copy_to_parquet(self.con, "intermediate/int_day_events", path, params, PARQUET_OPTIONS)
        return path

    def _write_rejects(self, source: SourceFile) -> Path:
        path = self.folder / "rejects" / f"{source.source_id}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        params = {"source_name": source.name, "left_out": list(LEFT_OUT)}
        copy_to_parquet(self.con, "intermediate/int_rejects", path, params)
        return path

    def _drop_tables(self, *names: str) -> None:
        for name in names:
            self.con.execute(f"drop table {name}")


def _explain_reading(path: str, reader: BlockReader | None, error: duckdb.Error) -> Exception:
    """What went wrong while a log was loaded: the reader's own error, or DuckDB's about a Parquet file."""
    if reader and reader.error:
        return reader.error
    is_ours = isinstance(error, duckdb.OutOfMemoryException) or "No space left" in str(error)
    if reader or is_ours:
        return error
    if "UTF8" in str(error):  # the rest of that message is a value out of the file
        return InputError(f"{path} has text that is not valid UTF-8, which Parquet demands: write it anew, or as CSV")
    return InputError(f"{path} cannot be read as Parquet ({type(error).__name__}): it is damaged; deliver it again")


def _pointer(key: str | None) -> str:
    """The JSON pointer to a key; to one that no log has, where there is none."""
    return "/" + (key or _ABSENT).replace("~", "~0").replace("/", "~1")


def _day_name(day: int | None) -> str:
    return UNDATED if day is None else (_EPOCH + timedelta(days=day)).isoformat()


def _events_name(day: int | None, source: SourceFile) -> str:
    return f"events/day={_day_name(day)}/{source.source_id}.parquet"
