"""What a log file is: its compression, its format, and which of its columns are what, from its first bytes.

The format is told by the extension, else by the first lines; the compression by the first bytes. Whatever is not of a
shape that can be read raises InputError here, before anything is written.
"""

import csv
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.config import ColumnsConfig, IngestConfig, pattern_groups
from tasks.ingest.access_lines import check_fit, is_access_line, recognise_layout
from tasks.ingest.log_columns import OPTIONAL, REQUIRED, Columns, find_columns
from trainer.errors import InputError

HEAD_BYTES = 65_536
HEAD_LINES = 100
_EXTENSIONS = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_COMPRESSED = (".gz", ".gzip", ".zst", ".zstd")
_DELIMITERS = ",\t;|"


class EmptyLogError(InputError):
    """A log has no lines, so that nothing can be told of its columns."""


@dataclass(frozen=True)
class LogFile:
    """A log that can be read.

    format       csv, tsv, jsonl, parquet, access, or pattern (read by ingest.access_pattern)
    compression  none, gzip or zstd (of the file as a whole: Parquet's own is Parquet's business)
    header       names of the columns as the file has them; of JSON lines, the keys of the first lines
    columns      role (user, url, time, method, status, agent) → name of its column, or group, None where there is none
    pattern      the regular expression that splits a line into fields; empty where there is another way
    fields       which field is the user and which the page, for a person
    """

    path: Path
    format: str
    compression: str = "none"
    delimiter: str = ","
    header: tuple[str, ...] = ()
    columns: Columns = ()
    pattern: str = ""
    fields: str = ""

    def column(self, role: str) -> str | None:
        return dict(self.columns)[role]

    @property
    def is_access_log(self) -> bool:
        """Whether lines are requests, so that some of them are no visits to a page."""
        return self.format == "access" or self.column("method") is not None or self.column("status") is not None

    @property
    def has_times(self) -> bool:
        return self.format == "access" or self.column("time") is not None

    def without_pages(self) -> "LogFile":
        """The same log with fewer columns to read: enough to tell its users."""
        columns = tuple((role, None if role in ("url", "time") else name) for role, name in self.columns)
        return replace(self, columns=columns)

    def describe(self) -> str:
        return self.format if self.compression == "none" else f"{self.format} {self.compression}"


def recognise(path: Path, config: IngestConfig) -> LogFile:
    """What the file at `path` is. Raises InputError when it is empty, damaged, or lacks a column that is needed."""
    log = _recognise(path, config)
    if log.fields:
        return log
    told = [f"{word}: {name}" for word, role in (("user", "user"), ("page", "url")) if (name := log.column(role))]
    return replace(log, fields=", ".join(told))


def _recognise(path: Path, config: IngestConfig) -> LogFile:
    wanted = config.columns
    with open(path, "rb") as file:
        magic = file.read(4)
    if not magic:
        raise EmptyLogError(f"{path} is empty (0 bytes): deliver it whole, or leave it out of --logs")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    expected = next((_EXTENSIONS[s] for s in reversed(suffixes) if s in _EXTENSIONS and s not in _COMPRESSED), None)
    if magic == b"PAR1":
        return _recognise_parquet(path, wanted)
    if expected == "parquet":
        raise InputError(
            f"{path} is no Parquet file (it does not begin with PAR1): deliver it again, or name it rightly"
        )
    compression = next((name for start, name in _COMPRESSIONS.items() if magic.startswith(start)), "none")
    if compression == "none" and suffixes and suffixes[-1] in _COMPRESSED:
        raise InputError(
            f"{path} is not compressed as its name says: deliver it again, or name it without {suffixes[-1]}"
        )
    lines, is_all = _read_head(path, compression)
    if not expected and config.access_pattern:
        check_fit(path, lines[:HEAD_LINES], config.access_pattern)
        groups = pattern_groups(config.access_pattern)
        columns = tuple((role, role if role in groups else None) for role in (*REQUIRED, *OPTIONAL))
        return LogFile(path, "pattern", compression, columns=columns, pattern=config.access_pattern)
    format = expected or _guess_format(lines)
    if format == "access":
        layout = recognise_layout(path, lines[:HEAD_LINES])
        columns = tuple((role, role) for role in (*REQUIRED, *OPTIONAL))
        return LogFile(path, format, compression, columns=columns, pattern=layout.pattern, fields=layout.fields)
    if format == "jsonl":
        header = _json_keys(path, lines)
        return LogFile(path, format, compression, header=header, columns=find_columns(path, header, wanted))
    log = _recognise_delimited(path, format, compression, lines, wanted)
    if is_all and len(lines) == 1:
        raise EmptyLogError(f"{path} has a header and no lines: leave it out of --logs, or deliver it whole")
    return log


def open_log(log: LogFile) -> tuple[IO[bytes], IO[bytes]]:
    """The bytes of a log without its compression, and the file under them (whose position tells how far one is)."""
    raw = pa.OSFile(str(log.path))
    if log.compression == "none":
        return raw, raw
    return pa.CompressedInputStream(raw, log.compression), raw


def largest_group(path: Path) -> int:
    """Bytes of the largest row group of a Parquet file, without compression."""
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    return max(group.total_byte_size for group in groups)


def explain_stream(path: Path, error: OSError) -> InputError:
    """What a failure of decompression means."""
    return InputError(
        f"{path} is cut short or damaged ({error}): it was not delivered whole; deliver it again, or leave it out of --logs"
    )


def _read_head(path: Path, compression: str) -> tuple[list[str], bool]:
    """The first lines of a text file, whole ones but for an only line, and whether they are all there are."""
    stream, raw = open_log(LogFile(path, "", compression))
    with raw, stream:
        try:
            head = stream.read(HEAD_BYTES)
        except OSError as error:
            raise explain_stream(path, error) from None
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is in UTF-16: convert it to UTF-8, for instance with iconv -f utf-16 -t utf-8")
    if not head.strip():
        raise EmptyLogError(f"{path} is empty (it has no line with anything in it): leave it out of --logs")
    if b"\n" not in head and b"\r" in head.rstrip(b"\r"):
        raise InputError(
            f"the lines of {path} end with a carriage return alone: convert them, for instance with tr '\\r' '\\n'"
        )
    is_all = len(head) < HEAD_BYTES
    if not is_all and b"\n" in head:
        head = head[: head.rindex(b"\n")]
    text = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")], is_all


def _guess_format(lines: list[str]) -> str:
    """The format of a text file whose name does not tell."""
    first = [line for line in lines if line.strip()][:HEAD_LINES]
    if first[0].lstrip().startswith(("{", "[{")):
        return "jsonl"
    return "access" if any(is_access_line(line) for line in first) else "csv"


def _json_keys(path: Path, lines: list[str]) -> tuple[str, ...]:
    """The keys of the objects in the first lines, in the order of their appearance."""
    keys: dict[str, None] = {}
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        keys.update(dict.fromkeys(value if isinstance(value, dict) else ()))
    if not keys or next(line for line in lines if line.strip()).lstrip().startswith("["):
        raise InputError(
            f"{path} has no JSON object a line: an array, or objects over several lines, cannot be read; "
            "convert it, for instance with jq -c '.[]'"
        )
    return tuple(keys)


def _recognise_delimited(path: Path, format: str, compression: str, lines: list[str], wanted: ColumnsConfig) -> LogFile:
    """A file with a header line; the delimiter is the one that makes the wanted columns appear."""
    first = next(line for line in lines if line.strip())
    if first is not lines[0]:
        raise InputError(f"the first line of {path} is blank: it must name the columns")
    headers = {d: _split_header(first, d) for d in (_DELIMITERS if format == "csv" else "\t")}
    delimiter = max(headers, key=lambda d: (_count_found(headers[d], wanted), len(headers[d])))
    header = headers[delimiter]
    columns = find_columns(path, header, wanted)
    name = {",": "csv", "\t": "tsv"}.get(delimiter, "csv")
    return LogFile(path, name, compression, delimiter, header, columns)


def _split_header(line: str, delimiter: str) -> tuple[str, ...]:
    try:
        return tuple(name.strip() for name in next(csv.reader([line], delimiter=delimiter)))
    except (csv.Error, StopIteration):
        return ()


def _count_found(header: tuple[str, ...], wanted: ColumnsConfig) -> int:
    there = {name.casefold() for name in header}
    return sum(any(name.casefold() in there for name in getattr(wanted, role)) for role in REQUIRED)


def _recognise_parquet(path: Path, wanted: ColumnsConfig) -> LogFile:
    try:
        with pq.ParquetFile(path) as file:
            header, num_rows = tuple(file.schema_arrow.names), file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} is cut short or damaged Parquet ({reason}): deliver it again") from None
    columns = find_columns(path, header, wanted)
    if not num_rows:
        raise EmptyLogError(f"{path} is empty (0 rows): leave it out of --logs, or deliver it whole")
    return LogFile(path, "parquet", header=header, columns=columns)
