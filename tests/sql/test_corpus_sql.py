"""Each SQL step of the corpus, on literal rows."""

from __future__ import annotations  # a DuckDB type kept in a signature would make nanobind report a leak at exit

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sql.runner import connect, create_table, fetch_rows
from tests.corpora import user_hash
from tests.event_files import Event, moment, write_events_file

EVENTS = [
    Event("ann", "/b", moment(2), "one", 4),
    Event("ann", "/a", moment(1), "one", 2),
    Event("ann", "/c", moment(1), "one", 1),
    Event("bob", "/a", moment(1), "two", 1),
]
UNDATED = [Event("ann", "/z", 3, "three", 1)]


@pytest.fixture
def con(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(200_000_000, tmp_path / "spill", 1) as connection:
        yield connection


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


def test_events_of_each_micro_partition(con: duckdb.DuckDBPyConnection, window: dict[str, Any]) -> None:
    expected = sorted([(partition_of("ann"), 4), (partition_of("bob"), 1)])
    rows = fetch_rows(con, "intermediate/int_partition_events", window)
    assert [tuple(row.values()) for row in rows] == expected


def test_items_of_a_group_have_dense_codes(con: duckdb.DuckDBPyConnection, window: dict[str, Any]) -> None:
    rows = fetch_rows(con, "intermediate/int_group_items", window)
    assert sorted(row["url"] for row in rows) == ["/a", "/b", "/c", "/z"]
    assert sorted(row["item_code"] for row in rows) == [0, 1, 2, 3]
    rows = fetch_rows(con, "intermediate/int_group_items", window | only("bob"))
    assert [row["url"] for row in rows] == ["/a"]


def test_events_of_a_group_are_in_the_order_of_the_corpus(
    con: duckdb.DuckDBPyConnection, window: dict[str, Any]
) -> None:
    create_table(con, "intermediate/int_group_items", window)
    create_table(con, "intermediate/int_group_users", window)
    urls = {row["item_code"]: row["url"] for row in con.table("int_group_items").to_arrow_table().to_pylist()}
    users = {row["user_rank"]: row["user_id"] for row in con.table("int_group_users").to_arrow_table().to_pylist()}
    rows = fetch_rows(con, "intermediate/int_group_events", window)
    day = 20_454  # 2026-01-01
    ann = [("ann", None, "/z"), ("ann", day, "/c"), ("ann", day, "/a"), ("ann", day + 1, "/b")]
    groups = {partition_of("ann"): ann, partition_of("bob"): [("bob", day, "/a")]}
    assert [(users[row["user_rank"]], row["day"], urls[row["item_code"]]) for row in rows] == [
        event for partition in sorted(groups) for event in groups[partition]
    ]
    rows = fetch_rows(con, "intermediate/int_group_events", window | only("bob"))
    assert [users[row["user_rank"]] for row in rows] == ["bob"]


def test_without_undated_files_every_event_has_a_day(con: duckdb.DuckDBPyConnection, window: dict[str, Any]) -> None:
    window |= {"files": window["files"][:1], "undated_files": []}
    for model in ("int_group_items", "int_group_users"):
        create_table(con, f"intermediate/{model}", window)
    assert all(row["day"] for row in fetch_rows(con, "intermediate/int_group_events", window))


def test_counts_go_to_the_urls_of_their_codes(con: duckdb.DuckDBPyConnection) -> None:
    con.register("int_group_items", pa.table({"url": ["/b", "/a"], "item_code": [1, 0]}))
    con.register("group_counts", pa.table({"item_code": [0, 1], "events": [7, 0], "users": [2, 0]}))
    rows = fetch_rows(con, "intermediate/int_item_counts")
    assert sorted(tuple(row.values()) for row in rows) == [("/a", 0, 7, 2), ("/b", 1, 0, 0)]


def test_totals_add_the_groups(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    first = write_rows(tmp_path / "1", [{"url": "/a", "events": 3, "users": 2}, {"url": "/b", "events": 0, "users": 0}])
    second = write_rows(tmp_path / "2", [{"url": "/a", "events": 4, "users": 1}])
    create_table(con, "intermediate/int_item_totals", {"item_counts": [first, second]})
    assert sorted(con.table("int_item_totals").fetchall()) == [("/a", 7, 3), ("/b", 0, 0)]
    summary = fetch_rows(con, "intermediate/int_item_summary")
    assert summary == [{"num_items": 2, "max_events": 7, "max_users": 3}]


def test_no_items_have_a_summary_too(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("create table int_item_totals (url varchar, events bigint, users bigint)")
    assert fetch_rows(con, "intermediate/int_item_summary") == [{"num_items": 0, "max_events": 0, "max_users": 0}]


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
    thresholds = {"min_item_events": min_item_events, "min_item_users": min_item_users}
    rows = fetch_rows(con, "marts/vocabulary", thresholds)
    assert [row["url"] for row in rows] == urls
    assert [row["item_ix"] for row in rows] == list(range(len(urls)))
    assert not rows or list(rows[0]) == ["item_ix", "url", "count", "users"]


def test_codes_of_items_outside_of_the_vocabulary_are_absent(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    con.register("vocabulary", pa.table({"item_ix": [0, 1], "url": ["/b", "/c"]}))
    counts = write_rows(tmp_path / "counts", [{"url": "/a", "item_code": 0}, {"url": "/b", "item_code": 1}])
    rows = fetch_rows(con, "intermediate/int_group_item_ix", {"group_item_counts": counts})
    assert rows == [{"item_code": 1, "item_ix": 0}]


def test_users_of_a_group_have_the_hashes_of_md5_and_a_bytewise_order(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    users = ["zoe", "Zoë", "日本", ""]
    write_events_file(
        tmp_path / "e.parquet", [Event(user, "/a", moment(n % 2 + 1)) for n, user in enumerate(users * 2)], partitions=2
    )
    params = {"files": [str(tmp_path / "e.parquet")], "first_partition": 0, "last_partition": 1}
    rows = fetch_rows(con, "intermediate/int_group_users", params)
    ordered = sorted(users, key=lambda user: (user_hash(user) % 2, user.encode()))
    assert sorted(tuple(row.values()) for row in rows) == [
        (rank, user_hash(user) % 2, user, user_hash(user)) for rank, user in enumerate(ordered)
    ]
    rows = fetch_rows(con, "intermediate/int_group_users", params | {"first_partition": 1})
    assert {row["user_id"] for row in rows} == {user for user in users if user_hash(user) % 2}
