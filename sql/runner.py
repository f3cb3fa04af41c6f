"""Runs the SQL files of this folder. Each is one `select`, named for the table it makes; this module has the DDL.

Parameters are bound, never pasted. A step accepts parameters that its file does not use, so that one
dictionary serves several steps; a missing parameter raises KeyError.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
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
Parameters = Mapping[str, Any]


def connect(memory_bytes: int, temporary_folder: Path, threads: int) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB connection that uses at most `memory_bytes`, spills to `temporary_folder` and downloads nothing."""
    temporary_folder.mkdir(parents=True, exist_ok=True)
    con = duckdb.connect(
        config={
            "memory_limit": f"{memory_bytes}B",
            "temp_directory": str(temporary_folder),
            "threads": str(threads),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        },
    )
    with suppress(duckdb.InvalidInputException):  # in a notebook without ipywidgets there is none, and nothing to set
        con.execute("set enable_progress_bar = false")  # in `python -c` and notebooks it would print to standard output
    con.execute("set TimeZone = 'UTC'")
    return con


def read_sql(model: str) -> str:
    """Return the text of `<model>.sql`, for instance `staging/stg_lines`, without its final semicolon."""
    return (FOLDER / f"{model}.sql").read_text(encoding="utf-8").rstrip().rstrip(";")


def select_parameters(sql: str, params: Parameters) -> dict[str, Any]:
    """Return the entries of `params` that `sql` uses as `$name` outside its comments."""
    names = re.findall(r"\$([a-z_]+)", re.sub(r"--[^\n]*", "", sql))
    return {name: params[name] for name in dict.fromkeys(names)}


def create_table(con: duckdb.DuckDBPyConnection, model: str, params: Parameters = {}, **sources: str) -> str:  # noqa: B006
    """Create or replace the temporary table that the model is named for; returns its name.

    sources: table name in the SQL → model that provides it, perhaps from those before it.
    """
    name, sql = model.rpartition("/")[2], read_sql(model)
    if sources:
        sql = f"with {', '.join(f'{source} as ({read_sql(model)})' for source, model in sources.items())}\n{sql}"
    con.execute(f"create or replace temporary table {name} as {sql}", select_parameters(sql, params))
    return name


def create_macro(con: duckdb.DuckDBPyConnection, model: str, arguments: Sequence[str]) -> None:
    """Create the temporary macro that the model is named for; the model is one expression of `arguments`."""
    name = model.rpartition("/")[2]
    con.execute(f"create or replace temporary macro {name}({', '.join(arguments)}) as ({read_sql(model)})")


def fetch_rows(con: duckdb.DuckDBPyConnection, model: str, params: Parameters = {}) -> list[dict[str, Any]]:  # noqa: B006
    """Return the rows of a model as dictionaries; for small results only."""
    return stream_rows(con, model, params).read_all().to_pylist()


def stream_rows(con: duckdb.DuckDBPyConnection, model: str, params: Parameters = {}) -> pa.RecordBatchReader:  # noqa: B006
    """Return the rows of a model as record batches, computed while they are read. Raises errors of DuckDB only."""
    sql = read_sql(model)
    relation = con.sql(sql, params=select_parameters(sql, params))
    assert relation is not None, f"{model} is not a select"
    reader = relation.to_arrow_reader(BATCH_ROWS)

    def pull() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except OSError as error:  # Arrow wraps DuckDB errors after the first batch
            raise _ERRORS.get(str(error).partition(":")[0], duckdb.Error)(str(error)) from error

    return pa.RecordBatchReader.from_batches(reader.schema, pull())
