"""Lines as events in their order, and as lines that make none, for the first of their reasons."""

from __future__ import annotations  # a DuckDB type kept in a signature would make nanobind report a leak at exit

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from surf2vec.sql.runner import connect
from surf2vec.tasks.events.events_files import EVENTS_SCHEMA
from surf2vec.tasks.ingest.make_events import SourceRules, make_events
from surf2vec.tasks.release.url_rules import UrlRules
from tests.data.corpora import user_hash

DAY = 86_400_000_000
LINES = pa.schema(
    [
        ("line", pa.int64()),
        ("user_id", pa.string()),
        ("page_key", pa.string()),
        ("us", pa.int64()),
        ("time_verdict", pa.string()),
    ]
)


@pytest.fixture
def con(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(200_000_000, tmp_path / "spill", 1) as connection:
        yield connection


def rules(is_dated: bool = True, partitions: int = 2) -> SourceRules:
    return SourceRules([2**63], 62, UrlRules(), drops_assets=True, is_dated=is_dated, partitions=partitions)


def make_lines(*rows: tuple[int, str | None, str | None, int | None, str | None]) -> pa.RecordBatchReader:
    """As a batch a line."""
    table = pa.Table.from_pylist([dict(zip(LINES.names, row, strict=True)) for row in rows], LINES)
    return table.to_reader(max_chunksize=1)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def test_events_are_in_the_order_of_their_file(con: duckdb.DuckDBPyConnection) -> None:
    users = sorted(["ann", "bob", "Zoë"], key=lambda user: (user_hash(user) % 2, user.encode()))
    lines = make_lines(
        (9, users[1], "https://WWW.a.example/b/", DAY + 5, None), (8, users[1], "/", DAY + 5, None),
        (7, users[1], "/", DAY + 4, None),
        (6, users[0], "/", DAY + 9, None), (5, users[2], "/", DAY + 1, None), (4, users[0], "/", DAY - 1, None),
    )  # fmt: skip
    events = make_events(con, lines, rules())
    assert [(day, table["line"].to_pylist()) for day, table in events.split_days()] == [(0, [4]), (1, [6, 7, 8, 9, 5])]
    numbers = ("micro_partition", "user_hash", "ts", "source", "line")
    assert all(events.rows.schema.field(name) == EVENTS_SCHEMA.field(name) for name in numbers)
    place = user_hash(users[1]) % 2
    assert rows_of(events.rows)[4] == (
        place, user_hash(users[1]), users[1], datetime(1970, 1, 2, 0, 0, 0, 5), 2**63, 9, "https://a.example/b"
    )  # fmt: skip
    assert events.refused.num_rows == 0


def test_without_dates_all_are_of_one_day(con: duckdb.DuckDBPyConnection) -> None:
    lines = make_lines((1, "a", "/", 7 * DAY, None), (2, "a", "/", 3, None))
    [(day, table)] = make_events(con, lines, rules(is_dated=False)).split_days()
    assert (day, table["line"].to_pylist()) == (0, [2, 1])


def test_the_first_of_the_reasons_counts(con: duckdb.DuckDBPyConnection) -> None:
    bad_time = "time not readable"
    lines = make_lines(
        (1, "u", "/", DAY, None), (3, None, None, None, bad_time), (4, " ", "/", None, bad_time), (5, "u", None, None, bad_time),
        (6, "u", "/", None, bad_time), (7, "u", "about:blank", None, bad_time), (8, "u", "about:blank", DAY, None),
        (9, "u", "", DAY, None),
        (10, "u" * 1025, "/", DAY, None), (11, "u", "/a.png", DAY, None), (12, "u", "/", 1, "time out of scale"),
    )  # fmt: skip
    events = make_events(con, lines, rules())
    assert events.rows["line"].to_pylist() == [1]
    assert rows_of(events.refused) == [
        (3, "no user"), (4, "no user"), (5, "no page"), (6, bad_time), (7, bad_time), (8, "not a page"), (9, "no page"),
        (10, "user id too long"), (11, "static asset"), (12, "time out of scale"),
    ]  # fmt: skip


def test_placeholders_are_neither_users_nor_pages(con: duckdb.DuckDBPyConnection) -> None:
    nil = "00000000-0000-0000-0000-000000000000"
    values = ["NA", "N/A", "null", "NULL", "\\N", "None", "undefined", "(not set)", "-", " - ", "NaN", nil]
    users = [(line, value, "/", DAY, None) for line, value in enumerate(values)]
    pages = [(line + 100, "u", value, DAY, None) for line, value in enumerate(values[:-1])]
    others = [(200, "Nadia", "/", DAY, None), (201, "0", "nullable", DAY, None)]
    events = make_events(con, make_lines(*users, *pages, *others), rules())
    assert sorted(events.rows["line"].to_pylist()) == [200, 201]
    verdicts = dict(rows_of(events.refused))
    assert verdicts == {line: "no user" for line, *_ in users} | {line: "no page" for line, *_ in pages}


def test_no_lines_at_all(con: duckdb.DuckDBPyConnection) -> None:
    events = make_events(con, make_lines(), rules())
    assert (list(events.split_days()), events.refused.num_rows) == ([], 0)
