"""Seconds of the commands that a person waits for, on a small root, beside `python -c "import torch"` in the same run.

A log of about 40,000 lines is made and run; then each command is started REPEATS times as a process of its own, in turn with the
peer. The middle of the seconds counts. Marks on two idle cores: similar, explain, doctor and nights 1 s, a run with nothing to do
3 s, the first run 10 s.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from tests.benchmarks.harness import make_case, run_benchmark

REPEATS = 3
USERS = 1200
MARKS = {"similar": 1.0, "explain": 1.0, "doctor": 1.0, "nights": 1.0, "run with nothing to do": 3.0}
FIRST_RUN_SECONDS = 10.0
PEER = [sys.executable, "-c", "import torch"]


class Spent(NamedTuple):
    """Seconds of a process by the clock, and of the processor, children included. A busy machine changes the second less."""

    seconds: float
    processor: float


def spend(command: Sequence[str]) -> Spent:
    """What a process took that must succeed."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(time.monotonic() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure_commands(_: Path) -> list[dict[str, Any]]:
    """A case a command."""
    with tempfile.TemporaryDirectory() as name:
        root, logs = f"{name}/root", f"{name}/logs"
        surf2vec = [sys.executable, "-m", "surf2vec.flows.cli"]
        spend([*surf2vec, "sample-logs", "--users", str(USERS), "--out", logs])
        num_lines = sum(path.read_bytes().count(b"\n") for path in Path(logs).iterdir())
        run = [*surf2vec, "run", "--root", root, "--logs", f"{logs}/*.csv"]
        first = spend(run)
        user = pq.read_table(next(Path(root).glob("export/*/user_vectors/*.parquet")))["user_id"][0].as_py()
        commands = {
            "similar": [*surf2vec, "similar", user, "--root", root],
            "explain": [*surf2vec, "explain", user, "--root", root],
            "doctor": [*surf2vec, "doctor", "--root", root],
            "nights": [*surf2vec, "nights", "--root", root],
            "run with nothing to do": run,
        }
        spent: dict[str, list[Spent]] = {one: [] for one in ("peer", *commands)}
        for _ in range(REPEATS):
            for one, command in {"peer": PEER, **commands}.items():
                spent[one].append(spend(command))
    middle = {one: Spent(*map(statistics.median, zip(*values, strict=True))) for one, values in spent.items()}
    cases = [describe(one, middle[one], middle["peer"], mark) for one, mark in MARKS.items()]
    return [*cases, describe(f"first run of {num_lines:,} lines", first, middle["peer"], FIRST_RUN_SECONDS)]


def describe(case: str, spent: Spent, peer: Spent, mark: float) -> dict[str, Any]:
    """A case of the table: the ratio is that of its seconds to the peer's."""
    return (
        make_case(case, spent.seconds / peer.seconds, f"{mark:g} s", spent.seconds <= mark)
        | {"seconds": round(spent.seconds, 3), "import torch": round(peer.seconds, 3)}
        | {"processor": round(spent.processor, 3), "import torch, processor": round(peer.processor, 3)}
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_commands, small={"REPEATS": 1, "USERS": 300}))
