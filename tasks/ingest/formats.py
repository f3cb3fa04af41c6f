"""Recognises a log file from its first bytes: its compression, its format, and the role of each column.

The format follows from the extension, else from the first lines; the compression from the first bytes. A file that cannot
be read raises InputError here, before anything is written.
"""

import csv
import difflib
import json
import re
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.config import ColumnsConfig, IngestConfig, pattern_groups
from surf2vec.tasks.ingest.access_lines import ACCESS_LINE, recognise_layout
from surf2vec.tasks.ingest.containers import STREAM_ERRORS, check_text, explain_stream, find_container, open_stream
from surf2vec.tasks.ingest.nested import list_fields
from surf2vec.tasks.ingest.sources import expand, is_remote
from surf2vec.trainer.errors import InputError

HEAD_BYTES = 65_536
HEAD_LINES = 100
_FILES_AT_ONCE = 8
_FAULTS_SHOWN = 5
_EXTENSIONS = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_COMPRESSED = (".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz", ".zip")
_DELIMITERS = ",\t;|"
ROLES = ("user", "url", "time", "date", "method", "status", "agent", "site", "view")
REQUIRED = ROLES[:3]
_WORDS = {"user": "the user", "url": "the URL", "time": "the time"}
# Usual column names, reduced to letters and digits, the likeliest first.
_KNOWN = {
    "user": (
        "userid", "user", "uid", "visitorid", "visitor", "customerid", "customer", "clientid", "memberid", "accountid",
        "cookieid", "cookie", "host", "clientip", "ipaddress", "ip", "remoteaddr", "remotehost", "cip", "client",
        "sessionid", "session",
    ),
    "url": (
        "url", "pageurl", "uri", "requesturi", "page", "path", "pagepath", "link", "location", "href", "csuristem", "pageid",
        "itemid", "item", "productid", "article", "document", "request",
    ),
    "time": (
        "ts", "timestamp", "time", "datetime", "eventtime", "createdat", "visitedat", "date", "when", "epoch", "unixtime",
        "order",
    ),
}  # fmt: skip


class EmptyLogError(InputError):
    """A log has no lines, so its columns are unknown."""


@dataclass(frozen=True)
class LogFile:
    """A log that can be read.

    format       csv, tsv, jsonl, parquet, access, or pattern (read by ingest.access_pattern)
    compression  none, gzip, zstd, bz2, xz or zip (of the file, not inside Parquet)
    header       names of the columns in the file; for JSON lines, the keys of the first lines
    columns      role (one of ROLES) → name of its column or group, or None
    pattern      the regular expression that splits a line into fields; empty for formats without one
    layout       describes for people which field of an access log is the user and which the page
    views        values of the column "view" in records of page views; others are left out
    separator    what separates several pages in the column of pages of a delimited log, if they are lists
    is_nested    whether records are read by tasks/ingest/records.py, as names are dotted
    has_lists    whether a record may have several pages
    """

    path: Path
    format: str
    compression: str = "none"
    delimiter: str = ","
    header: tuple[str, ...] = ()
    columns: dict[str, str | None] = field(default_factory=dict)
    pattern: str = ""
    layout: str = ""
    views: tuple[str, ...] = ()
    separator: str = ""
    is_nested: bool = False
    has_lists: bool = False

    @cached_property
    def positions(self) -> list[int | None]:
        """The column index of each role in a delimited log."""
        names = [self.columns[role] for role in ROLES]
        return [None if name is None else self.header.index(name) for name in names]

    @property
    def is_access_log(self) -> bool:
        """Whether lines are requests, some of which are not page visits."""
        return self.format == "access" or self.columns["method"] is not None or self.columns["status"] is not None

    @property
    def fields(self) -> str:
        """A description for people: which field is the user and which the page."""
        words = {"user": "user", "page": "url"}
        return self.layout or ", ".join(
            f"{word}: {self.columns[role]}" for word, role in words.items() if self.columns[role]
        )

    def describe(self) -> str:
        return self.format if self.compression == "none" else f"{self.format} {self.compression}"


def check_shapes(patterns: Sequence[str], config: IngestConfig) -> None:
    """Raise one InputError for all unreadable local files of the globs, and for globs without files. Remote logs are checked
    when they are fetched.
    """

    def find_fault(path: str) -> str | None:
        try:
            recognise(Path(path), config)
        except EmptyLogError:  # ingest decides whether to leave it out until it has lines
            return None
        except InputError as error:
            return str(error)
        except OSError as error:
            return f"cannot read {path}: {error.strerror}"
        return None

    paths = dict.fromkeys(path for pattern in patterns if not is_remote(pattern) for path in expand(pattern))
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        faults = [fault for fault in pool.map(find_fault, paths) if fault]
    if faults:
        more = [f"and {len(faults) - _FAULTS_SHOWN:,} more files"] if len(faults) > _FAULTS_SHOWN else []
        raise InputError("\n".join([*faults[:_FAULTS_SHOWN], *more]))


def recognise(path: Path, config: IngestConfig) -> LogFile:
    """Return the format of the file at `path`. Raises InputError when it is empty, damaged, or lacks a required column."""
    with open(path, "rb") as file:
        magic = file.read(4)
    if not magic:
        raise EmptyLogError(f"{path} is empty (0 bytes): deliver it whole, or leave it out of --logs")
    compression, name = find_container(path)
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    expected = next((_EXTENSIONS[suffix] for suffix in reversed(suffixes) if suffix in _EXTENSIONS), None)
    if magic == b"PAR1":
        return _recognise_parquet(path, config.columns)
    if expected == "parquet" and compression == "none":
        raise InputError(
            f"{path} is no Parquet file (it does not begin with PAR1): deliver it again, or correct its name"
        )
    if compression == "none" and suffixes and suffixes[-1] in _COMPRESSED:
        raise InputError(
            f"{path} is not compressed as its name says: deliver it again, or name it without {suffixes[-1]}"
        )
    head, is_all = _read_head(path, compression)
    lines = [line for line in head if line.strip()]
    log = LogFile(path, expected or "", compression)
    if not expected and config.access_pattern:
        if not pl.Series(lines[:HEAD_LINES], dtype=pl.String).str.contains(config.access_pattern).any():
            raise InputError(
                f"ingest.access_pattern fits none of the first {len(lines[:HEAD_LINES]):,} lines of {path}: fix the pattern, "
                "or leave the file out of --logs (names that end in .csv, .tsv, .jsonl or .parquet are read as what they say)"
            )
        groups = pattern_groups(config.access_pattern)
        columns = {role: role if role in groups else None for role in ROLES}
        return replace(log, format="pattern", columns=columns, pattern=config.access_pattern)
    if expected == "jsonl" or (not expected and lines and lines[0].lstrip().startswith(("{", "[{"))):
        return _choose_fields(replace(log, format="jsonl"), (), _json_objects(path, lines), config.columns)
    if not expected and any(ACCESS_LINE.match(line) for line in lines[:HEAD_LINES]):
        pattern, layout = recognise_layout(path, head[:HEAD_LINES])
        columns = {role: role if f"(?P<{role}>" in pattern else None for role in ROLES}
        return replace(log, format="access", columns=columns, pattern=pattern, layout=layout)
    if not head[0].strip():
        raise InputError(f"the first line of {path} is blank: it must name the columns")
    log = _recognise_delimited(log, head[0], config.columns)
    if is_all and len(head) == 1:
        raise EmptyLogError(f"{path} has a header and no lines: leave it out of --logs, or deliver it whole")
    return log


def _read_head(path: Path, compression: str) -> tuple[list[str], bool]:
    """Return the first complete lines of a text file (a single line may be cut), and whether they are all its lines."""
    try:
        stream, raw = open_stream(path, compression)
        with raw, stream:
            head = stream.read(HEAD_BYTES)
    except STREAM_ERRORS as error:
        raise explain_stream(path, error) from None
    check_text(path, compression, head)
    if not head.strip():
        raise EmptyLogError(f"{path} is empty (it has no line with anything in it): leave it out of --logs")
    if b"\n" not in head and b"\r" in head.rstrip(b"\r"):
        raise InputError(
            f"the lines of {path} end with a carriage return alone: convert them, for instance with tr '\\r' '\\n'"
        )
    is_all = len(head) < HEAD_BYTES
    if not is_all and b"\n" in head:
        head = head[: head.rindex(b"\n")]
    text = head.decode("utf-8-sig", errors="replace")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")], is_all


def _json_objects(path: Path, lines: list[str]) -> list[dict[str, Any]]:
    """Return the objects in the first lines."""
    objects = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            objects.append(json.loads(line))
    objects = [value for value in objects if isinstance(value, dict)]
    if not objects or lines[0].lstrip().startswith("["):
        raise InputError(
            f"{path} has no JSON object a line: an array, or objects over several lines, cannot be read; "
            "convert it, for instance with jq -c '.[]'"
        )
    return objects


def _choose_fields(log: LogFile, flat: Sequence[str], records: list[dict[str, Any]], wanted: ColumnsConfig) -> LogFile:
    """Choose the fields of a log among flat columns and the fields of its first records.

    Raises InputError if one is missing, or a user or a time is a list.
    """
    in_list: dict[str, bool] = {}
    for name, is_list in chain.from_iterable(map(list_fields, records)):
        in_list[name] = in_list.get(name, False) or is_list
    header = (*flat, *in_list)
    columns = find_columns(log.path, header, wanted)
    lists = {role for role, name in columns.items() if in_list.get(name or "")}
    if refused := lists & {"user", "url" in lists or "time"}:
        role = refused.pop()
        raise InputError(
            f"{log.path} has a list for {_WORDS[role]} ({columns[role]!r}), which must be one value: name another column"
        )
    keys = {*flat, *(key for record in records for key in record)}
    is_nested = bool(lists or columns["date"] or {*filter(None, columns.values())} - keys)
    return replace(log, header=header, columns=columns, is_nested=is_nested, has_lists="url" in lists)


def _recognise_delimited(log: LogFile, first: str, wanted: ColumnsConfig) -> LogFile:
    """Recognise a file with a header line. The delimiter is the one that gives the most wanted columns."""
    headers: dict[str, tuple[str, ...]] = {}
    for delimiter in "\t" if log.format == "tsv" else _DELIMITERS:
        try:
            headers[delimiter] = tuple(name.strip() for name in next(csv.reader([first], delimiter=delimiter)))
        except (csv.Error, StopIteration):
            headers[delimiter] = ()

    def count_found(header: tuple[str, ...]) -> int:
        names = {name.casefold() for name in header}
        return sum(any(name.casefold() in names for name in getattr(wanted, role)) for role in REQUIRED)

    delimiter = max(headers, key=lambda one: (count_found(headers[one]), len(headers[one])))
    header = headers[delimiter]
    return replace(
        log,
        format="tsv" if delimiter == "\t" else "csv",
        delimiter=delimiter,
        header=header,
        columns=find_columns(log.path, header, wanted),
    )


def _recognise_parquet(path: Path, wanted: ColumnsConfig) -> LogFile:
    try:
        with pq.ParquetFile(path) as file:
            schema, num_rows = file.schema_arrow, file.metadata.num_rows
            nested = [field.name for field in schema if pa.types.is_nested(field.type)]
            batches = islice(file.iter_batches(HEAD_LINES, columns=nested), bool(nested))
            records = [record for batch in batches for record in batch.to_pylist()]
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} is cut short or damaged Parquet ({reason}): deliver it again") from None
    flat = [name for name in schema.names if name not in nested]
    log = _choose_fields(LogFile(path, "parquet"), flat, records, wanted)
    if not num_rows:
        raise EmptyLogError(f"{path} is empty (0 rows): leave it out of --logs, or deliver it whole")
    return log


def find_columns(path: Path, header: Sequence[str], wanted: ColumnsConfig) -> dict[str, str | None]:
    """Return the column of each role, or None: the first of its names with an exact match, else the first match that
    ignores case.

    Raises InputError when a name matches several columns, or for all required columns that are missing.
    """
    columns = {role: _find(path, header, getattr(wanted, role)) for role in ROLES}
    missing = [role for role in REQUIRED if columns[role] is None and getattr(wanted, role)]
    if missing:
        raise InputError(_describe_missing(path, header, wanted, missing))
    return columns


def _find(path: Path, header: Sequence[str], names: Sequence[str]) -> str | None:
    for fold in (str, str.casefold):
        for name in names:
            found = [column for column in header if fold(column) == fold(name)]
            if len(found) > 1 and fold is str:
                raise InputError(f"{path} has {len(found)} columns named {name!r}: rename all but the one meant")
            if len(found) > 1:
                listed = " and ".join(repr(column) for column in found)
                raise InputError(
                    f"{path} has {listed}, and {name!r} may be either: name the one meant as it is written"
                )
            if found:
                return found[0]
    return None


def _describe_missing(path: Path, header: Sequence[str], wanted: ColumnsConfig, missing: Sequence[str]) -> str:
    """Return a message with the missing columns, the existing ones, and settings to paste."""
    looked_for = " and ".join(f"{_name_fault(header, getattr(wanted, role))} for {_WORDS[role]}" for role in missing)
    if any(re.search(r"://|@|^/|^[\d.:TZ +-]*$|.{65}", name) for name in header):  # may be personal data: not shown
        return (
            f"{path} has {looked_for}; its first line looks like data, not like names of columns: give it a header line"
        )
    guesses = guess_columns(header, missing, taken=[name for role in ROLES for name in getattr(wanted, role)])
    settings = ["--set " + shlex.quote(f"ingest.columns.{role}={guesses.get(role, 'NAME')}") for role in missing]
    way_out = (
        f"{'perhaps' if guesses else 'name them with' if len(missing) > 1 else 'name it with'} {' '.join(settings)}"
    )
    if "time" in missing:
        way_out += ", or take the order of the lines for the time with --set 'ingest.columns.time=[]'"
    found = ", ".join(repr(name) for name in header[:50]) + (", ..." if len(header) > 50 else "")
    return f"{path} has {looked_for}; it has {found}; {way_out}"


def _name_fault(header: Sequence[str], names: Sequence[str]) -> str:
    """Return why none of the names is a column: there is none, or it is an object with fields of its own."""
    for name in names:
        if inner := [field for field in header if field.startswith(f"{name}.")]:
            return (
                f"an object {name!r}, whose fields are {', '.join(map(repr, inner[:10]))}{', ...' * (len(inner) > 10)},"
            )
    return f"no column {' or '.join(map(repr, names))}"


def guess_columns(header: Sequence[str], roles: Sequence[str], taken: Sequence[str] = ()) -> dict[str, str]:
    """Return role → likely column, by the usual names or similar ones; no column twice."""
    plain = {name: re.sub(r"[^a-z0-9]", "", name.casefold()) for name in reversed(header)}
    free = {word: name for name, word in plain.items() if name not in taken and word}
    guesses: dict[str, str] = {}
    for is_exact in (True, False):
        for role in roles:
            names: Sequence[str] = _KNOWN[role]
            if not is_exact:
                names = [near for name in names for near in difflib.get_close_matches(name, free, n=1, cutoff=0.75)]
            found = next((name for name in names if name in free), None)
            if found and role not in guesses:
                guesses[role] = free.pop(found)
    return guesses
