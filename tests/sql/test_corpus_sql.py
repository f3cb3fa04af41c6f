"""Each SQL step of the corpus, on literal rows."""

from __future__ import annotations  # a DuckDB type kept in a signature would make nanobind report a leak at exit

import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.sql.runner import create_table, fetch_rows
from surf2vec.tasks.activity.count import NAMES, count_activity
from tests.data.corpora import user_hash
from tests.data.event_files import Event, moment, write_events_file

EVENTS = [
    Event("ann", "/b", moment(2), "one", 4),
    Event("ann", "/a", moment(1), "one", 2),
    Event("ann", "/c", moment(1), "one", 1),
    Event("bob", "/a", moment(1), "two", 1),
]
UNDATED = [Event("ann", "/z", 3, "three", 1)]


@pytest.fixture
def window(tmp_path: Path) -> dict[str, Any]:
    """Parameters of a window of one dated and one undated file in 1,024 micro-partitions, all of them in the group."""
    paths = [tmp_path / "dated.parquet", tmp_path / "undated.parquet"]
    for path, events in zip(paths, (EVENTS, UNDATED), strict=True):
        write_events_file(path, events, partitions=1024)
    return {
        "files": [str(path) for path in paths], "undated_files": [str(paths[1])], "first_partition": 0, "last_partition": 1023,
    }  # fmt: skip


def partition_of(user_id: str) -> int:
    return user_hash(user_id) % 1024


def only(user_id: str) -> dict[str, int]:
    return {"first_partition": partition_of(user_id), "last_partition": partition_of(user_id)}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def test_events_of_a_group_are_as_they_lie_in_the_files(con: duckdb.DuckDBPyConnection, window: dict[str, Any]) -> None:
    rows = fetch_rows(con, "intermediate/int_group_events", window)
    second = 1_767_225_600_000_000  # 2026-01-01
    day = 86_400_000_000
    ann = [(second, 1, "/c", False), (second, 2, "/a", False), (second + day, 4, "/b", False)]
    files = {
        partition_of("ann"): [("ann", *row) for row in ann],
        partition_of("bob"): [("bob", second, 1, "/a", False)],
    }
    assert [(row["user_id"], row["us"], row["line"], row["url"], row["is_undated"]) for row in rows] == [
        *[row for partition in sorted(files) for row in files[partition]],
        ("ann", 3, 1, "/z", True),
    ]
    assert {row["source"] for row in rows} == {event.order[1] for event in [*EVENTS, *UNDATED]}
    rows = fetch_rows(con, "intermediate/int_group_events", window | only("bob"))
    assert [row["user_id"] for row in rows] == ["bob"]


def test_totals_add_the_groups(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    first = write_rows(tmp_path / "1", [{"url": "/a", "events": 3, "users": 2}, {"url": "/b", "events": 0, "users": 0}])
    second = write_rows(tmp_path / "2", [{"url": "/a", "events": 4, "users": 1}])
    create_table(con, "intermediate/int_item_totals", {"item_counts": [first, second]})
    assert sorted(con.table("int_item_totals").fetchall()) == [("/a", 7, 3), ("/b", 0, 0)]


@pytest.mark.parametrize(
    ("min_item_events", "min_item_users", "urls"),
    [(1, 1, ["/Z", "/b", "/ä", "/a"]), (3, 1, ["/Z", "/b", "/ä"]), (1, 3, ["/b"]), (9, 9, [])],
)
def test_the_vocabulary_is_by_count_then_by_the_bytes_of_the_url(
    con: duckdb.DuckDBPyConnection, min_item_events: int, min_item_users: int, urls: list[str]
) -> None:
    con.execute("create table int_item_totals (url varchar, events bigint, users bigint)")
    con.execute(
        "insert into int_item_totals values ('/ä', 3, 2), ('/a', 1, 1), ('/b', 3, 3), ('/Z', 3, 2), ('/bot', 0, 0)"
    )
    con.execute("create table stg_vocabulary (url varchar, item_ix integer)")
    thresholds = {"min_item_events": min_item_events, "min_item_users": min_item_users}
    rows = fetch_rows(con, "marts/vocabulary", thresholds)
    assert [row["url"] for row in rows] == urls
    assert [row["item_ix"] for row in rows] == list(range(len(urls)))
    assert not rows or list(rows[0]) == ["item_ix", "url", "count", "users"]


def test_the_items_of_a_base_keep_their_places_whatever_their_counts(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("create table int_item_totals (url varchar, events bigint, users bigint)")
    con.execute("insert into int_item_totals values ('/new', 9, 3), ('/old', 9, 9), ('/rare', 1, 1), ('/newer', 9, 3)")
    con.register("stg_vocabulary", pa.table({"item_ix": pa.array([1, 0], pa.int32()), "url": ["/old", "/gone"]}))
    rows = fetch_rows(con, "marts/vocabulary", {"min_item_events": 5, "min_item_users": 3})
    assert [tuple(row.values()) for row in rows] == [
        (0, "/gone", 0, 0), (1, "/old", 9, 9), (2, "/new", 9, 3), (3, "/newer", 9, 3)
    ]  # fmt: skip
    assert list(rows[0]) == ["item_ix", "url", "count", "users"]


def test_codes_of_items_outside_of_the_vocabulary_mean_nothing(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    con.register("vocabulary", pa.table({"item_ix": [0, 1], "url": ["/b", "/c"]}))
    counts = write_rows(tmp_path / "counts", [{"url": "/a", "item_code": 0}, {"url": "/b", "item_code": 1}])
    rows = fetch_rows(con, "intermediate/int_group_item_ix", {"item_counts": counts})
    assert rows == [{"item_ix": -1}, {"item_ix": 0}]


def test_events_sorted_by_other_micro_partitions(con: duckdb.DuckDBPyConnection, window: dict[str, Any]) -> None:
    rows = fetch_rows(con, "intermediate/int_sorted_events", window | {"partitions": 2})
    assert [row["micro_partition"] for row in rows] == sorted(user_hash(row["user_id"]) % 2 for row in rows)
    ann = [(row["url"], row["line"]) for row in rows if row["user_id"] == "ann"]
    assert ann == [("/z", 1), ("/c", 1), ("/a", 2), ("/b", 4)]
    assert [row["url"] for row in rows if row["user_id"] == "bob"] == ["/a"]


def test_activity_of_two_users_by_hand(con: duckdb.DuckDBPyConnection) -> None:
    """Ann: two sessions on two days, 60 s, a day less 60 s, and 6 hours later. Bob has an order, but no times."""
    thursday, minute, day = 0, 60_000_000, 86_400_000_000
    rows = [
        *((0, us, item) for us, item in [(thursday, 7), (minute, 8), (day, 7), (day + 1000 * 6 * 3600_000, 9)]),
        *((1, None, item) for item in (5, 5)),
    ]
    events = pl.DataFrame(rows, {"user_ix": pl.Int32, "us": pl.Int64, "item": pl.Int32}, orient="row")
    activity = np.concatenate(list(count_activity(con, events, 2)))
    ann, bob = (dict(zip(NAMES, row, strict=True)) for row in activity.tolist())
    ln, six_hours = math.log, 6 * 3600
    expected = {
        "events": ln(4), "pages": ln(3), "entropy": round(ln(4) - 2 * ln(2) / 4, 5), "new_pages": 0.75,
        "late_new_pages": 0.5, "last": 1.25, "sessions": ln(3), "days": ln(2), "last_day": ln(2), "last_week": ln(4),
        "last_month": ln(4), "span": ln(1 + 1.25 * 86400), "mean_gap": ln(1 + 1.25 * 86400 / 3),
        "median_gap": ln(1 + six_hours), "last_gap": ln(1 + six_hours),
        "session_gap": ln(1 + (86400 - 60 + six_hours) / 2), "last_session_gap": ln(1 + six_hours),
        "session_seconds": ln(1 + 60 / 3), "session_events": ln(4 / 3), "last_session": 0.0,
        "last_hour_sin": 1.0, "last_hour_cos": 0.0, "hour_sin": 0.251091, "hour_cos": 0.749998,
    }  # fmt: skip
    assert {name: ann[name] for name in expected} == pytest.approx(expected, abs=2e-6)
    angle = 2 * math.pi * (3 + 1.25) / 7  # from Monday on
    assert (ann["last_weekday_sin"], ann["last_weekday_cos"]) == pytest.approx((math.sin(angle), math.cos(angle)))
    known = {"events": ln(2), "pages": 0.0, "entropy": 0.0, "new_pages": 0.5, "late_new_pages": 0.0}
    assert bob == pytest.approx(dict.fromkeys(bob, math.nan) | known, nan_ok=True)
