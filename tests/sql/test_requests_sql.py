"""The SQL steps of as-of on literal rows: whose time is which, and what was there before it."""

from __future__ import annotations  # a DuckDB type kept in a signature would make nanobind report a leak at exit

from typing import Any

import duckdb
import pyarrow as pa
import pytest

from surf2vec.sql.runner import create_table, fetch_rows
from surf2vec.tasks.queries.as_of import _name_users
from surf2vec.tasks.users.pseudonyms import pseudonym
from surf2vec.tasks.users.tombstones import NOBODY
from tests.data.corpora import user_hash

DAY = 86_400_000_000
JUNE = 20_605 * DAY  # 2026-06-01
SERVED = [
    {"number": 0, "since": "2026-05-02", "until": "2026-05-31", "window_days": 30, "partitions": 2},
    {"number": 1, "since": "2026-05-03", "until": "2026-06-01", "window_days": None, "partitions": 8},
]


def place_requests(con: duckdb.DuckDBPyConnection, user_ids: Any, times: Any, key: bytes | None = None) -> list[Any]:
    con.register("request_rows_given", pa.table({"user_id": user_ids, "ts": times}))
    con.execute("create or replace temporary table request_rows as from request_rows_given")
    con.register("served_releases", pa.Table.from_pylist(SERVED))
    _name_users(con, key, NOBODY)
    create_table(con, "intermediate/int_requests", {"partitions": 4})
    return con.sql("from int_requests order by request").to_arrow_table().to_pylist()


def test_the_release_of_a_time_and_from_when_it_takes_events(con: duckdb.DuckDBPyConnection) -> None:
    times = ["2026-05-31 23:59:59.999999", "2026-06-01", "2026-06-01T12:00:00+02:00", "2026-06-02 00:00:00Z", "later"]
    rows = place_requests(con, ["ann"] * 5, times)
    assert [row["number"] for row in rows] == [None, 0, 0, 1, None]
    assert [row["us"] for row in rows] == [JUNE - 1, JUNE, JUNE + DAY * 10 // 24, JUNE + DAY, None]
    # A night just before June would have the 30 days to 31 May; at noon of 1 June that day is the last of 30.
    assert [row["first_us"] for row in rows[1:4]] == [JUNE - 30 * DAY, JUNE - 29 * DAY, JUNE - 29 * DAY]
    assert [row["micro_partition"] for row in rows] == [user_hash("ann") % 4] * 5
    assert [row["release_partition"] for row in rows[1:4]] == [user_hash("ann") % 2] * 2 + [user_hash("ann") % 8]


@pytest.mark.parametrize("unit", [10**6, 10**3, 1])
@pytest.mark.parametrize("kind", [int, str, float])
def test_numbers_count_seconds_to_microseconds(con: duckdb.DuckDBPyConnection, unit: int, kind: type) -> None:
    assert place_requests(con, [7], [kind(JUNE // unit)])[0]["us"] == JUNE


@pytest.mark.parametrize("user_id", [7, "7", 7.0])
def test_ids_are_texts(con: duckdb.DuckDBPyConnection, user_id: Any) -> None:
    assert [row["user_id"] for row in place_requests(con, [user_id, None], [JUNE, JUNE])] == ["7", None]


def test_a_root_with_a_key_has_pseudonyms(con: duckdb.DuckDBPyConnection) -> None:
    [row] = place_requests(con, ["ann"], [JUNE], b"key")
    assert row["user_id"] == pseudonym("ann", b"key")


def test_spans_end_strictly_before_the_time(con: duckdb.DuckDBPyConnection) -> None:
    """Ann has the places 0 to 3, two of them at the same time; bob the place 4. Eve has none."""
    events = {"user_ix": [0, 0, 0, 0, 1], "place": range(5), "us": [10, 20, 20, 30, 20]}
    con.register("group_events", pa.table({name: list(values) for name, values in events.items()}))
    users = {"user_id": ["ann", "bob"], "user_ix": [0, 1], "first_place": [0, 4]}
    con.register("group_users", pa.table(users))
    asked = [("ann", 10, 0), ("ann", 20, 0), ("ann", 21, 0), ("ann", 99, 20), ("ann", 99, 21), ("bob", 20, 0)]
    asked += [("bob", 21, 0), ("eve", 50, 0)]
    other = {"micro_partition": 0, "release_partition": 0, "number": 0}
    named = [dict(zip(("user_id", "us", "first_us"), one, strict=True)) for one in asked]
    rows: list[dict[str, Any]] = [other | one | {"request": place} for place, one in enumerate(named)]
    rows += [rows[0] | {"request": 98, "number": None}, rows[0] | {"request": 99, "micro_partition": 1}]
    con.register("int_requests", pa.Table.from_pylist(rows))
    found = fetch_rows(con, "intermediate/int_request_spans", {"first_partition": 0, "last_partition": 0})
    spans = {row["request"]: (row["start"], row["stop"]) for row in found}
    assert spans == {0: (0, 0), 1: (0, 1), 2: (0, 3), 3: (1, 4), 4: (3, 4), 5: (4, 4), 6: (4, 5), 7: (0, 0)}
