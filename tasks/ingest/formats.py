"""Recognises a log file from its first bytes: its compression, its format, and the role of each column.

The format follows from the extension, else from the first lines; the compression from the first bytes. A file that cannot
be read raises InputError here, before anything is written.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.config import IngestConfig, Layout
from surf2vec.tasks.ingest.columns import ROLES, Values, choose_columns
from surf2vec.tasks.ingest.containers import STREAM_ERRORS, check_text, explain_stream, find_container, open_stream
from surf2vec.tasks.ingest.layouts import NO_LAYOUT, REQUIRED, describe_fields, find_by_lines, list_layouts
from surf2vec.tasks.ingest.nested import find, list_fields, make_example
from surf2vec.tasks.ingest.shapes import FIELDS_LINE, Shape, count_wanted, find_shape
from surf2vec.trainer.errors import InputError

HEAD_BYTES = 65_536
HEAD_LINES = 100
ACCESS_LINE = re.compile(r'.*\[[^\]]+\] "[^"]*" \d{3}(?: |$)')  # anything may precede the time
_EXTENSIONS = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_COMPRESSED = (".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz", ".zip")
_SHAPE = Shape()


class EmptyLogError(InputError):
    """A log has no lines, so its columns are unknown."""


@dataclass(frozen=True)
class LogFile:
    """A log that can be read.

    format       csv, tsv, w3c, jsonl, parquet; access and pattern: lines that the regular expression of the layout splits
    compression  none, gzip, zstd, bz2, xz or zip (of the file, not inside Parquet)
    header       names of the columns in the file; for nested records those of the values in the first ones
    columns      role (one of ROLES) → name of its column or group, or None
    shape        of a delimited log
    layout       of a known system: the values of its column "view" in records of page views (others are left out), the
                 separator of several pages in one field, and how times are written
    is_nested    whether records are read by tasks/ingest/records.py, as names are dotted
    has_lists    whether a record may have several pages
    types        of the columns of a Parquet file, as text
    """

    path: Path
    format: str
    compression: str = "none"
    header: tuple[str, ...] = ()
    columns: dict[str, str | None] = field(default_factory=dict)
    shape: Shape = _SHAPE
    layout: Layout = NO_LAYOUT
    is_nested: bool = False
    has_lists: bool = False
    types: str = ""

    @cached_property
    def positions(self) -> list[int | None]:
        """The column index of each role in a delimited log."""
        names = [self.columns[role] for role in ROLES]
        return [None if name is None else self.header.index(name) for name in names]

    @property
    def is_access_log(self) -> bool:
        """Whether lines are requests, some of which are not page visits."""
        return self.columns["method"] is not None or self.columns["status"] is not None

    @property
    def fields(self) -> str:
        """A description for people: its layout, which field is the user, the page and the time, and whether robots are known."""
        title = f"{self.layout.title}: " if self.layout.title else ""
        robots = ""
        if self.columns["agent"]:
            robots = f"; robots by {'the user agent' if self.layout.lines else self.columns['agent']}"
        elif self.is_access_log:
            robots = "; robots cannot be recognised, as no field has the user agent (ingest.columns.agent names one)"
        return f"{title}{describe_fields(self.layout, self.columns)}{robots}"

    def describe(self) -> str:
        return self.format if self.compression == "none" else f"{self.format} {self.compression}"


def recognise(path: Path, config: IngestConfig) -> LogFile:
    """Return the format of the file at `path`. Raises InputError when it is empty, damaged, or lacks a required column."""
    if not path.stat().st_size:
        raise EmptyLogError(f"{path} is empty (0 bytes): deliver it whole, or leave it out of --logs")
    compression, name = find_container(path)
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    expected = next((_EXTENSIONS[suffix] for suffix in reversed(suffixes) if suffix in _EXTENSIONS), None)
    if compression == "parquet":
        return _recognise_parquet(path, config)
    if compression == "none" and (expected == "parquet" or (suffixes and suffixes[-1] in _COMPRESSED)):
        raise InputError(f"{path} is not what its name says, {suffixes[-1]}: deliver it again, or correct its name")
    head, is_all = _read_head(path, compression)
    lines = [line for line in head if line.strip()]
    log = LogFile(path, expected or "", compression)
    if expected == "jsonl" or (not expected and lines and lines[0].lstrip().startswith(("{", "[{"))):
        return _choose_fields(replace(log, format="jsonl"), (), _json_objects(path, lines), config)
    shape, header, rows = find_shape(head, log.format == "tsv", config)
    is_header = count_wanted(header, config) == len(REQUIRED) or any(line.startswith(FIELDS_LINE) for line in head)
    if not is_header and (found := _recognise_lines(log, lines, config)):
        return found
    if not head[0].strip():
        raise InputError(f"the first line of {path} is blank: it must name the columns")
    format = "w3c" if shape.is_w3c else "tsv" if shape.delimiter == "\t" else "csv"
    places = {name: place for place, name in enumerate(header)}
    columns, layout = choose_columns(
        path, header, config, lambda name: [row[places[name]] for row in rows if len(row) == len(header)]
    )
    if is_all and not rows:
        raise EmptyLogError(f"{path} has a header and no lines: leave it out of --logs, or deliver it whole")
    return replace(log, format=format, shape=shape, header=header, columns=columns, layout=layout)


def _recognise_lines(log: LogFile, lines: Sequence[str], config: IngestConfig) -> LogFile | None:
    """Return the log if most of its first lines have a layout of lines. Raises InputError if it is an access log of another."""
    layouts, texts = list_layouts(config), lines[:HEAD_LINES]
    access = [line for line in texts if not log.format and ACCESS_LINE.match(line)]
    layout, number = find_by_lines(access or texts, layouts)
    if layout and (config.layout or 2 * number > len(access or texts)):
        groups = ["site" if name == "host" else name for name in layout.groups]
        columns = {role: role if role in groups else None for role in ROLES}
        format = "access" if "status" in groups else "pattern"
        return replace(log, format=format, columns=columns, layout=layout, has_lists=bool(layout.separator))
    if config.layout and (access or layouts[config.layout].lines):
        raise InputError(
            f"{log.path} does not have the layout {config.layout}, which fits none of its first {len(texts):,} lines: "
            "`surf2vec layouts` lists the others"
        )
    if access:
        raise InputError(
            f"{log.path} looks like an access log, but {len(access) - number:,} of its first {len(access):,} lines have no "
            "layout that is known, which `surf2vec layouts` lists: say which field is the user with --set "
            "'ingest.layouts.own.lines=...', a regular expression with the groups (?P<user>...), (?P<url>...) and (?P<time>...)"
        )
    return None


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
        raise InputError(f"the lines of {path} end with a carriage return alone: convert them with tr '\\r' '\\n'")
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


def _choose_fields(
    log: LogFile, flat: Sequence[str], records: list[dict[str, Any]], config: IngestConfig, values: Values | None = None
) -> LogFile:
    """Choose fields among flat columns and those of records. Raises InputError if one is missing, or users or times are lists."""
    found = [pair for record in records for pair in list_fields(record)]
    alone, listed = ({name for name, is_list in found if is_list == wanted} for wanted in (False, True))
    header = (*flat, *dict.fromkeys(name for name, _ in found))
    columns, layout = choose_columns(
        log.path, header, config, values or (lambda name: [find(record, name) for record in records[:HEAD_LINES]])
    )
    lists = {role for role, name in columns.items() if name in listed}
    if refused := [role for role in lists & {"user", "url" in lists or "time"} if columns[role] not in alone]:
        role = refused[0]
        raise InputError(f"{log.path} has a list for the {role} ({columns[role]!r}), not one value: name another")
    keys = {*flat, *(key for record in records for key in record)}
    is_nested = bool(lists or columns["date"] or {*filter(None, columns.values())} - keys)
    return replace(log, header=header, columns=columns, layout=layout, is_nested=is_nested, has_lists="url" in lists)


def _recognise_parquet(path: Path, config: IngestConfig) -> LogFile:
    def read_head(columns: list[str] | None) -> list[dict[str, Any]]:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            batch = next(file.iter_batches(HEAD_LINES, columns=columns), None)
            return batch.to_pylist() if batch else []

    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            schema, num_rows = file.schema_arrow, file.metadata.num_rows
        nested = [field.name for field in schema if pa.types.is_nested(field.type)]
        records = [{name: value for name, value in record.items() if value is not None} for record in read_head(nested)]
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} is cut short or damaged Parquet ({reason}): deliver it again") from None
    flat = [name for name in schema.names if name not in nested]
    records.insert(0, {field.name: make_example(field.type) for field in schema if field.name in nested})
    log = LogFile(path, "parquet", types=str(schema.types))
    log = _choose_fields(log, flat, records, config, lambda name: [find(record, name) for record in read_head(None)])
    if not num_rows:
        raise EmptyLogError(f"{path} is empty (0 rows): leave it out of --logs, or deliver it whole")
    return log
