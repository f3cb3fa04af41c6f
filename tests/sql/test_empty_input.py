"""Every SQL step on empty input: no rows, or one row that says so. A new file of sql/ must be named here."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.sql.runner import FOLDER, fetch_rows
from surf2vec.tasks.events.events_files import EVENTS_SCHEMA
from surf2vec.tasks.ingest.blocks import LINES_SCHEMA
from surf2vec.tasks.ingest.delimited import FIELDS_SCHEMA

TABLES = {
    "stg_lines": "line bigint, user_id varchar, page_key varchar, query varchar, time varchar, verdict varchar",
    "int_refused_lines": "line bigint, verdict varchar",
    "int_page_tokens": "token varchar",
    "int_user_ids": "user_code integer, user_id varchar",
    "int_item_totals": "url varchar, events bigint, users bigint",
    "stg_vocabulary": "url varchar, item_ix integer",
    "vocabulary": "url varchar, item_ix integer",
    "user_events": "user_ix integer, place bigint, us bigint, item integer, is_late boolean, "
    "gap bigint, day_gap bigint, age bigint, hour_sin integer, hour_cos integer, weekday_sin integer, weekday_cos integer",
    "request_rows": "user_id varchar, ts varchar",
    "served_releases": "number integer, since varchar, until varchar, window_days integer, partitions integer",
    "int_requests": "request bigint, user_id varchar, us bigint, micro_partition integer, release_partition integer, "
    "number integer, first_us bigint",
    "group_users": "user_id varchar, user_ix integer, first_place bigint",
    "group_events": "user_ix integer, place bigint, us bigint",
}
FILES = {
    "events.parquet": EVENTS_SCHEMA,
    "log.parquet": pa.schema([("user_id", pa.string()), ("url", pa.string()), ("ts", pa.string())]),
    "counts.parquet": pa.schema(
        [(n, t) for n, t in zip(("url", "item_code", "events", "users"), (pa.string(), *[pa.int64()] * 3), strict=True)]
    ),
}
PARAMS = {
    "time_kind": "calendar", "time_formats": ["%Y"], "is_dated": True, "earliest": "2000-01-01", "latest": "2100-01-01",
    "unit": 1, "divisor": 1, "origin": 0, "is_days": False, "oldest": "2000-01-01",
    "first_row": 0, "end_row": 9, "stride": 1, "most": 3, "source_name": "a.csv", "left_out": ["crawler"],
    "token_pattern": "x+", "asset_pattern": "x", "least_queries": 1, "most_hints": 3, "partitions": 8, "num_partitions": 1,
    "first_partition": 0, "last_partition": 7, "undated_files": [], "min_item_events": 0, "min_item_users": 0,
    "keeps_query": False, "max_url_bytes": 9,
    "max_user_bytes": 9, "max_time_bytes": 9, "crawler_pattern": "x", "pointers": ["/a"] * 9, "user_column": "user_id",
    "url_column": "url", "time_column": "ts", "method_column": "surf2vec_absent", "status_column": "surf2vec_absent",
    "agent_column": "surf2vec_absent", "site_column": "surf2vec_absent", "view_column": "surf2vec_absent", "views": [],
    "line_bits": 0, "place": 0, "place_bits": 62, "session_seconds": 1800,
}  # fmt: skip
ONE_ROW: dict[str, dict[str, Any]] = {
    "intermediate/int_source_size": {"num_lines": 0, "text_bytes": 0, "num_distinct": 0, "distinct_text_bytes": 0},
    "checks/event_faults": {
        "incomplete_events": 0, "misplaced_events": 0, "misdated_events": 0, "unsorted_events": 0, "duplicate_events": 0,
    },
}  # fmt: skip
MACROS = {"staging/calendar_us", "staging/number_fault", "staging/page_key", "staging/whole_number"}
ALL = {str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.sql")}


@pytest.fixture
def tables(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """The connection, with all that steps read, empty."""
    for name, columns in TABLES.items():
        con.execute(f"create temporary table {name} ({columns})")
    con.execute("create temporary macro stored_name(name) as name")
    con.register("delivered_lines", LINES_SCHEMA.empty_table())
    con.register("source_fields", FIELDS_SCHEMA.empty_table())
    con.register("split_fields", FIELDS_SCHEMA.append(pa.field("is_request", pa.bool_())).empty_table())
    return con


@pytest.mark.parametrize("model", sorted(ALL - MACROS))
def test_nothing_gives_nothing(tables: duckdb.DuckDBPyConnection, tmp_path: Path, model: str) -> None:
    for name, schema in FILES.items():
        pq.write_table(schema.empty_table(), tmp_path / name)
    files = {"files": [str(tmp_path / "events.parquet")], "paths": [str(tmp_path / "log.parquet")]}
    rows = fetch_rows(tables, model, PARAMS | files | {"item_counts": str(tmp_path / "counts.parquet")})
    assert rows == ([ONE_ROW[model]] if model in ONE_ROW else [])


@pytest.mark.parametrize(
    "call",
    [
        "number_fault(null, 'DOUBLE', null, 'DOUBLE')",
        "page_key(null, false, 9)",
        "whole_number(null, 'DOUBLE')",
        "calendar_us(null)",
    ],
)
def test_macros_leave_null(con: duckdb.DuckDBPyConnection, call: str) -> None:
    assert con.execute(f"select {call}").fetchall() == [(None,)]


def test_every_step_has_a_test_on_literal_rows() -> None:
    here = Path(__file__)
    tests = "".join(path.read_text() for path in here.parent.glob("test_*.py") if path != here)
    short = {"json_fields": '"json"', "parquet_fields": '"parquet"'}  # as test_staging.py names them
    names = [model.rpartition("/")[2] for model in sorted(ALL)]
    assert [name for name in names if short.get(name, name) not in tests] == []
