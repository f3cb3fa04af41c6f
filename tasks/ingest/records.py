"""Makes fields of records: of lines by the regular expression of a layout, of nested JSON and Parquet by dotted names.

A record with a list of pages makes a row for each of them.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.ingest.columns import ROLES
from surf2vec.tasks.ingest.delimited import FIELDS_SCHEMA, as_table
from surf2vec.tasks.ingest.formats import LogFile
from surf2vec.tasks.ingest.nested import find

LIST_BITS = 20  # a row of a log with lists has the number: line << LIST_BITS | position in the list
PARQUET_ROWS = 10_000
NO_ACCESS_LINE, FITS_NO_LAYOUT = "not an access-log line", "does not fit the layout"
_WORDS = {"user": "user", "url": "page", "time": "time"}


def parse_json(lines: pa.Table, log: LogFile) -> pa.Table:
    """Return lines (line, text, rejected) of JSON as a table of FIELDS_SCHEMA, without blank lines."""
    rows: list[tuple[Any, ...]] = []
    for line, text, fault in zip(*(column.to_pylist() for column in lines.columns), strict=True):
        if fault:
            rows.append(_reject(line, fault))
        elif text.strip():
            try:
                rows += _make_rows(line, json.loads(text), log)
            except (ValueError, RecursionError):
                rows.append(_reject(line, "not JSON"))
    return as_table(rows)


def read_parquet(log: LogFile) -> Iterator[pa.Table]:
    """Yield the rows of a nested Parquet log as tables of FIELDS_SCHEMA."""
    names = [name for name in log.columns.values() if name]
    with pq.ParquetFile(log.path, pre_buffer=False) as file:  # else pyarrow keeps all of it
        tops = [top for top in file.schema_arrow.names if any(f"{name}.".startswith(f"{top}.") for name in names)]
        line = 0
        for batch in file.iter_batches(PARQUET_ROWS, columns=tops):
            records = enumerate(batch.to_pylist(), line + 1)
            yield as_table(row for at, record in records for row in _make_rows(at, record, log))
            line += len(batch)


def split_fields(lines: pa.Table, pattern: str, fault: str) -> pa.Table:
    """Return lines (line, text, rejected), without blank ones, as a table of FIELDS_SCHEMA. fault: of those that do not fit.

    Inside quotes, servers write a backslash before a quote and a backslash, which do not end a field.
    """
    table = pl.DataFrame(lines)
    table = table.filter(pl.col("rejected").is_not_null() | (pl.col("text").str.strip_chars(" \t\r\n") != ""))
    table = table.with_columns(pl.col("text").str.extract_groups(pattern).alias("groups")).unnest("groups")
    table = table.rename({"host": "site"}, strict=False)
    missing = {*FIELDS_SCHEMA.names} - {"user_id", *table.columns}
    table = table.with_columns(pl.lit(None, pl.String).alias(name) for name in missing)
    url = pl.col("url").fill_null("")
    fields = table.with_columns(
        pl.col("user").replace("-", "").alias("user_id"),  # servers write - for unknown values
        url.str.replace_all("\\\\", "%5C", literal=True).str.replace_all('\\"', "%22", literal=True).alias("url"),
        pl.coalesce("rejected", pl.when(pl.col("user").is_null()).then(pl.lit(fault))).alias("rejected"),
    )
    return _to_arrow(fields.select(FIELDS_SCHEMA.names))


def split_pages(fields: pa.Table, separator: str) -> pa.Table:
    """Return a table of FIELDS_SCHEMA with a row for each page of a list of pages as text."""
    rows = pl.DataFrame(fields).with_columns(pl.col("url").fill_null("").str.split(separator)).explode("url")
    line = pl.col("line") * (1 << LIST_BITS) + pl.int_range(pl.len()).over("line")
    return _to_arrow(rows.with_columns(line))


def _to_arrow(rows: pl.DataFrame) -> pa.Table:
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(FIELDS_SCHEMA)


def _make_rows(line: int, record: Any, log: LogFile) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a record: one for each page. Lists that are as long as that of the pages run with it."""
    values = {role: find(record, name) if (name := log.columns[role]) else None for role in ROLES}
    pages = values["url"] if log.has_lists and isinstance(values["url"], list) else []
    for place in range(len(pages) or 1):
        number = line << LIST_BITS | place if log.has_lists else line
        row = {
            role: value[place] if pages and isinstance(value, list) and len(value) == len(pages) else value
            for role, value in values.items()
        }
        try:
            fields = {role: _as_text(value, role) for role, value in row.items()}
        except ValueError as fault:
            yield _reject(number, str(fault))
        else:
            if fields["date"] and fields["time"]:
                fields["time"] = f"{fields['date']} {fields['time']}"
            yield (number, *fields.values(), None)


def _as_text(value: Any, role: str) -> str | None:
    """Return a value as text; of a list where none matters, the first. Raises ValueError with the fault of another value."""
    word = _WORDS.get(role)
    if isinstance(value, list) and (not value or not word):
        value = value[0] if value else None
    if value is None or value != value:  # null or NaN
        return None
    if isinstance(value, dict | list):
        raise ValueError(f"{word} is a list or an object")
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if "\0" in text:
        raise ValueError("NUL byte")
    if not text.isascii() and re.search("[\ud800-\udfff]", text):  # half of a pair of escapes
        raise ValueError("not JSON")
    if word in ("user", "page") and isinstance(value, float | Decimal):
        if value % 1:
            raise ValueError(f"{word} is no whole number")
        return str(int(value))
    return text


def _reject(line: int, fault: str) -> tuple[Any, ...]:
    return (line, *[None] * len(ROLES), fault)
