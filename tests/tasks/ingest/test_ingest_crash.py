"""Ingest that dies: at any step of the commit, or anywhere, the root is as before or as after, and the next call cleans up."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.exits import run_dying
from tests.roots.ingest import check_events, read_events, snapshot, take_in, write_log


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs that make several files, a reject, and replace a source."""
    logs = tmp_path / "logs"
    write_log(logs / "a.csv", "u,/old,2020-07-01", "u,/old,2020-07-02")
    return logs


def deliver_again(logs: Path) -> None:
    write_log(logs / "a.csv", "u,/new,2020-07-02", "u,/new,2020-07-03", "u,/new,never")
    write_log(logs / "b.csv", "u,/b,2020-07-01")


def take_in_again(root: Path, logs: Path) -> None:
    take_in(root, f"{logs}/*.csv", max_reject_ratio=1)


@pytest.mark.slow
def test_a_commit_that_dies_at_any_step(tmp_path: Path, logs: Path) -> None:
    root = tmp_path / "root"
    deaths = 0
    for calls in range(1, 40):
        subprocess.run(["rm", "-rf", str(root)], check=True)
        write_log(logs / "a.csv", "u,/old,2020-07-01", "u,/old,2020-07-02")
        (logs / "b.csv").unlink(missing_ok=True)
        take_in(root, f"{logs}/*.csv")
        before = snapshot(root)["sources.json"]
        deliver_again(logs)
        code = run_dying(take_in_again, root, logs, step=calls, syncs=True)
        urls = {url for _, url, _, _ in read_events(root)}
        assert urls in ({"/old"}, {"/new", "/b"})
        assert (urls == {"/old"}) == (snapshot(root)["sources.json"] == before)
        take_in_again(root, logs)  # checks that nothing is left over
        assert {url for _, url, _, _ in read_events(root)} == {"/new", "/b"}
        if code == 0:
            break
        assert code == 9
        deaths += 1
    assert deaths >= 10


@pytest.mark.slow
def test_kill_at_random_moments(tmp_path: Path) -> None:
    root, logs = tmp_path / "root", tmp_path / "logs"
    take_in(root, write_log(logs / "a.csv", "u,/old,2020-07-01"))
    before = snapshot(root)
    write_log(logs / "big.csv", *(f"u{n % 997},/p{n * 31 % 9973},2020-07-0{n % 9 + 1}" for n in range(300_000)))
    code = f"from tests.roots.ingest import *; take_in(Path({str(root)!r}), {str(logs / '*.csv')!r})"
    for delay in (0.6, 0.8, 1.0, 1.2, 1.4):
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[3], stderr=subprocess.DEVNULL
        )
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if snapshot(root)["sources.json"] != before["sources.json"]:
            break
        assert {name: snapshot(root)[name] for name in before} == before
    take_in(root, f"{logs}/*.csv")
    check_events(root)
    assert len(read_events(root)) == 300_001
