"""From staged lines to events, model by model, on literal rows."""

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from sql.runner import connect, create_table, fetch_rows
from tasks.config import IngestConfig
from tasks.pseudonyms import key_pads
from tasks.staging import LEFT_OUT, define_rules
from tasks.times import EARLIEST
from tasks.urls import ASSET_PATTERN, UrlRules, canonical_item

LATEST = datetime(2026, 11, 22)
Row = tuple[Any, ...]


@pytest.fixture
def con(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(300_000_000, tmp_path / "spill", 1) as con:
        define_rules(con, IngestConfig())
        yield con


def put(con: duckdb.DuckDBPyConnection, table: str, columns: str, rows: Sequence[Row]) -> None:
    """Make a table of literal rows; `columns` as in create table."""
    con.execute(f"create or replace temporary table {table} ({columns})")
    con.executemany(f"insert into {table} values ({', '.join('?' * len(rows[0]))})", rows)


def put_lines(con: duckdb.DuckDBPyConnection, *rows: Row, time: str = "varchar") -> None:
    put(con, "stg_lines", f"line bigint, user_id varchar, page_key varchar, time {time}, verdict varchar", rows)


def make(con: duckdb.DuckDBPyConnection, model: str, **params: Any) -> list[Row]:
    name = create_table(con, f"intermediate/{model}", params)
    return con.execute(f"select * from {name} order by all").fetchall()


def user_hash(user_id: str) -> int:
    return int.from_bytes(hashlib.md5(user_id.encode()).digest()[8:], "little")


def test_users_under_their_own_names(con: duckdb.DuckDBPyConnection) -> None:
    put_lines(
        con, (1, "b", "/", "1", None), (2, "b", "/", "1", None), (3, "ü", "/", "1", None), (4, None, "/", "1", None),
        (5, " ", "/", "1", None), (6, "x" * 11, "/", "1", None), (7, "out", "/", "1", "crawler"),
    )  # fmt: skip
    assert make(con, "int_source_users", max_user_bytes=10, **key_pads(None)) == [
        (" ", " ", user_hash(" "), "no user"),
        ("b", "b", user_hash("b"), None),
        ("x" * 11, "x" * 11, user_hash("x" * 11), "user id too long"),
        ("ü", "ü", user_hash("ü"), None),
    ]


@pytest.mark.parametrize(
    "key", [b"k", b"0123456789" * 6 + b"0123", b"longer than a block of SHA-256, " * 3, b"\0\xff'$key"]
)
def test_pseudonyms_are_hmac(con: duckdb.DuckDBPyConnection, key: bytes) -> None:
    put_lines(con, (1, "someone", "/", "1", None), (2, "jemand, ü", "/", "1", None))
    names = {user: hmac.new(key, user.encode(), hashlib.sha256).hexdigest() for user in ("someone", "jemand, ü")}
    assert make(con, "int_source_users", max_user_bytes=10, **key_pads(key)) == sorted(
        (user, name, user_hash(name), None) for user, name in names.items()
    )


def test_users_are_ranked_by_micro_partition_then_bytes(con: duckdb.DuckDBPyConnection) -> None:
    users = [(f"raw {name}", name, hash, None) for name, hash in [("b", 3), ("a", 7), ("B", 11), ("ä", 15), ("z", 4)]]
    put(con, "int_source_users", "raw_id varchar, user_id varchar, user_hash ubigint, verdict varchar", users)
    make(con, "int_ranked_users", partitions=4)
    ranked = con.execute("select user_id, micro_partition from int_ranked_users order by user_rank").fetchall()
    assert ranked == [("z", 0), ("B", 3), ("a", 3), ("b", 3), ("ä", 3)]


@pytest.mark.parametrize(
    "url",
    [
        "https://www.a.example/b", "https://www.a.example/b/", "https://www.a.example/b//", "https://www.a.example",
        "https://www.a.example/", "https://www.a.example//", "http://www.a.example/b/", "https://www.www.a.example/b",
        "https://www.example", "https://www.a.example/index.html", "https://www.a.example/b/index.html/", "httpfoo/",
        "https://WWW.a.example/b", "https://www.a.example:443/b", "https://www.a.example/ä/", "/b/", "www.a.example/",
        "http://a.example/www.b/", "https://www.a.example/b/../c", "http:///b/",
    ],
)  # fmt: skip
def test_what_sql_shortens_is_what_the_rules_make(con: duckdb.DuckDBPyConnection, url: str) -> None:
    put_lines(con, (1, "u", url, "1", None))
    params = {"canonical_pattern": UrlRules().canonical_pattern, "asset_pattern": ASSET_PATTERN}
    pages = make(con, "int_source_pages", drops_assets=False, **params)
    assert [item for _, item, _ in pages] == [canonical_item(url, UrlRules())]


def test_sampled_users(con: duckdb.DuckDBPyConnection) -> None:
    users = [("a", "a", 8, None), ("b", "b", 9, None), ("c", "c", 12, None), (" ", " ", 16, "no user")]
    put(con, "int_source_users", "raw_id varchar, user_id varchar, user_hash ubigint, verdict varchar", users)
    assert make(con, "int_sampled_users", sample_factor=4) == [(8,), (12,)]


def test_pages(con: duckdb.DuckDBPyConnection) -> None:
    urls = ["/a", "/a", "https://www.example.com/b/", "about:blank", "/logo.png", "/x.css?v=1", "  ", None]
    put_lines(
        con, *[(line, "u", url, "1", None) for line, url in enumerate(urls)], (9, "u", "/left-out", "1", "crawler")
    )
    params = {"canonical_pattern": UrlRules().canonical_pattern, "asset_pattern": ASSET_PATTERN}
    assert make(con, "int_source_pages", drops_assets=True, **params) == [
        ("  ", "  ", "no URL"),
        ("/a", "/a", None),
        ("/logo.png", "/logo.png", "static asset"),
        ("/x.css?v=1", "/x.css", "static asset"),
        ("about:blank", None, "not a page"),
        ("https://www.example.com/b/", "https://example.com/b", None),
    ]
    assert ("/logo.png", "/logo.png", None) in make(con, "int_source_pages", drops_assets=False, **params)


def judge(
    con: duckdb.DuckDBPyConnection, kind: str, *times: Any, time: str = "varchar", zone: str = "UTC"
) -> list[Row]:
    """(ts, verdict) of good lines with these times, read as `kind`."""
    con.execute("set TimeZone = $zone", {"zone": zone})
    put_lines(con, *[(line, "u", "/", value, None) for line, value in enumerate(times, 1)], time=time)
    put(con, "int_ranked_users", RANKED, [("u", "u", None, 0, 1)])
    put(con, "int_source_pages", PAGES, [("/", "/", None)])
    params = {"time_kind": kind, "is_dated": kind not in ("order", "line"), "earliest": EARLIEST, "latest": LATEST}
    create_table(con, "intermediate/int_judged_lines", params)
    return con.execute("select ts::varchar, verdict from int_judged_lines order by line").fetchall()


RANKED = "raw_id varchar, user_id varchar, verdict varchar, micro_partition integer, user_rank integer"
PAGES = "page_key varchar, item varchar, verdict varchar"
NOON = "2026-07-01 12:00:00"


@pytest.mark.parametrize(
    ("text", "ts"),
    [
        ("2026-07-01T12:00:00Z", NOON),
        ("2026-07-01 12:00:00", NOON),
        ("2026-07-01T12:00:00.123456Z", f"{NOON}.123456"),
        ("2026-07-01T14:00:00+02:00", NOON),
        ("2026-07-01T14:00:00+0200", NOON),
        ("2026-07-01 07:00:00-05", NOON),
        ("2026-07-01 14:00:00 +0200", NOON),
        ("01/Jul/2026:14:00:00 +0200", NOON),
        ("2026-07-01", "2026-07-01 00:00:00"),
        ("yesterday", None),
        ("", None),
        (None, None),
        ("infinity", None),
        ("2026-13-01", None),
    ],
)
def test_calendar_times(con: duckdb.DuckDBPyConnection, text: str, ts: str | None) -> None:
    assert judge(con, "calendar", text) == [(ts, None if ts else "time not readable")]


@pytest.mark.parametrize("time", ["varchar", "timestamp", "timestamp_ns", "timestamp_s"])
def test_the_midnight_of_a_time_without_zone(con: duckdb.DuckDBPyConnection, time: str) -> None:
    rows = judge(con, "calendar", "2026-07-01 00:00:00", "2026-01-01 00:00:00", time=time, zone="Europe/Berlin")
    assert rows == [("2026-06-30 22:00:00", None), ("2025-12-31 23:00:00", None)]
    days = con.execute("select day from int_judged_lines order by line").fetchall()
    assert days == [
        ((datetime(2026, 6, 30) - datetime(1970, 1, 1)).days,),
        ((datetime(2025, 12, 31) - datetime(1970, 1, 1)).days,),
    ]


def test_dates_and_times_with_zone_in_columns(con: duckdb.DuckDBPyConnection) -> None:
    assert judge(con, "calendar", "2026-07-01", time="date", zone="Europe/Berlin") == [("2026-06-30 22:00:00", None)]
    rows = judge(con, "calendar", "2026-07-01 12:00:00Z", time="timestamptz", zone="Europe/Berlin")
    assert rows == [(NOON, None)]


@pytest.mark.parametrize(
    ("kind", "value", "ts"),
    [
        ("seconds", "1782907200", NOON),
        ("seconds", "1782907200.25", f"{NOON}.25"),
        ("seconds", "1.7829072e9", NOON),
        ("milliseconds", "1782907200000", NOON),
        ("milliseconds", "1782907200000.5", f"{NOON}.0005"),
        ("microseconds", "1782907200000001", f"{NOON}.000001"),
        ("nanoseconds", "1782907200000001999", f"{NOON}.000001"),
        ("order", "7", "1970-01-01 00:00:00.000007"),
        ("order", "7.0", "1970-01-01 00:00:00.000007"),
        ("line", None, "1970-01-01 00:00:00.000001"),
    ],
)
def test_numbers(con: duckdb.DuckDBPyConnection, kind: str, value: str, ts: str) -> None:
    assert judge(con, kind, value) == [(ts, None)]


@pytest.mark.parametrize("kind", ["seconds", "milliseconds", "microseconds", "nanoseconds", "order"])
@pytest.mark.parametrize("value", ["x", "", None, "9" * 40, "nan"])
def test_numbers_that_are_none(con: duckdb.DuckDBPyConnection, kind: str, value: str | None) -> None:
    assert judge(con, kind, value) == [(None, "time not readable")]


def test_typed_numbers(con: duckdb.DuckDBPyConnection) -> None:
    assert judge(con, "seconds", 1782907200.5, time="double") == [(f"{NOON}.5", None)]
    assert judge(con, "milliseconds", 1782907200000, time="bigint") == [(NOON, None)]
    assert judge(con, "order", -1, 0, time="integer") == [(None, "time not readable"), ("1970-01-01 00:00:00", None)]


def test_times_out_of_scale(con: duckdb.DuckDBPyConnection) -> None:
    assert [verdict for _, verdict in judge(con, "seconds", "99999999", "100000000", "1795000000", "1795400000")] == [
        "time out of scale", None, None, "time in the future",
    ]  # fmt: skip
    assert judge(con, "calendar", "1970-01-01", "2026-11-22 00:00:01") == [
        ("1970-01-01 00:00:00", "time out of scale"), ("2026-11-22 00:00:01", "time in the future"),
    ]  # fmt: skip


def test_verdicts_from_line_user_page_and_time(con: duckdb.DuckDBPyConnection) -> None:
    put(con, "int_ranked_users", RANKED, [("u", "pseudonym", None, 3, 9), (" ", " ", "no user", 0, 1)])
    put(con, "int_source_pages", PAGES, [("/", "/", None), ("about:", None, "not a page"), ("", "", "no URL")])
    put_lines(
        con, (1, "u", "/", "1782907200", None), (2, "u", "/", "1782907200", "crawler"), (3, None, "/", "x", None),
        (4, " ", "/", "x", None), (5, "u", None, "x", None), (6, "u", "/", "x", None), (7, "u", "about:", "x", None),
        (8, "u", "about:", "1782907200", None), (9, "u", "", "1782907200", None),
    )  # fmt: skip
    params = {"time_kind": "seconds", "is_dated": True, "earliest": EARLIEST, "latest": LATEST}
    create_table(con, "intermediate/int_judged_lines", params)
    rows = con.execute("select line, verdict from int_judged_lines order by line").fetchall()
    assert rows == [
        (1, None), (2, "crawler"), (3, "no user"), (4, "no user"), (5, "no URL"), (6, "time not readable"),
        (7, "time not readable"), (8, "not a page"), (9, "no URL"),
    ]  # fmt: skip
    good = con.execute("select user_rank, micro_partition, user_id, item, day from int_judged_lines where line = 1")
    assert good.fetchall() == [(9, 3, "pseudonym", "/", 20_635)]


def test_what_becomes_of_judged_lines(con: duckdb.DuckDBPyConnection) -> None:
    columns = (
        "line bigint, user_rank integer, micro_partition integer, user_id varchar, item varchar, ts timestamp, day integer, "
        "verdict varchar"
    )
    early, late = datetime(2026, 7, 1, 1), datetime(2026, 7, 1, 2)
    rows = [
        (2, 2, 1, "b", "/x", early, 5, None), (3, 1, 0, "c", "/y", late, 5, None), (4, 1, 0, "c", "/x", late, 5, None),
        (5, 1, 0, "c", "/z", early, 5, None), (6, 1, 0, "c", "/other-day", early, 6, None),
        (7, 1, 0, "c", "/logo.png", early, 5, "static asset"), (8, None, None, None, None, None, None, "no user"),
    ]  # fmt: skip
    put(con, "int_judged_lines", columns, rows)
    events = fetch_rows(con, "intermediate/int_day_events", {"day": 5, "source_number": 2**63})
    assert [tuple(row.values()) for row in events] == [
        (0, "c", early, 2**63, 5, "/z"), (0, "c", late, 2**63, 3, "/y"), (0, "c", late, 2**63, 4, "/x"),
        (1, "b", early, 2**63, 2, "/x"),
    ]  # fmt: skip
    assert make(con, "int_rejects", source_name="/logs/a.csv", left_out=list(LEFT_OUT)) == [
        ("/logs/a.csv", 8, "no user")
    ]
    counts = {
        (row["verdict"], row["day"]): row["num_lines"] for row in fetch_rows(con, "intermediate/int_verdict_counts")
    }
    assert counts == {(None, 5): 4, (None, 6): 1, ("static asset", None): 1, ("no user", None): 1}


@pytest.mark.parametrize(
    ("times", "profile"),
    [
        (["5", "7", "1000"], (3, 0, 3, 7)),
        (["2026-07-01T12:00:00Z", "2026-07-01T12:00:00", "", None, "nan"], (3, 1, 0, None)),
        (["2026-07-01 14:00:00 +0200", "-3"], (2, 1, 1, 3)),
    ],
)
def test_time_profile(con: duckdb.DuckDBPyConnection, times: list[str | None], profile: Row) -> None:
    put_lines(con, *[(line, "u", "/", value, None) for line, value in enumerate(times)], (9, "u", "/", "1", "crawler"))
    row = fetch_rows(con, "intermediate/int_time_profile", {"stride": 1})[0]
    assert (row["num_times"], row["num_zoned"], row["num_numbers"], row["median"]) == profile


def test_time_profile_looks_at_some_lines_only(con: duckdb.DuckDBPyConnection) -> None:
    put_lines(con, *[(line, "u", "/", str(line), None) for line in range(100)])
    assert fetch_rows(con, "intermediate/int_time_profile", {"stride": 10})[0]["num_times"] == 10
