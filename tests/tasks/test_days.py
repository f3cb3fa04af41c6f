"""Days as they are delivered in life: missing, empty, half, late, twice, at once. Events equal the union of the sources."""

import subprocess
import sys
import tempfile
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.tasks.corpus.window import ends_before, select_window
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import InputError
from tests.roots.ingest import HEADER, check_events, read_events, take_in, write_log

FIRST = date(2020, 7, 1)


def line(day: int, number: int, hour: int = 12) -> str:
    """An event of a day; its page, so that no two lines are alike, is the number."""
    return f"u{number % 7},/p{number},{FIRST + timedelta(days=day - 1)}T{hour:02d}:{number % 60:02d}:00Z"


def lines(day: int, numbers: range) -> list[str]:
    return [line(day, 1000 * day + number) for number in numbers]


def events_of(*delivered: list[str]) -> list[tuple[Any, ...]]:
    """What must be in the root: user, url and time of all lines."""
    parts = [one.split(",") for group in delivered for one in group]
    return sorted((user, url, datetime.fromisoformat(ts).replace(tzinfo=None)) for user, url, ts in parts)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def found(root: Path) -> list[tuple[Any, ...]]:
    return read_events(root, "user_id, url, ts")


def test_two_utc_days_in_one_local_day(tmp_path: Path, root: Path) -> None:
    """A day in Berlin begins at 22 o'clock UTC; its file has the end of one UTC day and most of the next."""
    berlin = [f"u{n},/p{n},2020-07-02T{n:02d}:30:00" for n in range(24)]
    take_in(root, write_log(tmp_path / "berlin.csv", *berlin), timezone="Europe/Berlin")
    times = [ts for _, _, ts in found(root)]
    assert sorted(times) == [datetime(2020, 7, 1, 22, 30) + timedelta(hours=n) for n in range(24)]
    windows = [select_window(Root(root), day, day, None).num_events for day in (FIRST, FIRST + timedelta(days=1))]
    assert windows == [2, 22]


def test_a_missing_day_is_a_hole_in_the_window(tmp_path: Path, root: Path) -> None:
    for day in (1, 2, 4, 5):
        write_log(tmp_path / f"d{day}.csv", *lines(day, range(10)))
    take_in(root, f"{tmp_path}/d*.csv")
    window = select_window(Root(root), None, date(2020, 7, 5), 3)
    assert ([day.day for day in window.days], window.num_events) == ([4, 5], 20)
    with pytest.raises(InputError, match="no events .* from 2020-07-03 to 2020-07-03: it has events from 2020-07-01"):
        select_window(Root(root), None, date(2020, 7, 3), 1)
    take_in(root, write_log(tmp_path / "d3.csv", *lines(3, range(10))))
    assert select_window(Root(root), None, date(2020, 7, 5), 3).num_events == 30


@pytest.mark.parametrize("empty", ["", HEADER + "\n", "\n"])
def test_an_empty_file_among_others_does_not_stop_a_night(tmp_path: Path, root: Path, empty: str) -> None:
    whole, told = lines(1, range(10)), []
    write_log(tmp_path / "d1.csv", *whole)
    (tmp_path / "d2.csv").write_text(empty)
    record = take_in(root, f"{tmp_path}/d*.csv", on_event=lambda name, values: told.append(values.get("message", "")))
    assert (record["sources_new"], record["lines"]) == (1, 10)
    assert any("d2.csv" in message and "left out until it has lines" in message for message in told)
    assert take_in(root, f"{tmp_path}/d*.csv")["sources_known"] == 1
    write_log(tmp_path / "d2.csv", *lines(2, range(5)))
    take_in(root, f"{tmp_path}/d*.csv")
    assert found(root) == events_of(whole, lines(2, range(5)))
    # Delivered empty over what was there: more likely a mistake than a wish to have it gone.
    (tmp_path / "d2.csv").write_text(empty)
    with pytest.raises(InputError, match=r"d2.csv .*it had lines, which stay as they are"):
        take_in(root, f"{tmp_path}/d*.csv")
    assert found(root) == events_of(whole, lines(2, range(5)))
    with pytest.raises(InputError, match="d3.csv"):
        take_in(root, write_log(tmp_path / "d3.csv", header=None))


files = st.dictionaries(
    st.sampled_from(["d1.csv", "d2.csv", "d3.csv", "late.csv"]),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 60)), min_size=1, max_size=12, unique=True),
    min_size=1, max_size=4,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=10)
@given(st.lists(files, min_size=1, max_size=4))
def test_after_any_deliveries_events_are_the_union_of_what_each_name_last_had(deliveries) -> None:
    with tempfile.TemporaryDirectory() as folder:
        logs, root, last = Path(folder) / "logs", Path(folder) / "root", {}
        for delivery in deliveries:
            for name, events in delivery.items():
                last[name] = [line(day, 100 * day + number) for day, number in events]
                write_log(logs / name, *last[name])
            take_in(root, f"{logs}/*.csv")
            distinct = {tuple(one) for one in last.values()}  # the same bytes under two names count once
            assert found(root) == events_of(*map(list, distinct))
            days = {day for day, events in by_day(root).items() if events}
            assert {file.day for file in select_window(Root(root), None, None, None).files} == days


def by_day(root: Path) -> dict[date, int]:
    days: dict[date, int] = {}
    for _, _, ts in found(root):
        days[ts.date()] = days.get(ts.date(), 0) + 1
    return days


@pytest.mark.slow
def test_two_writers_at_once_queue_and_nothing_is_lost(tmp_path: Path, root: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from surf2vec.tasks.root.run import Root, lock_root\n"
        "from surf2vec.tasks.config import IngestConfig; from surf2vec.tasks.ingest.ingest import ingest\n"
        "root = Root(Path(sys.argv[1]))\n"
        "with lock_root(root, 'test'):\n"
        "    ingest(root, sys.argv[2:], IngestConfig(), 8, 500_000_000, 1, lambda *event: None)\n"
    )
    root.mkdir()
    delivered = [lines(day, range(200)) for day in (1, 2, 3)]
    paths = [write_log(tmp_path / f"d{day}.csv", *one) for day, one in enumerate(delivered, start=1)]
    calls = [[str(paths[0]), str(paths[1])], [str(paths[1]), str(paths[2])], [str(paths[2])]]
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(root), *call], cwd=Path(__file__).parents[2])
        for call in calls
    ]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    check_events(root)
    assert found(root) == events_of(*delivered)


@pytest.mark.parametrize(
    ("until", "other", "is_before"),
    [("2020-07-01", "2020-07-02", True), ("2020-07-02", "2020-07-02", False), ("2020-07-03", "2020-07-02", False),
     (None, "2020-07-02", False), ("2020-07-02", None, False)],
)  # fmt: skip
def test_which_window_ends_before_another(until: str | None, other: str | None, is_before: bool) -> None:
    assert ends_before(until, other) == is_before
