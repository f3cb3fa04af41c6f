"""Small logs that are staged together: the same as each alone, and each still replaced, repaired and counted alone."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest import batches
from surf2vec.tasks.ingest.batches import make_batches
from surf2vec.tasks.ingest.formats import recognise
from surf2vec.tasks.ingest.sources import SourceFile
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.system.files import read_json
from tests.roots.ingest import events_files, read_events, read_rejects, take_in, write_log

COUNTS = ("lines", "events", "left_out", "rejected", "days", "time")
FIRST = 1_593_604_800  # 2020-07-01 12:00 UTC


def write_csv(path: Path, seed: int, unit: int = 1, num_lines: int = 60) -> Path:
    """A log of two days, with lines that are rejected or left out."""
    draw = random.Random(seed)
    lines = [f"u{draw.randrange(9)},/p{draw.randrange(30)},{(FIRST + 1500 * n) * unit}" for n in range(num_lines)]
    return write_log(path, *lines, *["u,/a,never"] * (seed % 3), *[",/a,1593604800"] * (seed % 2))


def write_json(path: Path, seed: int) -> Path:
    draw = random.Random(seed)
    events = [{"user_id": f"u{draw.randrange(9)}", "url": f"/p{n}", "ts": FIRST + 1500 * n} for n in range(60)]
    return write_log(path, *map(json.dumps, events), header=None)


def write_nested(path: Path, seed: int) -> Path:
    """Two pages in a record: such logs are staged alone."""
    events = [{"user": {"id": f"u{n % 7}"}, "url": [f"/p{n}", f"/q{seed}"], "ts": FIRST + n} for n in range(60)]
    return write_log(path, *map(json.dumps, events), header=None)


def read_entries(root: Path) -> dict[str, dict[str, Any]]:
    """The counts of each source by the name of its file."""
    sources = read_json(root / "sources.json")["sources"]
    return {Path(source["name"]).name: {name: source[name] for name in COUNTS} for source in sources}


@pytest.mark.parametrize(
    ("suffix", "write", "settings"),
    [("csv", write_csv, {}), ("jsonl", write_json, {}), ("jsonl", write_nested, {"columns": {"user": "user.id"}})],
)
def test_together_they_are_what_each_is_alone(
    tmp_path: Path, suffix: str, write: Any, settings: dict[str, Any]
) -> None:
    logs = [write(tmp_path / f"{n}.{suffix}", n) for n in range(6)]
    take_in(tmp_path / "together", tmp_path / f"*.{suffix}", max_reject_ratio=0.5, **settings)
    for log in logs:
        take_in(tmp_path / "alone", log, max_reject_ratio=0.5, **settings)
    num_files = len(events_files(tmp_path / "together"))
    assert len(events_files(tmp_path / "alone")) == (num_files if write is write_nested else 6 * num_files)
    assert read_events(tmp_path / "together", "*") == read_events(tmp_path / "alone", "*")
    assert read_rejects(tmp_path / "together") == read_rejects(tmp_path / "alone")
    assert read_entries(tmp_path / "together") == read_entries(tmp_path / "alone")


def test_times_of_several_units_are_recognised_for_each_log(tmp_path: Path) -> None:
    for number, unit in enumerate((1, 1000, 1, 1_000_000)):
        write_csv(tmp_path / f"{number}.csv", 3, unit, num_lines=40 + number)
    take_in(tmp_path / "root", tmp_path / "*.csv")
    found = {name: entry["time"] for name, entry in read_entries(tmp_path / "root").items()}
    assert list(found.values()) == ["epoch seconds", "epoch milliseconds", "epoch seconds", "epoch microseconds"]
    assert len({ts for _, _, ts, _ in read_events(tmp_path / "root")}) == 43


def test_a_log_whose_times_are_wrong_is_named(tmp_path: Path) -> None:
    for number in range(4):
        write_log(tmp_path / f"{number}.csv", *[f"u{n},/a,{'45000.5' if number == 2 else FIRST + n}" for n in range(9)])
    with pytest.raises(InputError, match=r"the times of .*/2\.csv .* cannot be right"):
        take_in(tmp_path / "root", tmp_path / "*.csv")


def test_a_replaced_log_leaves_the_others(tmp_path: Path) -> None:
    logs = [write_csv(tmp_path / f"{n}.csv", 3 * n) for n in range(3)]
    take_in(tmp_path / "root", tmp_path / "*.csv")
    before = set(read_events(tmp_path / "root", "source, line, user_id, url, ts"))
    write_csv(logs[1], 30, num_lines=20)
    record = take_in(tmp_path / "root", logs[1])
    assert record["sources_replaced"] == 1
    after = set(read_events(tmp_path / "root", "source, line, user_id, url, ts"))
    assert len(before - after) == 60
    assert len(after - before) == 20
    take_in(tmp_path / "new", tmp_path / "*.csv")
    assert read_events(tmp_path / "new", "*") == read_events(tmp_path / "root", "*")
    assert read_entries(tmp_path / "new") == read_entries(tmp_path / "root")


def test_a_damaged_file_is_repaired_by_all_logs_that_share_it(tmp_path: Path) -> None:
    logs = [write_csv(tmp_path / f"{n}.csv", 3 * n) for n in range(3)]
    take_in(tmp_path / "root", tmp_path / "*.csv")
    before = read_events(tmp_path / "root", "*")
    Path(events_files(tmp_path / "root")[0]).write_bytes(b"x")
    with pytest.raises(DamageError, match=r"pass the logs \S+/1\.csv \S+/2\.csv to `surf2vec run --logs` again"):
        take_in(tmp_path / "root", logs[0])
    assert take_in(tmp_path / "root", tmp_path / "*.csv")["sources_known"] == 0
    assert read_events(tmp_path / "root", "*") == before


def test_an_open_quote_ends_with_its_log(tmp_path: Path) -> None:
    for number in range(3):
        opened = f'u{number},"/open,{FIRST}' if number == 1 else ""
        write_log(tmp_path / f"{number}.csv", f'u{number},a"b,{FIRST}', opened, 'u,"/x",1')
    take_in(tmp_path / "root", tmp_path / "*.csv", max_reject_ratio=0.5)
    assert read_rejects(tmp_path / "root") == [("1.csv", 3, "unterminated quote")]


def test_a_small_file_may_have_very_many_lines(tmp_path: Path) -> None:
    for number in range(2):
        blank = "\n" * 2_200_000
        write_log(tmp_path / f"{number}.csv.gz", f"u{number},/a,{FIRST}{blank}", f"u{number},/b,{FIRST}")
    take_in(tmp_path / "root", tmp_path / "*.csv.gz")
    found = [(f"u{number}", url, line) for number in range(2) for url, line in (("/a", 2), ("/b", 2_200_003))]
    assert read_events(tmp_path / "root", "user_id, url, line") == found
    assert len(events_files(tmp_path / "root")) == 1


def test_large_logs_are_alone_and_batches_have_an_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(batches, "BATCH_LOGS", 3)
    csv = recognise(write_csv(tmp_path / "a.csv", 1), IngestConfig())
    jsonl = recognise(write_json(tmp_path / "a.jsonl", 1), IngestConfig())
    sizes = [9, 9, 2_000_000, 9, 9, 9, 9]
    kinds = [csv, jsonl, csv, csv, csv, csv, jsonl]
    logs = [(kinds[n], SourceFile(f"{n}", f"{n:064d}", (size, 0, 0))) for n, size in enumerate(sizes)]
    found = [[source.name for source in batch.sources] for batch in make_batches(logs)]
    assert found == [["0", "3", "4"], ["1", "6"], ["2"], ["5"]]
