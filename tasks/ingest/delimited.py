"""Parses delimited lines (CSV, TSV) into columns, one block at a time.

Arrow's reader is fast, but its result is used only if it accounts for every line of the block. Otherwise (an open quote, a
record of several lines, invalid UTF-8) Python parses the block line by line and records the fault of each line. Both follow
the same rules: quotes at the start of a field enclose it, two quotes inside stand for one, other quotes are literal.
"""

import csv
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from surf2vec.tasks.ingest.columns import ROLES
from surf2vec.tasks.ingest.formats import LogFile
from surf2vec.tasks.ingest.shapes import FIELDS_LINE
from surf2vec.trainer.errors import InputError

FIELDS = tuple({"user": "user_id"}.get(role, role) for role in ROLES)
FIELDS_SCHEMA = pa.schema([("line", pa.int64()), *((name, pa.string()) for name in FIELDS), ("rejected", pa.string())])
Numbers = NDArray[np.int64]
MAX_RECORD_LINES = 100
WRONG_COLUMNS = "wrong number of columns"
OPEN_QUOTE = "unterminated quote"
STRAY_RETURN = "carriage return inside a line"
NOT_UTF8 = "invalid UTF-8"
NUL_BYTE = "NUL byte"

csv.field_size_limit(1 << 24)  # the module's default is shorter than a long URL; the block size limits a field


def parse_fields(data: bytes, lines: Numbers, log: LogFile) -> pa.Table:
    """Return a block's lines, which end with newlines and have the numbers `lines` int64[n], as FIELDS_SCHEMA; no blank ones."""
    shape = log.shape
    if shape.is_w3c:
        data = _blank_comments(data, lines, log)
    if len(shape.delimiter) > 1:
        data = data.replace(shape.delimiter.encode(), shape.character.encode())
    has_stray_return = b"\r" in data and data.count(b"\r") != data.count(b"\r\n")
    if not shape.has_blanks and not has_stray_return and b"\0" not in data and is_utf8(data):
        fields, invalid = _read_by_arrow(data, log)
        if len(fields) + len(invalid) == len(lines) and not any(row.text.count('"') % 2 for row in invalid):
            bad = np.array([row.number for row in invalid], dtype=np.int64) - 1
            rejected = pa.table({"line": lines[bad], "rejected": pa.array([WRONG_COLUMNS] * len(bad), pa.string())})
            good = {"line": pa.array(np.delete(lines, bad))}
            good |= {
                name: fields.column(f"c{position}")
                for name, position in zip(FIELDS, log.positions, strict=True)
                if position is not None
            }
            tables = [FIELDS_SCHEMA.empty_table(), pa.table(good), rejected]
            return pa.concat_tables(tables, promote_options="default")
    return _parse_slowly(data, lines, log)


def _blank_comments(data: bytes, lines: Numbers, log: LogFile) -> bytes:
    """Return lines of a W3C log without comments. Raises InputError where the fields change."""
    for comment in re.finditer(rb"^#.*$", data, re.MULTILINE):
        text = comment[0].decode(errors="replace").rstrip("\r")
        if text.startswith(FIELDS_LINE) and text.split() != log.shape.fields_line.split():
            number = lines[data.count(b"\n", 0, comment.start())]
            raise InputError(f"{log.path} has other {FIELDS_LINE} from line {number:,} on: split it there into two")
    return re.sub(rb"^#.*$", b"", data, flags=re.MULTILINE)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_by_arrow(data: bytes, log: LogFile) -> tuple[pa.Table, list[pacsv.InvalidRow]]:
    """Return the rows of the columns in use, and the rows with a wrong number of columns."""
    invalid: list[pacsv.InvalidRow] = []

    def skip(row: pacsv.InvalidRow) -> str:
        invalid.append(row)
        return "skip"

    wanted = list(dict.fromkeys(f"c{position}" for position in log.positions if position is not None))
    names = [f"c{position}" for position in range(len(log.header))]
    table = pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
        parse_options=pacsv.ParseOptions(delimiter=log.shape.character, invalid_row_handler=skip),
        convert_options=pacsv.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string())),
    )
    return table, invalid


def _parse_slowly(data: bytes, numbers: Numbers, log: LogFile) -> pa.Table:
    lines = data.removesuffix(b"\n").split(b"\n")
    rows = []
    at = 0
    while at < len(lines):
        num_lines = 1
        if lines[at].strip():
            fields, fault, num_lines = _read_record(lines, at, log)
            used = [None if position is None or fault else fields[position] for position in log.positions]
            for field in used:
                if field and not fault:
                    is_text = field.isascii() or not any("\udc80" <= char <= "\udcff" for char in field)
                    fault = NUL_BYTE if "\0" in field else None if is_text else NOT_UTF8
            rows.append((int(numbers[at]), *([None] * len(FIELDS) if fault else used), fault))
        at += num_lines
    return as_table(rows)


def as_table(rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Return rows as a table of FIELDS_SCHEMA."""
    return pa.table(list(zip(*rows, strict=True)) or [()] * len(FIELDS_SCHEMA), schema=FIELDS_SCHEMA)


def _read_record(lines: list[bytes], at: int, log: LogFile) -> tuple[list[str], str | None, int]:
    """Return the fields of the record that begins at line `at`, its fault or None, and its number of lines.

    An open quote may continue in the next lines; if that gives no valid record, only the first line is rejected.
    """
    text = _decode(lines[at])
    if '"' not in text:
        fields = [field.lstrip(" ") if log.shape.has_blanks else field for field in text.split(log.shape.character)]
    elif "\r" in text:
        return [], STRAY_RETURN, 1
    elif text.count('"') % 2 == 0 or not _is_open(text, log):
        fields = _split(text, log, strict=False)
    else:
        for num_lines in range(2, min(MAX_RECORD_LINES, len(lines) - at) + 1):
            text += "\n" + _decode(lines[at + num_lines - 1]).replace("\r", " ")
            if text.count('"') % 2 == 0:
                fields = _split(text, log, strict=True)
                return (fields, None, num_lines) if len(fields) == len(log.header) else ([], OPEN_QUOTE, 1)
        return [], OPEN_QUOTE, 1
    fault = None if len(fields) == len(log.header) else WRONG_COLUMNS
    return fields, fault if fields else OPEN_QUOTE, 1


def _decode(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", errors="surrogateescape")


def _is_open(text: str, log: LogFile) -> bool:
    """Return whether an enclosing quote is not closed: then a newline at the end becomes part of the field."""
    fields = next(csv.reader([text + "\n"], delimiter=log.shape.character, skipinitialspace=log.shape.has_blanks))
    return bool(fields) and fields[-1].endswith("\n")


def _split(text: str, log: LogFile, strict: bool) -> list[str]:
    """Return the fields of a record, or none if its quotes are invalid."""
    try:
        reader = csv.reader([text], delimiter=log.shape.character, strict=strict, skipinitialspace=log.shape.has_blanks)
        return next(reader)
    except csv.Error:
        return []
