"""The staging models on literal lines: what they make of each format, and why a line is left out."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sql.runner import connect, create_table
from tasks.config import IngestConfig
from tasks.delimited import FIELDS_SCHEMA
from tasks.logblocks import LINES_SCHEMA
from tasks.staging import MAX_URL_BYTES, define_session
from tasks.urls import CRAWLER_PATTERN

PARAMS = {"keeps_query": False, "max_url_bytes": MAX_URL_BYTES, "crawler_pattern": CRAWLER_PATTERN}
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:146.0) Gecko/20100101 Firefox/146.0"


@pytest.fixture
def con(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(300_000_000, tmp_path / "spill", 1) as con:
        define_session(con, IngestConfig())
        yield con


def stage(con: duckdb.DuckDBPyConnection, model: str, **params: Any) -> list[tuple[Any, ...]]:
    """The rows of stg_lines: (line, user_id, page_key, time, verdict)."""
    create_table(con, f"staging/{model}/stg_lines", PARAMS | params)
    return con.execute("select line, user_id, page_key, time, verdict from stg_lines order by line").fetchall()


def stage_fields(con: duckdb.DuckDBPyConnection, **fields: str | None) -> tuple[Any, ...]:
    """One line of a delimited log with these fields, as stg_lines has it."""
    row = {"line": 2, "user_id": "u", "url": "/a", "time": "1"} | fields
    con.register("delivered_fields", pa.Table.from_pylist([row], schema=FIELDS_SCHEMA))
    return stage(con, "delimited")[0]


def stage_lines(con: duckdb.DuckDBPyConnection, model: str, *lines: str, **params: Any) -> list[tuple[Any, ...]]:
    rows = [{"line": line, "text": f"{text}\n"} for line, text in enumerate(lines, 1)]
    con.register("delivered_lines", pa.Table.from_pylist(rows, schema=LINES_SCHEMA))
    return stage(con, model, **params)


def test_delimited_fields_pass(con: duckdb.DuckDBPyConnection) -> None:
    assert stage_fields(con, url="https://example.com/a?utm=1#x") == (2, "u", "https://example.com/a", "1", None)


def test_queries_stay_when_keys_are_kept(con: duckdb.DuckDBPyConnection) -> None:
    con.register("delivered_fields", pa.Table.from_pylist([{"line": 2, "url": "/a?id=1"}], schema=FIELDS_SCHEMA))
    assert stage(con, "delimited", keeps_query=True)[0][2] == "/a?id=1"


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"method": "GET", "status": "200", "agent": BROWSER}, None),
        ({"method": "get", "status": "304"}, None),
        ({"method": "", "status": ""}, None),
        ({"method": "POST", "status": "200"}, "not a GET request"),
        ({"method": "GET", "status": "404"}, "status 400 or above"),
        ({"status": "500.0"}, "status 400 or above"),
        ({"status": "-"}, None),
        ({"agent": "Googlebot/2.1"}, "crawler"),
        ({"url": "/" + "x" * MAX_URL_BYTES}, "URL too long"),
        ({"rejected": "NUL byte", "method": "POST"}, "NUL byte"),
    ],
)
def test_verdicts_of_lines(con: duckdb.DuckDBPyConnection, fields: dict[str, str], verdict: str | None) -> None:
    assert stage_fields(con, **fields)[-1] == verdict


def test_too_long_a_url_is_not_kept(con: duckdb.DuckDBPyConnection) -> None:
    assert stage_fields(con, url="/" + "x" * 1_000_000) == (2, "u", None, "1", "URL too long")


def test_json_lines(con: duckdb.DuckDBPyConnection) -> None:
    pointers = ["/who/id~1", "/url", "/ts", "/method", "/status", "/ua"]
    lines = [
        json.dumps({"who/id~1": 0, "url": "/", "ts": 1}),  # not what the pointers ask for
        json.dumps({"who": {"id/": 7}, "url": "/a\"b?x", "ts": 1.5, "method": "GET"}),
        json.dumps({"who": {"id/": "ü"}, "url": None, "ts": "2026-01-01"}),
        json.dumps({"who": {"id/": "u"}, "url": "/a", "status": 404}),
        '{"who": {"id/": "u"}, "url": "/a", "ts"',
        "",
        json.dumps({"who": {"id/": "a\0b"}, "url": "/a"}),
        "[1, 2]",
    ]  # fmt: skip
    assert stage_lines(con, "json", *lines, pointers=pointers) == [
        (1, None, "/", "1", None),
        (2, "7", '/a"b', "1.5", None),
        (3, "ü", None, "2026-01-01", None),
        (4, "u", "/a", None, "status 400 or above"),
        (5, None, None, None, "not JSON"),
        (7, "a\0b", "/a", None, "NUL byte"),
        (8, None, None, None, None),
    ]


TIME = "17/May/2015:10:05:03 +0000"


def test_access_log_lines(con: duckdb.DuckDBPyConnection) -> None:
    lines = [
        f'1.2.3.4 - - [{TIME}] "GET /a?x=1 HTTP/1.1" 200 12 "http://r/" "{BROWSER}"',
        f'::1 - Jane Doe [{TIME}] "GET /a b HTTP/1.0" 304 -',  # Common; a space in the URL, and in the user
        f'h - - [{TIME}] "GET /old" 200 5',  # HTTP/0.9
        f'h - - [{TIME}] "GET /q\\"x HTTP/1.1" 200 5 "-" "a \\"quoted\\" agent \\\\"',
        f'h - - [{TIME}] "POST /a HTTP/1.1" 200 5',
        f'h - - [{TIME}] "GET /a HTTP/1.1" 404 5 "-" "{BROWSER}"',
        f'h - - [{TIME}] "GET /a HTTP/1.1" 200 5 "-" "Googlebot/2.1"',
        f'h - - [{TIME}] "-" 408 0',
        f'h - - [{TIME}] "-" 200 0',
        f" - - [{TIME}] \"GET /a HTTP/1.1\" 200 5",
        f'h - - [{TIME}] "GET /a HTT',
        f"h - - [{TIME}] {TIME}",
        "free text",
        "  ",
    ]  # fmt: skip
    assert stage_lines(con, "access", *lines) == [
        (1, "1.2.3.4", "/a", TIME, None),
        (2, "::1", "/a b", TIME, None),
        (3, "h", "/old", TIME, None),
        (4, "h", "/q%22x", TIME, None),
        (5, "h", "/a", TIME, "not a GET request"),
        (6, "h", "/a", TIME, "status 400 or above"),
        (7, "h", "/a", TIME, "crawler"),
        (8, "h", "", TIME, "status 400 or above"),
        (9, "h", "", TIME, None),
        (10, "", "/a", TIME, None),
        (11, "h", "/a", TIME, "not an access-log line"),
        (12, "h", None, TIME, "not an access-log line"),
        (13, "free", None, "free text\n", "not an access-log line"),
    ]


def test_parquet_rows(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    table = pa.table(
        {"Who": [1, 2, None], "page": ["/a?x", "a\0", "c"], "when": [10, 20, 30], "status": [200, 200, 500]}
    )
    pq.write_table(table, path)
    columns = {f"{role}_column": "surf2vec_absent" for role in ("method", "agent")}
    columns |= {"user_column": "Who", "url_column": "page", "time_column": "when", "status_column": "status"}
    assert stage(con, "parquet", path=str(path), **columns) == [
        (1, "1", "/a", 10, None),
        (2, "2", "a\0", 20, "NUL byte"),
        (3, None, "c", 30, "status 400 or above"),
    ]
