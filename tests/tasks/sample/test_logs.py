"""Sample logs: the same bytes at every call, realistic, parsable, and what was planted can be computed afterwards."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.sample import logs as sample_logs
from surf2vec.tasks.sample.logs import draw_visits, interests_of_keys, keys_of, make_user_range, write_sample_logs
from surf2vec.tasks.sample.world import TOPICS, Format, make_world, topic_of_url
from surf2vec.trainer.errors import ConfigError, InputError, ResourceError
from tests.roots.files import bytes_of
from tests.servers.python import run_python

USERS, DAYS, ITEMS, SEED = 3_000, 5, 2_000, 7
COMBINED_LINE = (
    r'(?P<user_id>\S+) - - \[(?P<ts>[^\]]+)\] "GET (?P<url>\S+) HTTP/1\.1" (?P<status>\d{3}) (?:\d+|-) "-" '
    r'"(?P<agent>[^"]+)"'
)


def interests_of(user_numbers: np.ndarray, seed: int) -> np.ndarray:
    return interests_of_keys(keys_of(user_numbers, seed), seed)


def write_ids(keys: np.ndarray) -> list[str]:
    return [f"{key:016x}" for key in keys.tolist()]


def read_lines(folder: Path) -> pl.DataFrame:
    """Return user_id, url and ts of the lines of access logs, as far as they lack nothing, with status and agent."""
    lines = pl.Series("line", [line for path in sorted(folder.glob("*.log")) for line in path.read_text().splitlines()])
    return lines.str.extract_groups(COMBINED_LINE).struct.unnest().drop_nulls()


def good_events(folder: Path, file_format: Format) -> pl.DataFrame:
    """Return user_id, url and ts (a text in the access log) of the lines that lack nothing."""
    if file_format == "combined":
        return read_lines(folder).select("user_id", "url", "ts")
    read = {"csv": pl.read_csv, "jsonl": pl.read_ndjson, "parquet": pl.read_parquet}[file_format]
    events = pl.concat(read(path) for path in sorted(folder.iterdir())).drop_nulls()  # type: ignore[operator]
    return events if file_format == "parquet" else events.with_columns(pl.col("ts").str.to_datetime(time_zone="UTC"))


@pytest.fixture(scope="module")
def csv_logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    out = tmp_path_factory.mktemp("csv")
    return out, write_sample_logs(out, USERS, DAYS, ITEMS, SEED, "csv")


@pytest.fixture(scope="module")
def events(csv_logs: tuple[Path, dict[str, int]]) -> pl.DataFrame:
    return good_events(csv_logs[0], "csv")


def test_one_file_a_day_with_a_header_and_few_broken_lines(csv_logs: tuple[Path, dict[str, int]]) -> None:
    out, totals = csv_logs
    texts = {path.name: path.read_text() for path in sorted(out.iterdir())}
    assert list(texts) == [f"2026-01-0{day}.csv" for day in range(1, 6)]
    assert all(text.startswith("user_id,url,ts\n") for text in texts.values())
    assert (totals["files"], totals["bytes"]) == (DAYS, sum(map(len, texts.values())))
    num_lines = sum(len(text.splitlines()) - 1 for text in texts.values())
    assert num_lines == totals["events"] + totals["broken_lines"]
    assert 0.001 < totals["broken_lines"] / num_lines < 0.004


@pytest.mark.parametrize("file_format", ["csv", "jsonl", "parquet", "combined"])
def test_same_arguments_same_bytes_and_all_formats_the_same_events(
    tmp_path: Path, csv_logs: tuple[Path, dict[str, int]], events: pl.DataFrame, file_format: Format
) -> None:
    for name, seed in (("a", SEED), ("b", SEED), ("a", SEED), ("other", SEED + 1)):  # the same call again, too
        totals = write_sample_logs(tmp_path / name, USERS, DAYS, ITEMS, seed, file_format)
        if name == "b":
            assert totals | {"bytes": 0} == csv_logs[1] | {"bytes": 0}
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert not set(bytes_of(tmp_path / "a").values()) & set(bytes_of(tmp_path / "other").values())
    if file_format == "combined":
        time = pl.col("ts").dt.strftime("%d/%b/%Y:%H:%M:%S +0000")
        events = events.with_columns(pl.col("url").str.split("#").list.first(), time)
    assert good_events(tmp_path / "a", file_format).equals(events.cast(good_events(tmp_path / "a", file_format).schema))


def test_every_user_comes_and_only_bots_exceed_the_limit_of_ingest(
    csv_logs: tuple[Path, dict[str, int]], events: pl.DataFrame
) -> None:
    totals, by_user = csv_logs[1], Counter(events["user_id"])
    people, bots = (set(write_ids(keys_of(numbers, SEED))) for numbers in (np.arange(USERS), USERS + np.arange(2)))
    assert (by_user.total(), set(by_user), totals["bots"]) == (totals["events"], people | bots, 2)
    counts = np.array([by_user[user] for user in people])
    assert 20 < counts.mean() < 30
    assert (counts <= 2).mean() > 0.05  # some are seen once or twice,
    assert counts.max() > 8 * counts.mean()  # some very often
    by_day = events.group_by("user_id", pl.col("ts").dt.date().alias("day")).len()
    assert ((by_day["len"] > 2_000) == by_day["user_id"].is_in(list(bots))).all()


def test_events_are_on_the_main_interests(events: pl.DataFrame) -> None:
    people = np.arange(USERS)
    planted = dict(zip(write_ids(keys_of(people, SEED)), interests_of(people, SEED)[:, 0], strict=True))
    is_main = [TOPICS[planted[user]] == topic_of_url(url) for user, url, _ in events.rows() if user in planted]
    assert np.mean(is_main) > 0.55


def test_urls_come_in_many_spellings(events: pl.DataFrame) -> None:
    urls = events["url"].unique()
    for mark in (r"\?utm_source=", r"\?gclid=", r"\?sessionid=", "#", "/index.html", "://WWW.", "://www.", "/$"):
        assert urls.str.contains(mark).any(), mark
    assert all(topic_of_url(url) in TOPICS for url in urls)


def test_a_big_day_comes_in_parts_of_the_same_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_logs, "PART_EVENTS", 10_000)
    totals = write_sample_logs(tmp_path, 2_500, 2, 500, SEED, "csv")
    names = [f"2026-01-0{day}.part-00{part}.csv" for day in (1, 2) for part in (0, 1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert good_events(tmp_path, "csv")["user_id"].n_unique() == 2_500 + totals["bots"]


def test_logs_of_other_arguments_are_refused_and_kept(tmp_path: Path) -> None:
    write_sample_logs(tmp_path, 100, 3, 100, SEED, "csv")
    before = bytes_of(tmp_path)
    with pytest.raises(InputError, match=r"other files, such as 2026-01-01.csv: use another folder with --out"):
        write_sample_logs(tmp_path, 100, 3, 100, SEED, "jsonl")
    assert bytes_of(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": 0}, "--users is 0, but it has to be from 1 to 1,000,000,000"), ({"days": 0}, "--days is 0"),
        ({"items": 23}, "--items is 23, but it has to be from 24"), ({"seed": -1}, "--seed is -1"),
    ],
)  # fmt: skip
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
def test_smallest_sizes_with_progress(tmp_path: Path, users: int, days: int, items: int) -> None:
    seen: list[tuple[str, dict[str, object]]] = []
    totals = write_sample_logs(tmp_path, users, days, items, SEED, "csv", lambda *event: seen.append(event))
    assert totals["files"] == days
    assert totals["events"] >= users
    assert seen[0] == ("progress", {"step": "sample-logs", "done": 1, "total": days, "unit": "files"})


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50, unique=True), st.integers(0, 2**63 - 1))
def test_interests_are_one_to_three_distinct_topics_and_computed_from_ids(numbers: list[int], seed: int) -> None:
    interests, ids = interests_of(np.array(numbers), seed), write_ids(keys_of(np.array(numbers), seed))
    for row in interests.tolist():
        kept = [topic for topic in row if topic >= 0]
        assert row == kept + [-1] * (3 - len(kept))
        assert 1 <= len(kept) == len(set(kept))
        assert max(kept) < len(TOPICS)
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{16}", user_id) for user_id in ids)
    np.testing.assert_array_equal(
        interests_of_keys(np.array([int(one, 16) for one in ids], np.uint64), seed), interests
    )


def test_pages_follow_zipf_and_new_users_and_pages_come_every_day() -> None:
    world, part = make_world(20_000), make_user_range(0, 1, 40_000, 4, SEED)
    days = [draw_visits(part, world, day).filter(~pl.col("is_bot") & (pl.col("broken") == 0)) for day in range(4)]
    for day, before in zip(days[1:], (pl.concat(days[:end]) for end in range(1, 4)), strict=True):
        assert not set(day["key"]) <= set(before["key"])
        assert not set(day["item"]) <= set(before["item"])
    counts = np.sort(np.bincount(pl.concat(days)["item"], minlength=len(world.pages)))[::-1]
    ranks = np.unique(np.geomspace(1, 5_000, 40).astype(int))
    slope, level = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)
    residuals = np.log(counts[ranks - 1]) - (slope * np.log(ranks) + level)
    assert -1.2 < slope < -0.5  # logs of web pages have 0.6 to 0.9
    assert np.abs(residuals).max() < 0.8
    assert counts[: len(world.pages) // 10].sum() > 0.4 * counts.sum()


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
    sizes = (40_000, 400_000)
    peak_bytes = [int(run_python("-c", MEASURE, str(tmp_path / str(users)), str(users))) for users in sizes]
    assert peak_bytes[1] < peak_bytes[0] + 30e6
