"""Lines of delimited fields (CSV, TSV) as columns, a block at a time.

Arrow's reader is fast but takes a block as a whole. Its answer is taken when it accounts for every line of the block;
where it does not (a quote left open, a record over several lines, bytes that are no UTF-8), Python reads the block line by
line and says of each line what is wrong with it. Both agree on what a field is: quotes at the start of a field enclose it,
two of them inside stand for one, elsewhere they are themselves.
"""

import csv
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from tasks.ingest.formats import LogFile
from tasks.ingest.log_columns import OPTIONAL, REQUIRED

FIELDS = ("user_id", "url", "time", "method", "status", "agent")
FIELDS_SCHEMA = pa.schema([("line", pa.int64()), *((name, pa.string()) for name in FIELDS), ("rejected", pa.string())])
MAX_RECORD_LINES = 100
WRONG_COLUMNS = "wrong number of columns"
OPEN_QUOTE = "unterminated quote"
STRAY_RETURN = "carriage return inside a line"
NOT_UTF8 = "invalid UTF-8"
NUL_BYTE = "NUL byte"

csv.field_size_limit(1 << 24)  # the module's own limit is less than a long URL; a block bounds a field here


@dataclass(frozen=True)
class Layout:
    """Where the fields are: positions[i] is the column of FIELDS[i], None where the log has none."""

    delimiter: str
    num_columns: int
    positions: tuple[int | None, ...]

    @classmethod
    def of(cls, log: LogFile) -> "Layout":
        names = [log.column(role) for role in (*REQUIRED, *OPTIONAL)]
        positions = tuple(None if name is None else log.header.index(name) for name in names)
        return cls(log.delimiter, len(log.header), positions)

    @cached_property
    def _names(self) -> list[str]:
        return [f"c{position}" for position in range(self.num_columns)]

    @cached_property
    def wanted(self) -> list[str]:
        """Names of the columns to convert, each once."""
        return list(dict.fromkeys(self._names[position] for position in self.positions if position is not None))

    def read(self, data: bytes) -> tuple[pa.Table, list[pacsv.InvalidRow]]:
        """Arrow's reading of a block: the rows of the wanted columns, and the rows that have another number of columns."""
        invalid: list[pacsv.InvalidRow] = []

        def skip(row: pacsv.InvalidRow) -> str:
            invalid.append(row)
            return "skip"

        table = pacsv.read_csv(
            pa.BufferReader(data),
            read_options=pacsv.ReadOptions(use_threads=False, column_names=self._names, block_size=len(data) + 1),
            parse_options=pacsv.ParseOptions(
                delimiter=self.delimiter, ignore_empty_lines=True, invalid_row_handler=skip
            ),
            convert_options=pacsv.ConvertOptions(
                include_columns=self.wanted,
                column_types=dict.fromkeys(self.wanted, pa.string()),
                strings_can_be_null=False,
            ),
        )
        return table, invalid


def parse_fields(data: bytes, first_line: int, layout: Layout) -> pa.RecordBatch:
    """The lines of a block (each ends with a newline) as a batch of FIELDS_SCHEMA; blank lines are left out."""
    has_stray_return = b"\r" in data and data.count(b"\r") != data.count(b"\r\n")
    if not has_stray_return and b"\0" not in data and is_utf8(data):
        table, invalid = layout.read(data)
        is_whole = table.num_rows + len(invalid) == count_lines(data)
        if is_whole and not any(row.text.count('"') % 2 for row in invalid):
            return _assemble(table, [row.number for row in invalid], first_line, layout)
    return _parse_slowly(data, first_line, layout)


def count_lines(data: bytes) -> int:
    """How many newlines there are: five times as fast as `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8; Arrow tells some ten times faster than decoding them would."""
    if data.isascii():
        return True
    offsets = np.array([0, len(data)], dtype=np.int32)
    try:
        pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(data)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _assemble(table: pa.Table, invalid: list[int], first_line: int, layout: Layout) -> pa.RecordBatch:
    """Good rows, then the invalid ones (1-based numbers in the block), which have no fields but a reason."""
    num_good, num_bad = table.num_rows, len(invalid)
    is_bad = np.zeros(num_good + num_bad, dtype=bool)
    is_bad[np.array(invalid, dtype=np.int64) - 1] = True
    lines = np.concatenate((np.flatnonzero(~is_bad), np.flatnonzero(is_bad))) + first_line
    nulls = pa.nulls(num_bad, pa.string())
    columns = [pa.array(lines)]
    for position in layout.positions:
        if position is None:
            columns.append(pa.nulls(num_good + num_bad, pa.string()))
        else:
            chunks = table.column(f"c{position}").chunks
            columns.append(pa.concat_arrays([*chunks, nulls]) if num_bad or len(chunks) > 1 else chunks[0])
    reasons = [pa.nulls(num_good, pa.string()), pa.array([WRONG_COLUMNS] * num_bad, pa.string())]
    return pa.record_batch([*columns, pa.concat_arrays(reasons)], schema=FIELDS_SCHEMA)


def _parse_slowly(data: bytes, first_line: int, layout: Layout) -> pa.RecordBatch:
    lines = data.removesuffix(b"\n").split(b"\n")
    rows = []
    at = 0
    while at < len(lines):
        if not lines[at].strip():
            at += 1
            continue
        found, num_lines = _read_record(lines, at, layout)
        fields, rejected = (None, found) if isinstance(found, str) else (found, _find_fault(found, layout))
        rows.append((first_line + at, *_pick(None if rejected else fields, layout), rejected))
        at += num_lines
    columns = list(zip(*rows, strict=True)) or [()] * len(FIELDS_SCHEMA)
    arrays = [pa.array(column, type) for column, type in zip(columns, FIELDS_SCHEMA.types, strict=True)]
    return pa.record_batch(arrays, schema=FIELDS_SCHEMA)


def _read_record(lines: list[bytes], at: int, layout: Layout) -> tuple[list[str] | str, int]:
    """The fields of the record that begins at line `at`, or what is wrong with it, and how many lines it takes.

    A quote left open may go on in the next lines; if no good record comes of it, the line alone is at fault.
    """
    text = _decode(lines[at])
    if '"' not in text:
        return text.split(layout.delimiter), 1
    if "\r" in text:
        return STRAY_RETURN, 1
    if text.count('"') % 2 == 0 or not _is_open(text, layout):
        return _split(text, layout, strict=False) or OPEN_QUOTE, 1
    for num_lines in range(2, min(MAX_RECORD_LINES, len(lines) - at) + 1):
        text += "\n" + _decode(lines[at + num_lines - 1]).replace("\r", " ")
        if text.count('"') % 2 == 0:
            fields = _split(text, layout, strict=True)
            return (fields, num_lines) if fields and len(fields) == layout.num_columns else (OPEN_QUOTE, 1)
    return OPEN_QUOTE, 1


def _decode(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", errors="surrogateescape")


def _is_open(text: str, layout: Layout) -> bool:
    """Whether a quote that encloses a field is not closed: a newline at the end then becomes part of the field."""
    fields = next(csv.reader([text + "\n"], delimiter=layout.delimiter))
    return bool(fields) and fields[-1].endswith("\n")


def _split(text: str, layout: Layout, strict: bool) -> list[str] | None:
    try:
        return next(csv.reader([text], delimiter=layout.delimiter, strict=strict))
    except csv.Error:
        return None


def _find_fault(fields: list[str], layout: Layout) -> str | None:
    """Why a record cannot be used; only the columns in use must be text."""
    if len(fields) != layout.num_columns:
        return WRONG_COLUMNS
    for field in _pick(fields, layout):
        if field and "\0" in field:
            return NUL_BYTE
        if field and not field.isascii() and any("\udc80" <= char <= "\udcff" for char in field):
            return NOT_UTF8
    return None


def _pick(fields: list[str] | None, layout: Layout) -> tuple[str | None, ...]:
    """The fields in the order of FIELDS, None for what is not there."""
    if fields is None:
        return (None,) * len(FIELDS)
    return tuple(None if position is None else fields[position] for position in layout.positions)
