"""From staged lines to events, model by model, on literal rows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import duckdb
import pytest

from surf2vec.sql.runner import create_table, fetch_rows
from surf2vec.tasks.ingest.staging import LEFT_OUT
from surf2vec.tasks.ingest.times import EARLIEST, OLDEST, TimeScale, scale_of
from tests.data.corpora import user_hash

LATEST = datetime(2026, 11, 22)
Row = tuple[Any, ...]


def put(con: duckdb.DuckDBPyConnection, table: str, columns: str, rows: Sequence[Row]) -> None:
    """Make a table of literal rows; `columns` as in create table."""
    con.execute(f"create or replace temporary table {table} ({columns})")
    con.executemany(f"insert into {table} values ({', '.join('?' * len(rows[0]))})", rows)


def put_lines(con: duckdb.DuckDBPyConnection, *rows: Row, time: str = "varchar") -> None:
    put(con, "stg_lines", f"line bigint, user_id varchar, page_key varchar, time {time}, verdict varchar", rows)


def make(con: duckdb.DuckDBPyConnection, model: str, **params: Any) -> list[Row]:
    name = create_table(con, f"intermediate/{model}", params)
    return con.execute(f"select * from {name} order by all").fetchall()


def judge(
    con: duckdb.DuckDBPyConnection, kind: str, *times: Any, time: str = "varchar", zone: str = "UTC"
) -> list[Row]:
    """(ts, verdict) of good lines with these times, read as `kind`."""
    con.execute("set TimeZone = $zone", {"zone": zone})
    put_lines(con, *[(line, "u", "/", value, None) for line, value in enumerate(times, 1)], time=time)
    return [(row["ts"], row["time_verdict"]) for row in time_lines(con, kind)]


def time_lines(
    con: duckdb.DuckDBPyConnection, kind: str, first_row: int = 0, end_row: int = 1000
) -> list[dict[str, Any]]:
    """Rows of int_timed_lines by line, with `ts` as text."""
    formats = ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M %z")
    kinds = ("calendar", "timestamp", "format", "line")
    scale = TimeScale(kind, "", formats=formats) if kind in kinds else scale_of(1, kind)
    params = scale.params | {"earliest": EARLIEST, "latest": LATEST, "place_bits": 8}
    rows = fetch_rows(con, "intermediate/int_timed_lines", params | {"first_row": first_row, "end_row": end_row})
    for row in rows:
        row["ts"] = con.execute("select make_timestamp($us::bigint)::varchar", {"us": row["us"]}).fetchall()[0][0]
    return sorted(rows, key=lambda row: row["line"])


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
        ("2026-07-01 12:00:00.123 +0000", f"{NOON}.123"),
        ("2026-07-01 12:00:00.123456 UTC", f"{NOON}.123456"),
        ("2026-07-01 12:00:00,123", f"{NOON}.123"),
        ("2026-07-01T14:00:00,5+02:00", f"{NOON}.5"),
        ("2026-07-01 14:00:00 +02:00", NOON),
        ("2026-07-01 14:00:00 +02", NOON),
        ("2026-07-01 12:00:00.123456789 +0000 UTC", f"{NOON}.123456"),
        ("2026-07-01 12:00 GMT", NOON),
        ("2026-07-01 14:00:00 Europe/Berlin", NOON),
        ("2026-07-01T14:00:00+02:00[Europe/Berlin]", NOON),
        ("2026-07-01 07:00:00 EST", NOON),  # not summer time, though it is July
        ("2026-07-01 08:00:00 EDT", NOON),
        ("2026-07-01 14:00:00 CEST", NOON),
        ("2026-07-01 13:00:00 BST", None),  # Bangladesh or Britain
        ("2026-07-01 13:00:00 Mars/Base", None),
        ("Wed, 01 Jul 2026 14:00:00 +0200", NOON),
        ("Wed, 1 Jul 2026 12:00:00 GMT", NOON),
        ("01 Jul 2026 12:00:00 +0000 (UTC)", NOON),
        ("[01/Jul/2026:14:00:00 +0200]", NOON),
        ("[01/Jul/2026:12:00:00.250]", f"{NOON}.25"),
        ("Wed Jul  1 12:00:00 2026", NOON),
        ("Wed Jul 01 2026 14:00:00 GMT+0200 (Central European Summer Time)", NOON),
        ("20260701T120000Z", NOON),
        ("20260701 12:00:00", NOON),
        ("01/07/2026 12:00", None),
        ("yesterday", None),
        ("", None),
        (None, None),
        ("infinity", None),
        ("2026-13-01", None),
    ],
)
def test_calendar_times(con: duckdb.DuckDBPyConnection, text: str, ts: str | None) -> None:
    assert judge(con, "calendar", text) == [(ts, None if ts else "time not readable")]


def test_calendar_us_of_a_time_in_the_sessions_zone(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("set TimeZone = 'Europe/Berlin'")
    assert con.execute(
        "select calendar_us('[01/Jul/2026:14:00:00]') - calendar_us('2026-07-01T12:00Z')"
    ).fetchall() == [(0,)]


def test_times_of_a_format_are_of_the_sessions_zone(con: duckdb.DuckDBPyConnection) -> None:
    times = ("01.11.2026 08:21", "01.11.2026 08:21 +0200", "2026-11-01 08:21", None)
    assert judge(con, "format", *times, zone="Europe/Berlin") == [
        ("2026-11-01 07:21:00", None),
        ("2026-11-01 06:21:00", None),
        (None, "time not readable"),
        (None, "time not readable"),
    ]


@pytest.mark.parametrize("time", ["varchar", "timestamp", "timestamp_ns", "timestamp_s"])
def test_the_midnight_of_a_time_without_zone(con: duckdb.DuckDBPyConnection, time: str) -> None:
    kind = "calendar" if time == "varchar" else "timestamp"
    rows = judge(con, kind, "2026-07-01 00:00:00", "2026-01-01 00:00:00", time=time, zone="Europe/Berlin")
    assert rows == [("2026-06-30 22:00:00", None), ("2025-12-31 23:00:00", None)]


def test_dates_and_times_with_zone_in_columns(con: duckdb.DuckDBPyConnection) -> None:
    assert judge(con, "timestamp", "2026-07-01", time="date", zone="Europe/Berlin") == [("2026-06-30 22:00:00", None)]
    rows = judge(con, "timestamp", "2026-07-01 12:00:00Z", time="timestamptz", zone="Europe/Berlin")
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
        ("seconds", "1782907200,25", f"{NOON}.25"),
        ("seconds since 2001-01-01T01:00:00+01:00", "804600000", NOON),
        ("milliseconds since 2016-06-14T03:59:59.998Z", "317030400002", NOON),
        ("cocoa", "804600000.123", f"{NOON}.123"),
        ("webkit", "13427380800000000", NOON),
        ("filetime", "134273808000000009", NOON),
        ("ticks", "639185040000000000", NOON),
        ("days", "46204.5", NOON),
        ("days", "46204,5006944444", "2026-07-01 12:01:00"),
        ("nanoseconds", "1.7829072e+18", NOON),
        ("order", "7", "1970-01-01 00:00:00.000007"),
        ("order", "7.0", "1970-01-01 00:00:00.000007"),
        ("line", None, "1970-01-01 00:00:00.000001"),
    ],
)
def test_numbers(con: duckdb.DuckDBPyConnection, kind: str, value: str, ts: str) -> None:
    assert judge(con, kind, value) == [(ts, None)]


def test_days_of_excel_are_of_the_sessions_zone(con: duckdb.DuckDBPyConnection) -> None:
    assert judge(con, "days", "46204.5", zone="Europe/Berlin") == [("2026-07-01 10:00:00", None)]


@pytest.mark.parametrize("kind", ["seconds", "milliseconds", "nanoseconds", "ticks", "days", "order"])
@pytest.mark.parametrize("value", ["x", "", None, "9" * 40, "nan", "1,000,000"])
def test_numbers_that_are_none(con: duckdb.DuckDBPyConnection, kind: str, value: str | None) -> None:
    assert judge(con, kind, value) == [(None, "time not readable")]


def test_typed_numbers(con: duckdb.DuckDBPyConnection) -> None:
    assert judge(con, "seconds", 1782907200.5, time="double") == [(f"{NOON}.5", None)]
    assert judge(con, "milliseconds", 1782907200000, time="bigint") == [(NOON, None)]
    assert judge(con, "order", 7.5, time="double") == [(None, "time not readable")]
    assert judge(con, "order", -1, 0, time="integer") == [(None, "time not readable"), ("1970-01-01 00:00:00", None)]


def test_times_out_of_scale(con: duckdb.DuckDBPyConnection) -> None:
    assert [verdict for _, verdict in judge(con, "seconds", "99999999", "100000000", "1795000000", "1795400000")] == [
        "time out of scale", None, None, "time in the future",
    ]  # fmt: skip
    assert judge(con, "calendar", "1970-01-01", "2026-11-22 00:00:01") == [
        ("1970-01-01 00:00:00", "time out of scale"),
        ("2026-11-22 00:00:01", "time in the future"),
    ]


def test_some_rows_of_the_lines_that_have_no_verdict_yet(con: duckdb.DuckDBPyConnection) -> None:
    put_lines(con, *[(line, "u", "/", "1782907200", "crawler" if line == 3 else None) for line in range(1, 7)])
    assert [row["line"] for row in time_lines(con, "seconds")] == [1, 2, 4, 5, 6]
    assert [row["line"] for row in time_lines(con, "seconds", 1, 4)] == [2, 4]


def test_what_becomes_of_refused_lines(con: duckdb.DuckDBPyConnection) -> None:
    verdicts = {3: None, 7: "static asset", 9: "crawler", 8: "NUL byte", 5: "NUL byte"}
    put_lines(con, *[(line, "u", "/", "1", verdict) for line, verdict in verdicts.items()])
    assert make(con, "int_refused_lines") == [(5, "NUL byte"), (7, "static asset"), (8, "NUL byte"), (9, "crawler")]
    params = {"source_name": "/logs/a.csv", "left_out": list(LEFT_OUT)}
    rejects = [("/logs/a.csv", 5, "NUL byte"), ("/logs/a.csv", 8, "NUL byte")]
    assert make(con, "int_rejects", **params, place=0, place_bits=62, line_bits=0) == rejects
    assert make(con, "int_rejects", **params, place=1, place_bits=3, line_bits=0) == [("/logs/a.csv", 0, "NUL byte")]
    assert make(con, "int_rejects", **params, place=0, place_bits=62, line_bits=2)[1] == ("/logs/a.csv", 2, "NUL byte")


def test_the_size_of_a_source(con: duckdb.DuckDBPyConnection) -> None:
    put_lines(con, (1, "ü", "/a", "1", None), (2, None, None, "1", "crawler"), (3, "bob", "/", "1", None))
    size = {"num_lines": 3, "text_bytes": 8, "num_distinct": 4, "distinct_text_bytes": 8}
    assert fetch_rows(con, "intermediate/int_source_size") == [size]
    con.execute("delete from stg_lines")
    assert fetch_rows(con, "intermediate/int_source_size") == [dict.fromkeys(size, 0)]


@pytest.mark.parametrize(
    ("times", "profile"),
    [
        (["5", "7", "1000"], {"num_times": 3, "num_numbers": 3, "num_distinct": 3, "numbers": [5, 7, 1000]}),
        (["7,5", "7.5", "7.5", "1.7E+12"], {"num_fractions": 3, "num_rounded": 1, "num_distinct": 2, "calendar_times": None}),
        (["20260701", "20260701120000", "20261301", "20990101"], {"num_numbers": 4, "num_written": 2}),
        (["2026-07-01T12:00:00Z", "2026-07-01", "", None, "nan"], {"num_times": 3, "num_zoned": 1, "num_numbers": 0}),
        (["2026-07-01 14:00 +0200", "2026-07-01 14:00:00 EST", "-3"], {"num_zoned": 2, "numbers": [-3] * 3}),
        (["1970-01-01 00:00:00.000007"], {"calendar_times": [7] * 3}),
    ],
)  # fmt: skip
def test_time_profile(con: duckdb.DuckDBPyConnection, times: list[str | None], profile: dict[str, Any]) -> None:
    put_lines(con, *[(line, "u", "/", value, None) for line, value in enumerate(times)], (9, "u", "/", "1", "crawler"))
    assert profile_times(con, 1) | profile == profile_times(con, 1)


def test_time_profile_looks_at_some_lines_only(con: duckdb.DuckDBPyConnection) -> None:
    put_lines(con, *[(line, "u", "/", str(line), None) for line in range(100)])
    assert profile_times(con, 10)["num_times"] == 10


def test_time_profile_of_several_logs(con: duckdb.DuckDBPyConnection) -> None:
    put_lines(
        con, *[(place << 8 | line, "u", "/", str(10 * place + line), None) for place in (0, 2) for line in (1, 2)]
    )
    params = {"stride": 1, "oldest": OLDEST, "latest": LATEST, "place_bits": 8}
    profiles = fetch_rows(con, "intermediate/int_time_profile", params)
    assert {profile["place"]: profile["numbers"] for profile in profiles} == {0: [1, 1, 2], 2: [21, 21, 22]}


def profile_times(con: duckdb.DuckDBPyConnection, stride: int) -> dict[str, Any]:
    params = {"stride": stride, "oldest": OLDEST, "latest": LATEST, "place_bits": 8}
    return fetch_rows(con, "intermediate/int_time_profile", params)[0]


def test_the_first_times_that_could_not_be_read(con: duckdb.DuckDBPyConnection) -> None:
    put_lines(con, *[(line, "u", "/", time, None) for line, time in enumerate(("x", "y", " ", "x", "z", "1"), 1)])
    refused = [(line, "time not readable") for line in (4, 5, 3, 2, 1)]
    put(con, "int_refused_lines", "line bigint, verdict varchar", [*refused, (6, "no user")])
    rows = fetch_rows(con, "intermediate/int_bad_times", {"most": 2})
    assert [row["time"] for row in rows] == ["x", "y"]


def test_tokens_that_several_users_have(con: duckdb.DuckDBPyConnection) -> None:
    pages = [("ann", "/aa?bb"), ("bob", "/aa#cc"), ("ann", "/dd"), ("ann", "/dd/ee"), ("bob", "/ee"), ("bob", "/ff?aa")]
    put_lines(
        con,
        *[(line, user, page, "1", None) for line, (user, page) in enumerate(pages)],
        (9, "eve", "/dd", "1", "crawler"),
    )
    put(con, "int_page_tokens", "token varchar", [("aa",), ("bb",), ("dd",)])
    assert make(con, "int_shared_tokens", token_pattern="[a-f]{2}") == [("aa",)]


def test_pages_with_very_many_queries(con: duckdb.DuckDBPyConnection) -> None:
    queries = [f"id={number}&sort={number % 2}&utm_source={number}" for number in range(10)]
    rows = [(line, "/show", query, None) for line, query in enumerate(queries)]
    rows += [(20, "/few", "id=1", None), (21, "/few", "id=2", "crawler"), (22, "/tracked", "utm_source=a", None)]
    rows += [(30 + number, "/a.css", f"v={number}", None) for number in range(10)]
    put(con, "stg_lines", "line bigint, page_key varchar, query varchar, verdict varchar", rows)
    params = {"asset_pattern": r"\.css$", "least_queries": 100, "most_hints": 3}
    assert fetch_rows(con, "intermediate/int_query_hints", params) == [
        {"path": "/show", "num_queries": 160, "keys": ["id", "sort"]}
    ]


def test_users_in_their_micro_partitions_by_the_bytes_of_their_ids(con: duckdb.DuckDBPyConnection) -> None:
    ids = ["ü", "bob", None, "Zoe", "ann"]
    put(con, "int_user_ids", "user_code integer, user_id varchar", list(enumerate(ids)))
    rows = fetch_rows(con, "intermediate/int_placed_users", {"partitions": 2})
    expected = [(user_hash(name or "") % 2, name is None, (name or "").encode(), code) for code, name in enumerate(ids)]
    assert [row["user_code"] for row in rows] == [code for *_, code in sorted(expected)]
    assert all(row["user_hash"] == user_hash(row["user_id"] or "") for row in rows)
    assert all(row["micro_partition"] == row["user_hash"] % 2 for row in rows)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        ("whole_number('1.0', 'DOUBLE')", "1"),
        ("whole_number('1.0', 'VARCHAR')", "1.0"),
        ("number_fault('1.5', 'DOUBLE', '1', 'DOUBLE')", "user is no whole number"),
        ("number_fault('1', 'DOUBLE', '1.5', 'DOUBLE')", "page is no whole number"),
        ("number_fault('1.5', 'VARCHAR', '1', 'DOUBLE')", None),
    ],
)
def test_macros_of_numbers(con: duckdb.DuckDBPyConnection, call: str, value: str | None) -> None:
    assert con.execute(f"select {call}").fetchall() == [(value,)]
