"""Sample logs: the same bytes at every call, realistic, parsable, and what was planted can be computed afterwards."""

import csv
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.tasks.sample import logs as sample_logs
from surf2vec.tasks.sample.logs import draw_visits, interests_of_keys, keys_of, make_part, write_sample_logs
from surf2vec.tasks.sample.world import TOPICS, Format, make_world, topic_of_url, write_ids
from surf2vec.trainer.errors import ConfigError, InputError, ResourceError

USERS, DAYS, ITEMS, SEED = 3_000, 5, 2_000, 7
COMBINED_LINE = re.compile(
    r'(?P<user>\S+) - - \[(?P<time>[^\]]+)\] "GET (?P<url>\S+) HTTP/1\.1" (?P<status>\d{3}) (\d+|-) "-" "(?P<agent>[^"]+)"'
)


def interests_of(user_numbers: np.ndarray, seed: int) -> np.ndarray:
    return interests_of_keys(keys_of(user_numbers, seed), seed)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def good_events(folder: Path, file_format: Format) -> list[tuple[str, str, str]]:
    """The users, URLs and times of the lines of a log that lack nothing."""
    rows: list[tuple[str | None, ...]] = []
    for path in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        if file_format == "parquet":
            rows += pl.read_parquet(path).with_columns(pl.col("ts").dt.strftime("%Y-%m-%dT%H:%M:%SZ")).rows()
            continue
        lines = path.read_text().splitlines()
        if file_format == "csv":
            rows += map(tuple, list(csv.reader(lines))[1:])
        elif file_format == "jsonl":
            rows += [tuple(json.loads(line).values()) for line in lines]
        else:
            matches = [match for line in lines if (match := COMBINED_LINE.fullmatch(line))]
            rows += [
                (m["user"], m["url"], f"{datetime.strptime(m['time'], '%d/%b/%Y:%H:%M:%S +0000').isoformat()}Z")
                for m in matches
            ]
    return [row for row in rows if all(row)]  # type: ignore[misc]


@pytest.fixture(scope="module")
def csv_logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    out = tmp_path_factory.mktemp("csv")
    return out, write_sample_logs(out, USERS, DAYS, ITEMS, SEED, "csv")


@pytest.fixture(scope="module")
def events(csv_logs: tuple[Path, dict[str, int]]) -> list[tuple[str, str, datetime]]:
    return [(user, url, datetime.fromisoformat(time)) for user, url, time in good_events(csv_logs[0], "csv")]


def test_one_file_a_day_with_a_header(csv_logs: tuple[Path, dict[str, int]]) -> None:
    out, totals = csv_logs
    names = sorted(path.name for path in out.glob("*"))
    assert names == [f"2026-01-0{day}.csv" for day in range(1, 6)]
    assert all((out / name).read_text().startswith("user_id,url,ts\n") for name in names)
    assert totals["files"] == DAYS
    assert totals["bytes"] == sum(path.stat().st_size for path in out.glob("*.csv"))


@pytest.mark.parametrize("file_format", ["csv", "jsonl", "parquet", "combined"])
def test_same_arguments_same_bytes(tmp_path: Path, file_format: Format) -> None:
    for name in ("a", "b", "a"):  # the same call again, too
        write_sample_logs(tmp_path / name, 1_500, 3, 500, SEED, file_format)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    write_sample_logs(tmp_path / "other", 1_500, 3, 500, SEED + 1, file_format)
    assert not set(digests(tmp_path / "a").values()) & set(digests(tmp_path / "other").values())


@pytest.mark.parametrize("file_format", ["jsonl", "parquet", "combined"])
def test_all_formats_have_the_same_events(
    tmp_path: Path, csv_logs: tuple[Path, dict[str, int]], file_format: Format
) -> None:
    totals = write_sample_logs(tmp_path, USERS, DAYS, ITEMS, SEED, file_format)
    assert {**totals, "bytes": 0} == {**csv_logs[1], "bytes": 0}
    events = good_events(csv_logs[0], "csv")
    if file_format == "combined":
        events = [(user, url.partition("#")[0], time) for user, url, time in events]
    assert good_events(tmp_path, file_format) == events


def test_an_access_log_has_statuses_and_crawlers_by_their_agent(tmp_path: Path) -> None:
    write_sample_logs(tmp_path, 2_000, 2, 500, SEED, "combined")
    lines = [line for path in tmp_path.glob("*.log") for line in path.read_text().splitlines()]
    statuses = Counter(match["status"] for line in lines if (match := COMBINED_LINE.fullmatch(line)))
    assert statuses["200"] / len(lines) > 0.9
    assert 0.005 < statuses["404"] / len(lines) < 0.04
    assert sum("SampleBot" in line for line in lines) >= 2_500


def test_every_user_comes_and_numbers_are_as_returned(
    csv_logs: tuple[Path, dict[str, int]], events: list[tuple[str, str, datetime]]
) -> None:
    totals = csv_logs[1]
    assert len(events) == totals["events"]
    by_user = Counter(user for user, _, _ in events)
    people = write_ids(keys_of(np.arange(USERS), SEED)).to_list()
    assert set(people) <= set(by_user)
    assert len(by_user) == USERS + totals["bots"]
    counts = np.array([by_user[user] for user in people])
    assert 20 < counts.mean() < 30
    assert (counts <= 2).mean() > 0.05  # some are seen once or twice,
    assert counts.max() > 8 * counts.mean()  # some very often


def test_bots_exceed_the_limit_of_ingest(events: list[tuple[str, str, datetime]]) -> None:
    bots = set(write_ids(keys_of(np.arange(USERS, USERS + 2), SEED)).to_list())
    by_day = Counter((user, time.date()) for user, _, time in events)
    assert all((count > 2_000) == (user in bots) for (user, _), count in by_day.items())
    assert {user for (user, _), count in by_day.items() if count > 2_000} == bots


def test_broken_lines_are_few_and_counted(csv_logs: tuple[Path, dict[str, int]]) -> None:
    out, totals = csv_logs
    num_lines = sum(len(path.read_text().splitlines()) - 1 for path in out.glob("*.csv"))
    assert num_lines == totals["events"] + totals["broken_lines"]
    assert 0.001 < totals["broken_lines"] / num_lines < 0.004


def test_times_are_in_order_and_follow_the_day(csv_logs: tuple[Path, dict[str, int]]) -> None:
    for path in csv_logs[0].glob("*.csv"):
        times = [line.rpartition(",")[2] for line in path.read_text().splitlines()[1:]]
        good = [time for time in times if time.startswith(path.stem)]
        assert good == sorted(good)
    by_hour = Counter(time[11:13] for time in good)
    assert by_hour["20"] > 3 * by_hour["03"]


def test_events_are_on_the_main_interests(events: list[tuple[str, str, datetime]]) -> None:
    people = np.arange(USERS)
    planted = dict(zip(write_ids(keys_of(people, SEED)).to_list(), interests_of(people, SEED), strict=True))
    is_main = [TOPICS[planted[user][0]] == topic_of_url(url) for user, url, _ in events if user in planted]
    assert np.mean(is_main) > 0.55


def test_sessions_stay_in_a_section(events: list[tuple[str, str, datetime]]) -> None:
    last: dict[str, tuple[str, datetime]] = {}
    same = Counter[bool]()
    for user, url, time in events:
        path = url.partition("://")[2].partition("?")[0].lower().removeprefix("www.").split("/")
        section = "/".join(path[:2])
        if user in last and (time - last[user][1]).total_seconds() <= 120:
            same[section == last[user][0]] += 1
        last[user] = section, time
    assert same[True] / same.total() > 0.45


def test_urls_come_in_many_spellings(events: list[tuple[str, str, datetime]]) -> None:
    urls = {url for _, url, _ in events}
    for mark in ("?utm_source=", "?gclid=", "?sessionid=", "#", "/index.html", "://WWW.", "://www."):
        assert any(mark in url for url in urls), mark
    assert any(url.endswith("/") for url in urls)
    assert all(topic_of_url(url) in TOPICS for url in urls)


def test_a_big_day_comes_in_parts_of_the_same_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_logs, "PART_EVENTS", 10_000)
    totals = write_sample_logs(tmp_path, 2_500, 2, 500, SEED, "csv")
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == [
        f"2026-01-0{day}.part-00{part}.csv" for day in (1, 2) for part in (0, 1, 2, 3)
    ]
    assert len({user for user, _, _ in good_events(tmp_path, "csv")}) == 2_500 + totals["bots"]


def test_logs_of_other_arguments_are_refused_and_kept(tmp_path: Path) -> None:
    write_sample_logs(tmp_path, 100, 3, 100, SEED, "csv")
    before = digests(tmp_path)
    with pytest.raises(InputError, match=r"other files, such as 2026-01-01.csv: use another folder with --out"):
        write_sample_logs(tmp_path, 100, 3, 100, SEED, "jsonl")
    assert digests(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": 0}, "--users is 0, but it has to be from 1 to 1,000,000,000"),
        ({"days": 0}, "--days is 0"),
        ({"items": 23}, "--items is 23, but it has to be from 24"),
        ({"seed": -1}, "--seed is -1"),
    ],
)
def test_arguments_out_of_bounds_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    arguments = {"users": 10, "days": 1, "items": 24, "seed": 1, "format": "csv"} | changes
    with pytest.raises(ConfigError, match=re.escape(message)):
        write_sample_logs(tmp_path / "logs", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "logs").exists()


def test_a_folder_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="use another folder with --out"):
        write_sample_logs(tmp_path / "file", 10, 1, 24, SEED, "csv")


@pytest.mark.parametrize(("users", "days", "items"), [(1, 1, 24), (1, 4, 24), (2, 9, 100), (30, 40, 50), (5, 1, 1_000)])
def test_smallest_sizes(tmp_path: Path, users: int, days: int, items: int) -> None:
    totals = write_sample_logs(tmp_path, users, days, items, SEED, "csv")
    assert totals["files"] == days
    assert totals["events"] >= users


def test_progress_is_reported(tmp_path: Path) -> None:
    events: list[tuple[str, dict[str, object]]] = []
    write_sample_logs(tmp_path, 100, 2, 100, SEED, "csv", lambda name, values: events.append((name, values)))
    assert events[0] == ("progress", {"step": "sample-logs", "done": 1, "total": 2, "unit": "files"})
    assert events[-1][0] == "log"


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50), st.integers(0, 2**63 - 1))
def test_interests_are_one_to_three_distinct_topics(numbers: list[int], seed: int) -> None:
    interests = interests_of(np.array(numbers), seed)
    assert interests.shape == (len(numbers), 3)
    for row in interests.tolist():
        kept = [topic for topic in row if topic >= 0]
        assert row == kept + [-1] * (3 - len(kept))
        assert 1 <= len(kept) == len(set(kept))
        assert max(kept) < len(TOPICS)


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50, unique=True), st.integers(0, 2**63 - 1))
def test_interests_can_be_computed_from_ids(numbers: list[int], seed: int) -> None:
    ids = write_ids(keys_of(np.array(numbers), seed)).to_list()
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{16}", user_id) for user_id in ids)
    np.testing.assert_array_equal(
        interests_of_keys(np.array([int(one, 16) for one in ids], np.uint64), seed),
        interests_of(np.array(numbers), seed),
    )


def test_interests_do_not_depend_on_the_number_of_users() -> None:
    np.testing.assert_array_equal(interests_of(np.arange(1_000), 3)[:10], interests_of(np.arange(10), 3))
    shares = np.bincount(interests_of(np.arange(50_000), 3)[:, 0], minlength=len(TOPICS)) / 50_000
    assert shares.min() > 0.02
    assert shares.max() < 0.15


@settings(max_examples=25)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(24, 400), st.integers(0, 2**63 - 1), st.data())
def test_any_day_of_any_part_is_sound(users: int, days: int, items: int, seed: int, data: st.DataObject) -> None:
    world = make_world(items)
    num_parts = data.draw(st.integers(1, min(users, 5)))
    part = make_part(data.draw(st.integers(0, num_parts - 1)), num_parts, users, days, seed)
    visits = draw_visits(part, world, data.draw(st.integers(0, days - 1)))
    assert visits["second"].is_sorted()
    assert visits["second"].is_between(0, 86_399).all()
    assert visits["item"].is_between(0, items - 1).all()
    assert visits.filter(~pl.col("is_bot"))["key"].is_in(part.keys.tolist()).all()


def test_pages_follow_zipf() -> None:
    world = make_world(20_000)
    part = make_part(0, 1, 40_000, 4, SEED)
    visits = [draw_visits(part, world, day) for day in range(4)]
    items = pl.concat(visits).filter(~pl.col("is_bot") & (pl.col("broken") == 0))["item"]
    counts = np.sort(np.bincount(items, minlength=len(world.pages)))[::-1]
    ranks = np.unique(np.geomspace(1, 5_000, 40).astype(int))
    slope, level = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)
    residuals = np.log(counts[ranks - 1]) - (slope * np.log(ranks) + level)
    assert -1.2 < slope < -0.5  # logs of web pages have 0.6 to 0.9
    assert np.abs(residuals).max() < 0.8
    assert counts[: len(world.pages) // 10].sum() > 0.4 * counts.sum()


def test_new_users_and_new_pages_come_every_day() -> None:
    world = make_world(2_000)
    part = make_part(0, 1, 5_000, 6, SEED)
    seen_users: set[int] = set()
    seen_items: set[int] = set()
    for day in range(6):
        visits = draw_visits(part, world, day)
        people = visits.filter(~pl.col("is_bot"))
        users, items = set(people["key"]), set(people["item"])
        assert users - seen_users
        assert items - seen_items
        seen_users |= users
        seen_items |= items
    assert len(seen_users) == 5_000


MEASURE = """
import resource, sys
from pathlib import Path
from surf2vec.tasks.sample import logs as sample_logs
sample_logs.PART_EVENTS = 100_000
sample_logs.write_sample_logs(Path(sys.argv[1]), int(sys.argv[2]), 10, 5_000, 1, "parquet")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_users(tmp_path: Path) -> None:
    peak_bytes = [
        int(subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path / str(users)), str(users)],
                           check=True, capture_output=True, text=True).stdout)
        for users in (40_000, 400_000)
    ]  # fmt: skip
    assert peak_bytes[1] < peak_bytes[0] + 30e6
