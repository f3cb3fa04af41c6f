"""Sources staged two at a time: the same as one by one, in order, and nothing goes on after a failure."""

import random
from pathlib import Path
from typing import Any

import duckdb
import pytest

from surf2vec.tasks.ingest import staging
from surf2vec.tasks.ingest.batches import Batch
from surf2vec.trainer.errors import InputError
from tests.roots.ingest import read_events, read_rejects, snapshot, take_in, write_log

pytestmark = pytest.mark.usefixtures("large_logs")


def write_logs(folder: Path, num_files: int, num_lines: int) -> str:
    draw = random.Random(1)
    for number in range(num_files):
        lines = (
            f"u{draw.randrange(300)},/p{draw.randrange(50)}?{draw.random()},{1_593_604_800 + n}"
            for n in range(num_lines)
        )
        write_log(folder / f"{number}.csv", *lines, "u,/a,never")
    return f"{folder}/*.csv"


@pytest.mark.parametrize("partitions", [8, None])
def test_many_sources_in_one_call_are_what_one_call_each_makes(tmp_path: Path, partitions: int | None) -> None:
    write_logs(tmp_path, 5, 400)
    take_in(tmp_path / "once", f"{tmp_path}/*.csv", partitions=partitions)
    for number in range(5):
        take_in(tmp_path / "each", tmp_path / f"{number}.csv", partitions=8)
    assert read_events(tmp_path / "once", "*") == read_events(tmp_path / "each", "*")
    files = {name: data for name, data in snapshot(tmp_path / "once").items() if name.endswith(".parquet")}
    assert files == {name: data for name, data in snapshot(tmp_path / "each").items() if name.endswith(".parquet")}


@pytest.mark.parametrize("num_files", [1, 2])
def test_each_log_is_parsed_once_though_partitions_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int
) -> None:
    opened: list[Path] = []
    reader = staging.BlockReader
    monkeypatch.setattr(staging, "BlockReader", lambda batch, add: opened.append(batch.log.path) or reader(batch, add))
    logs, progress = write_logs(tmp_path, num_files, 400), []
    take_in(tmp_path / "root", logs, partitions=None, on_event=lambda name, values: progress.append((name, values)))
    assert len(opened) == num_files
    last = [values for name, values in progress if name == "progress"][-1]
    assert last["done"] == last["total"] == sum(path.stat().st_size for path in opened)


def test_the_memory_changes_no_byte(tmp_path: Path) -> None:
    logs = write_logs(tmp_path, 3, 30_000)
    for memory_bytes in (200_000_000, 2_000_000_000):
        take_in(tmp_path / str(memory_bytes), logs, memory_bytes=memory_bytes)
    assert snapshot(tmp_path / "200000000") == snapshot(tmp_path / "2000000000")


def test_parts_of_a_source_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several days in a file, of which some parts have none, and more events a day than a row group has."""
    draw = random.Random(2)
    days = [draw.choice((1, 1, 1, 1, 2)) for _ in range(30_000)]
    # Some of these tokens two users have.
    pages = [*range(50), *(f"{draw.getrandbits(160):040x}" for _ in range(20_000))]
    lines = [f"u{draw.randrange(900)},/p{draw.choice(pages)},2026-07-0{day} 0{n % 10}:00" for n, day in enumerate(days)]
    log = write_log(tmp_path / "a.csv", *lines, "u,/a,2026-07-03", "u,/a,never", ",/a,2026-07-01")
    whole = take_in(tmp_path / "whole", log, max_reject_ratio=1)
    monkeypatch.setattr(staging, "_choose_part_lines", lambda *_, **__: 7000)
    assert take_in(tmp_path / "parts", log, max_reject_ratio=1) == whole
    assert snapshot(tmp_path / "parts") == snapshot(tmp_path / "whole")
    items = {row[1] for row in read_events(tmp_path / "whole")}
    assert "/(token)" in items
    assert 50 < len(items) < 10_000
    assert read_rejects(tmp_path / "parts") == read_rejects(tmp_path / "whole") != []


def test_sources_are_told_of_in_order_and_progress_ends_whole(tmp_path: Path) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    logs = write_logs(tmp_path, 4, 2000)
    take_in(tmp_path / "root", logs, partitions=None, on_event=lambda *event: told.append(event))
    names = [values["message"].split(":")[0] for name, values in told if name == "log" and ".csv:" in values["message"]]
    assert names == ["0.csv", "1.csv", "2.csv", "3.csv"]
    done = [values["done"] for name, values in told if name == "progress"]
    assert done == sorted(done)
    assert done[-1] == [values["total"] for name, values in told if name == "progress"][-1]


def test_the_first_that_fails_is_named_and_the_others_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = write_logs(tmp_path, 6, 100)
    staged: list[str] = []
    recognise_times = staging.recognise_times

    def fail_second(con: duckdb.DuckDBPyConnection, batch: Batch, *rest: Any) -> Any:
        staged.append(batch.log.path.name)
        if staged[-1] == "1.csv":
            raise InputError("1.csv is damaged")
        return recognise_times(con, batch, *rest)

    monkeypatch.setattr(staging, "recognise_times", fail_second)
    with pytest.raises(InputError, match=r"1\.csv is damaged"):
        take_in(tmp_path / "root", logs)
    assert "1.csv" in staged
    assert not (tmp_path / "root" / "sources.json").exists()
    assert not list((tmp_path / "root").glob(".tmp/ingest.*"))
