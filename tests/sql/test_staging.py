"""The staging models on literal lines: what they make of each format, and why a line is left out."""

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.sql.runner import create_table
from surf2vec.tasks.ingest.blocks import LINES_SCHEMA
from surf2vec.tasks.ingest.delimited import FIELDS_SCHEMA
from surf2vec.tasks.ingest.formats import ROLES
from surf2vec.tasks.ingest.make_items import ASSET_PATTERN, CRAWLER_PATTERN
from surf2vec.tasks.ingest.staging import MAX_TIME_BYTES, MAX_URL_BYTES, MAX_USER_BYTES

PARAMS = {
    "keeps_query": False, "max_url_bytes": MAX_URL_BYTES, "max_user_bytes": MAX_USER_BYTES, "max_time_bytes": MAX_TIME_BYTES,
    "crawler_pattern": CRAWLER_PATTERN, "asset_pattern": ASSET_PATTERN,
    "place_bits": 10, "views": [],
}  # fmt: skip
ABSENT = {f"{role}_column": "surf2vec_absent" for role in ROLES}
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:146.0) Gecko/20100101 Firefox/146.0"


def stage(con: duckdb.DuckDBPyConnection, model: str, **params: Any) -> list[tuple[Any, ...]]:
    """The rows of stg_lines: (line, user_id, page_key, time, verdict)."""
    sources = {} if model == "delimited" else {"source_fields": f"staging/{model}_fields"}
    create_table(con, "staging/stg_lines", PARAMS | params, **sources, split_fields="staging/split_fields")
    return con.execute("select line, user_id, page_key, time, verdict from stg_lines order by line").fetchall()


def stage_fields(con: duckdb.DuckDBPyConnection, views: Sequence[str] = (), **fields: str | None) -> tuple[Any, ...]:
    """One line of a delimited log with these fields, as stg_lines has it."""
    row = {"line": 2, "user_id": "u", "url": "/a", "time": "1"} | fields
    con.register("source_fields", pa.Table.from_pylist([row], schema=FIELDS_SCHEMA))
    return stage(con, "delimited", views=list(views))[0]


def stage_lines(con: duckdb.DuckDBPyConnection, model: str, *lines: str, **params: Any) -> list[tuple[Any, ...]]:
    rows = [{"line": line, "text": f"{text}\n"} for line, text in enumerate(lines, 1)]
    con.register("delivered_lines", pa.Table.from_pylist(rows, schema=LINES_SCHEMA))
    return stage(con, model, **params)


def test_delimited_fields_pass(con: duckdb.DuckDBPyConnection) -> None:
    assert stage_fields(con, url="https://example.com/a?utm=1#x") == (2, "u", "https://example.com/a", "1", None)


def test_queries_stay_when_keys_are_kept(con: duckdb.DuckDBPyConnection) -> None:
    con.register("source_fields", pa.Table.from_pylist([{"line": 2, "url": "/a?id=1"}], schema=FIELDS_SCHEMA))
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
        ({"agent": "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"}, "crawler"),
        ({"agent": "sample-crawler/1.4 (+https://www.crawler.example)"}, "crawler"),
        ({"agent": "curl/8.5.0"}, "crawler"),
        ({"agent": "python-requests/2.32"}, "crawler"),
        ({"agent": "Mozilla/5.0 (Linux; Android 13; CUBOT NOTE 30) AppleWebKit/537.36 Chrome/120.0"}, None),
        ({"agent": "-"}, None),
        ({"url": "/" + "x" * MAX_URL_BYTES}, "URL too long"),
        ({"rejected": "NUL byte", "method": "POST"}, "NUL byte"),
    ],
)
def test_verdicts_of_lines(con: duckdb.DuckDBPyConnection, fields: dict[str, str], verdict: str | None) -> None:
    assert stage_fields(con, **fields)[-1] == verdict


@pytest.mark.parametrize(
    ("url", "page", "verdict"),
    [
        ("GET /p/0?sid=1 HTTP/1.1", "/p/0", None),
        ('"GET https://shop.example/p/0 HTTP/2.0"', "https://shop.example/p/0", None),
        ("GET /a b HTTP/1.1", "/a b", None),
        ("GET /p/0", "/p/0", None),
        ("POST /cart HTTP/1.1", "/cart", "not a GET request"),
        ("GET /logo.png?v=2 HTTP/3", "/logo.png", "static asset"),
        ("-", "-", None),
        ("Get well soon", "Get well soon", None),
        ("/say/GET /x HTTP/1.1", "/say/GET /x HTTP/1.1", None),
    ],
)
def test_a_request_line_is_split(
    con: duckdb.DuckDBPyConnection, url: str, page: str | None, verdict: str | None
) -> None:
    assert stage_fields(con, url=url) == (2, "u", page, "1", verdict)


@pytest.mark.parametrize(
    ("user", "kept"),
    [
        ("192.0.2.1:4711", "192.0.2.1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("::ffff:192.0.2.1:4711", "::ffff:192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("shop:4711", "shop:4711"),
        ("1.2.3:4", "1.2.3:4"),
    ],
)
def test_an_address_loses_its_port(con: duckdb.DuckDBPyConnection, user: str, kept: str) -> None:
    assert stage_fields(con, user_id=user)[1] == kept


@pytest.mark.parametrize(
    ("view", "verdict"), [("page_view", None), ("scroll", "not a page view"), (None, "not a page view")]
)
def test_what_is_no_page_view_is_left_out(
    con: duckdb.DuckDBPyConnection, view: str | None, verdict: str | None
) -> None:
    assert stage_fields(con, ["page_view", "screen_view"], view=view)[-1] == verdict


@pytest.mark.parametrize("time", ["NULL", "\\N", " n/a ", "-", "None", ""])
def test_times_that_mean_nothing_are_none(con: duckdb.DuckDBPyConnection, time: str) -> None:
    assert stage_fields(con, time=time)[3] is None


def test_too_long_a_url_is_not_kept(con: duckdb.DuckDBPyConnection) -> None:
    assert stage_fields(con, url="/" + "x" * 1_000_000) == (2, "u", None, "1", "URL too long")


def test_json_lines(con: duckdb.DuckDBPyConnection) -> None:
    pointers = ["/who/id~1", "/url", "/ts", "/x", "/method", "/status", "/ua", "/x", "/x"]
    lines = [
        json.dumps({"who/id~1": 0, "url": "/", "ts": 1}),  # not what the pointers ask for
        json.dumps({"who": {"id/": 7}, "url": '/a"b?x', "ts": 1.5, "method": "GET"}),
        json.dumps({"who": {"id/": "ü"}, "url": None, "ts": "2026-01-01"}),
        json.dumps({"who": {"id/": "u"}, "url": "/a", "status": 404}),
        '{"who": {"id/": "u"}, "url": "/a", "ts"',
        "",
        json.dumps({"who": {"id/": "a\0b"}, "url": "/a"}),
        "[1, 2]",
    ]
    assert stage_lines(con, "json", *lines, pointers=pointers) == [
        (1, None, "/", "1", None),
        (2, "7", '/a"b', "1.5", None),
        (3, "ü", None, "2026-01-01", None),
        (4, "u", "/a", None, "status 400 or above"),
        (5, None, None, None, "not JSON"),
        (7, "a\0b", "/a", None, "NUL byte"),
        (8, None, None, None, None),
    ]


def test_parquet_rows(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    table = pa.table(
        {"Who": [1, 2, None], "page": ["/a?x", "a\0", "c"], "when": [10, 20, 30], "status": [200, 200, 500]}
    )
    pq.write_table(table, path)
    columns = ABSENT | {"user_column": "Who", "url_column": "page", "time_column": "when", "status_column": "status"}
    assert stage(con, "parquet", paths=[str(path)], **columns) == [
        (1, "1", "/a", 10, None),
        (2, "2", "a\0", 20, "NUL byte"),
        (3, None, "c", 30, "status 400 or above"),
    ]
    assert [row[0] for row in stage(con, "parquet", paths=[str(path)] * 2, **columns)] == [1, 2, 3, 1025, 1026, 1027]


def stage_column(con: duckdb.DuckDBPyConnection, folder: Path, role: str, values: pa.Array) -> list[tuple[Any, ...]]:
    """(value, verdict) of a Parquet column of users or pages."""
    table = pa.table({"user_id": ["u"] * len(values), "url": ["/a"] * len(values)})
    table = table.set_column(table.column_names.index(role), role, values)
    pq.write_table(table, folder / "log.parquet", store_schema=False)
    columns = ABSENT | {"user_column": "user_id", "url_column": "url"}
    rows = stage(con, "parquet", paths=[str(folder / "log.parquet")], **columns)
    return [(row[1 if role == "user_id" else 2], row[4]) for row in rows]


@pytest.mark.parametrize("role", ["user_id", "url"])
def test_whole_floats_are_the_integers_that_they_were(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, role: str
) -> None:
    floats = pa.array([1.0, 1e17, -3.0, 123456789012.0, None, float("nan"), 0.0, 1e-5, 1.5, float("inf")])
    found = stage_column(con, tmp_path, role, floats)
    assert [value for value, _ in found[:7]] == ["1", "100000000000000000", "-3", "123456789012", None, None, "0"]
    fault = f"{'user' if role == 'user_id' else 'page'} is no whole number"
    assert [verdict for _, verdict in found] == [None] * 7 + [fault] * 3


def test_decimals_and_texts_of_ids(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    decimals = pa.array([Decimal("1.00"), Decimal("12345678901234567890.00"), Decimal("1.50")], pa.decimal128(38, 2))
    assert stage_column(con, tmp_path, "user_id", decimals) == [
        ("1", None), ("12345678901234567890", None), ("1.50", "user is no whole number"),
    ]  # fmt: skip
    assert stage_column(con, tmp_path, "user_id", pa.array(["1.0", "1e5", "1.5"])) == [
        ("1.0", None), ("1e5", None), ("1.5", None),
    ]  # fmt: skip


def test_bytes_without_the_mark_of_utf8_are_decoded(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    values = pa.array(["é".encode(), b"a\\x", None], pa.binary())
    for role in ("user_id", "url"):
        assert stage_column(con, tmp_path, role, values) == [("é", None), ("a\\x", None), (None, None)]


def test_numbers_of_json_lines(con: duckdb.DuckDBPyConnection) -> None:
    pointers = ["/user_id", "/url", "/ts", "/x", "/method", "/status", "/ua", "/x", "/x"]
    values = ["1", "1.0", "1e17", '"1.0"', "1.5", "12345678901234567890", "1e-5"]
    lines = [f'{{"user_id": {value}, "url": {value}, "ts": 1}}' for value in values]
    rows = stage_lines(con, "json", *lines, pointers=pointers)
    assert [row[1] for row in rows[:4]] == ["1", "1", "100000000000000000", "1.0"]
    assert [row[2] for row in rows[:4]] == ["1", "1", "100000000000000000", "1.0"]
    assert [row[4] for row in rows] == [None] * 4 + ["user is no whole number", None, "user is no whole number"]


def test_what_is_too_long_is_cut_and_stays_too_long(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    row = stage_fields(con, user_id="u" * 100_000, time="1" * 100_000)
    assert (len(row[1]), row[3]) == (MAX_USER_BYTES + 1, None)
    table = pa.table({"user_id": ["u" * 100_000], "url": ["/a"], "ts": ["1" * 100_000]})
    pq.write_table(table, tmp_path / "log.parquet")
    columns = ABSENT | {"user_column": "user_id", "url_column": "url", "time_column": "ts"}
    (row,) = stage(con, "parquet", paths=[str(tmp_path / "log.parquet")], **columns)
    assert (len(row[1]), row[3]) == (MAX_USER_BYTES + 1, None)
