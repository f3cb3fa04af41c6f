"""Seconds of the commands that a person waits for, on a small root, beside `python -c "import torch"` in the same run.

A log of about 40,000 lines is made and run; then each command is started REPEATS times as a process of its own, in turn with the
peer. The middle of the seconds counts. Marks on two idle cores: similar, explain, doctor and nights 1 s, a run with nothing to do
3 s, the first run 10 s.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import run_benchmark

REPEATS = 5
USERS = 1200
MARKS = {"similar": 1.0, "explain": 1.0, "doctor": 1.0, "nights": 1.0, "run with nothing to do": 3.0}
FIRST_RUN_SECONDS = 10.0
PEER = [sys.executable, "-c", "import torch"]


def spend(command: Sequence[str]) -> float:
    """Seconds of a process that must succeed."""
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - started


def measure_commands(_: Path) -> list[dict[str, Any]]:
    """A case a command."""
    with tempfile.TemporaryDirectory() as name:
        root, logs = f"{name}/root", f"{name}/logs"
        surf2vec = [sys.executable, "-m", "flows.cli"]
        spend([*surf2vec, "sample-logs", "--users", str(USERS), "--out", logs])
        num_lines = sum(path.read_bytes().count(b"\n") for path in Path(logs).iterdir())
        run = [*surf2vec, "run", "--root", root, "--logs", f"{logs}/*.csv"]
        first = spend(run)
        user = next(Path(logs).glob("*.csv")).read_text(encoding="utf-8").splitlines()[1].partition(",")[0]
        commands = {
            "similar": [*surf2vec, "similar", user, "--root", root],
            "explain": [*surf2vec, "explain", user, "--root", root],
            "doctor": [*surf2vec, "doctor", "--root", root],
            "nights": [*surf2vec, "nights", "--root", root],
            "run with nothing to do": run,
        }
        seconds: dict[str, list[float]] = {one: [] for one in ("peer", *commands)}
        for _ in range(REPEATS):
            for one, command in {"peer": PEER, **commands}.items():
                seconds[one].append(spend(command))
    middle = {one: statistics.median(values) for one, values in seconds.items()}
    cases = [describe(one, middle[one], middle["peer"], mark) for one, mark in MARKS.items()]
    return [*cases, describe(f"first run of {num_lines:,} lines", first, middle["peer"], FIRST_RUN_SECONDS)]


def describe(case: str, seconds: float, peer_seconds: float, mark: float) -> dict[str, Any]:
    """A case of the table: the ratio is that of its seconds to the peer's."""
    return {
        "case": case, "ratio": seconds / peer_seconds, "mark": f"{mark:g} s", "passed": seconds <= mark,
        "seconds": round(seconds, 3), "import torch": round(peer_seconds, 3),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_benchmark("commands", __doc__ or "", measure_commands))
