"""The checks of events: each finds the events that break its rule, and only those."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.sql.runner import fetch_rows
from surf2vec.tasks.events.events_files import EVENTS_SCHEMA
from surf2vec.tasks.upkeep.doctor import EVENTS_CHECKS
from tests.data.corpora import user_hash

PARTITIONS = 8


def event(user: str = "a", line: int = 2, **values: Any) -> dict[str, Any]:
    """A good event, but for the values given."""
    good = {
        "micro_partition": user_hash(user) % PARTITIONS,
        "user_hash": user_hash(user),
        "user_id": user,
        "ts": datetime(2026, 7, 1, 12),
        "source": 7,
        "line": line,
    }
    return good | {"url": "/a"} | values


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as con:
        yield con


def check(
    con: duckdb.DuckDBPyConnection, name: str, root: Path, *events: dict[str, Any], day: str = "2026-07-01"
) -> int:
    """How many of these events break a rule."""
    path = root / f"day={day}" / "x.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(events), schema=EVENTS_SCHEMA), path)
    [faults] = fetch_rows(con, "checks/event_faults", {"files": [str(path)], "partitions": PARTITIONS})
    assert set(EVENTS_CHECKS) == set(faults)
    return faults[name]


BAD = [
    ("unsorted_events", [event(line=3), event(line=2)]),
    ("unsorted_events", [event(line=2), event(line=2)]),
    ("unsorted_events", [event(line=2, ts=datetime(2026, 7, 1, 13)), event(line=3)]),
    ("misplaced_events", [event(micro_partition=8)]),
    ("misplaced_events", [event(user_hash=user_hash("a") + PARTITIONS)]),
    ("misdated_events", [event(ts=datetime(2026, 7, 2))]),
    ("duplicate_events", [event(), event("b")]),
    ("incomplete_events", [event(url="")]),
    ("incomplete_events", [event(url=None)]),
    ("incomplete_events", [event("")]),
    ("incomplete_events", [event(ts=None)]),
    ("incomplete_events", [event(line=0)]),
]


@pytest.mark.parametrize(("name", "events"), BAD)
def test_a_bad_event_is_found(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, name: str, events: list[dict[str, Any]]
) -> None:
    assert check(con, name, tmp_path, *events) == 1


def test_the_doctor_runs_every_check() -> None:
    assert set(EVENTS_CHECKS) == {name for name, _ in BAD}


@pytest.mark.parametrize("name", sorted({name for name, _ in BAD}))
def test_good_events_pass(con: duckdb.DuckDBPyConnection, tmp_path: Path, name: str) -> None:
    events = [event(line=2), event(line=3), event(line=4, ts=datetime(2026, 7, 1, 23))]
    assert check(con, name, tmp_path, *events) == 0
    assert check(con, name, tmp_path, event(ts=datetime(1970, 1, 1)), day="undated") == 0
