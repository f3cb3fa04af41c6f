"""Runs the SQL files of this folder: each is one `select` and bears the name of what it makes; the DDL is here.

Parameters are bound, never pasted. A step may be handed more parameters than its file names, so that
one dictionary serves a chain of steps; one that a file names and that is not given is an error of ours.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

BATCH_ROWS = 100_000
FOLDER = Path(__file__).parent
_ERRORS = {
    "Out of Memory Error": duckdb.OutOfMemoryException,
    "Invalid Input Error": duckdb.InvalidInputException,
    "IO Error": duckdb.IOException,
}
_COMMENT = re.compile(r"--[^\n]*")
_PARAMETER = re.compile(r"\$([a-z_]+)")


def connect(
    memory_bytes: int, temporary_folder: Path, threads: int, database: Path | None = None
) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection that stays within `memory_bytes`, spills to `temporary_folder` and downloads nothing."""
    temporary_folder.mkdir(parents=True, exist_ok=True)
    con = duckdb.connect(
        str(database or ":memory:"),
        config={
            "memory_limit": f"{memory_bytes}B",
            "temp_directory": str(temporary_folder),
            "threads": str(threads),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        },
    )
    con.execute("set enable_progress_bar = false")  # from `python -c` and notebooks it would go to standard output
    con.execute("set TimeZone = 'UTC'")
    return con


def read_sql(model: str) -> str:
    """The text of `<model>.sql`, for instance `staging/stg_events`, without its final semicolon."""
    return (FOLDER / f"{model}.sql").read_text(encoding="utf-8").rstrip().rstrip(";")


def name_of(model: str) -> str:
    """What a model makes: the last part of its path."""
    return model.rsplit("/", 1)[-1]


def select_parameters(sql: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `params` that `sql` names as `$name` outside its comments."""
    return {name: params[name] for name in dict.fromkeys(_PARAMETER.findall(_COMMENT.sub("", sql)))}


def create_table(con: duckdb.DuckDBPyConnection, model: str, params: Mapping[str, Any] | None = None) -> str:
    """Make (or make anew) the temporary table that the model is named for; returns its name."""
    sql = read_sql(model)
    name = name_of(model)
    con.execute(f"create or replace temporary table {name} as {sql}", select_parameters(sql, params or {}))
    return name


def append_rows(con: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    """Add rows to a temporary table with the same columns."""
    con.register("appended_rows", rows)
    con.execute(f"insert into {table} by name select * from appended_rows")
    con.unregister("appended_rows")


def create_macro(con: duckdb.DuckDBPyConnection, model: str, arguments: Sequence[str]) -> str:
    """Make the temporary macro that the model, one expression of `arguments`, is named for; returns its name."""
    name = name_of(model)
    con.execute(f"create or replace temporary macro {name}({', '.join(arguments)}) as ({read_sql(model)})")
    return name


def fetch_rows(
    con: duckdb.DuckDBPyConnection, model: str, params: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The rows of a model as dictionaries: for small results only."""
    sql = read_sql(model)
    cursor = con.execute(sql, select_parameters(sql, params or {}))
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def count_rows(con: duckdb.DuckDBPyConnection, model: str, params: Mapping[str, Any] | None = None) -> int:
    """How many rows a model has."""
    sql = read_sql(model)
    [(number,)] = con.execute(f"select count(*) from ({sql})", select_parameters(sql, params or {})).fetchall()
    return int(number)


def stream_rows(
    con: duckdb.DuckDBPyConnection, model: str, params: Mapping[str, Any] | None = None
) -> pa.RecordBatchReader:
    """The rows of a model as record batches, made while they are read; failures are DuckDB's own."""
    sql = read_sql(model)
    relation = con.sql(sql, params=select_parameters(sql, params or {}))
    assert relation is not None  # a select
    reader = relation.to_arrow_reader(BATCH_ROWS)
    return pa.RecordBatchReader.from_batches(reader.schema, _pull(reader))


def _pull(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches of a reader. Arrow makes an OSError of what happens after the first: here it is DuckDB's error again."""
    try:
        yield from reader
    except OSError as error:
        raise _ERRORS.get(str(error).partition(":")[0], duckdb.Error)(str(error)) from error


def copy_to_parquet(
    con: duckdb.DuckDBPyConnection, model: str, path: Path, params: Mapping[str, Any] | None = None, options: str = ""
) -> None:
    """Stream the rows of a model into a Parquet file (zstd); `options` are further COPY options, ours, never a user's."""
    sql = read_sql(model)
    bound = select_parameters(sql, params or {}) | {"target": str(path)}
    con.execute(f"copy ({sql}) to $target (format parquet, compression zstd{', ' + options if options else ''})", bound)
