"""Our ingest and corpus beside a bare DuckDB read, sort and join of the same rows, and their memory at 1 and 4 times the users.

Sample logs (14 days, about 25 events a user, 1 million pages) in Parquet and in CSV. Both sides get the same files, threads,
memory limit and number of micro-partitions, run in turn in processes of their own, and end with fsync; each gets the best
of two. What the bare side is stands in `ingest_sides.py`. Our side leaves cleaned events for any later window besides the
corpus. Memory is anonymous and shared memory of the process.

Besides, very many small logs and the same lines in few, by processor seconds of our side alone.
"""

import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surf2vec.tasks.ingest.ingest import choose_partitions
from surf2vec.tasks.sample.logs import Format, write_sample_logs
from tests.benchmarks.harness import make_case, run_benchmark, run_watched
from tests.benchmarks.ingest_sides import SIDES

DAYS, ITEMS, SEED = 14, 1_000_000, 1
MEMORY_BYTES = 10**9
REPEATS = 2
LEAST_RATIO = 0.85
SMALL_LOGS, SMALL_LINES, MOST_SMALL_RATIO = 10_000, (50, 500), 1.5
FORMATS: tuple[Format, ...] = ("parquet", "csv")


@dataclass(frozen=True)
class Run:
    """What one side took: wall and processor seconds, and its peak of anonymous and shared bytes."""

    rows: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run_side(side: str, logs: Path, folder: Path, users: int) -> Run:
    """One side in a new process and a new folder, which goes afterwards."""
    place = folder / side
    arguments = side, f"{logs}/*", str(place), str(choose_partitions(users)), str(MEMORY_BYTES)
    try:
        return Run(**run_watched("tests.benchmarks.ingest_sides", *arguments))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def compare(format: Format, users: int, folder: Path) -> list[dict[str, Any]]:
    """The speed of one format, and the memory that we take for a quarter of the users and for all."""
    small, logs = folder / f"{format}-small", folder / format
    write_sample_logs(small, users // 4, DAYS, ITEMS, SEED, format)
    write_sample_logs(logs, users, DAYS, ITEMS, SEED, format)
    few = run_side("ours", small, folder, users // 4)
    runs: dict[str, list[Run]] = {side: [] for side in SIDES}
    for _ in range(REPEATS):
        for side in SIDES:
            runs[side].append(run_side(side, logs, folder, users))
    for path in (small, logs):
        shutil.rmtree(path)
    return [show_speed(format, runs), show_memory(format, few, max(runs["ours"], key=lambda run: run.peak_bytes))]


def show_speed(format: Format, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """The case of speed: rows a second of ours over those of the bare side."""
    best = {side: min(runs[side], key=lambda run: run.seconds) for side in SIDES}
    ours = best["ours"]
    ratio = best["bare"].seconds / ours.seconds
    return (
        make_case(f"speed, {format}", ratio, f">= {LEAST_RATIO:g} x bare DuckDB", ratio >= LEAST_RATIO)
        | {"ratio_cpu": min(run.cpu_seconds for run in runs["bare"]) / min(run.cpu_seconds for run in runs["ours"])}
        | {"rows": ours.rows, "seconds": ours.seconds, "bare_seconds": best["bare"].seconds}
        | {"rows_per_second": ours.rows / ours.seconds}
    )


def show_memory(format: Format, few: Run, all_users: Run) -> dict[str, Any]:
    """The case of memory: within the budget, however many users."""
    peak_bytes = max(few.peak_bytes, all_users.peak_bytes)
    return (
        make_case(f"memory, {format}", MEMORY_BYTES / peak_bytes, "peak <= budget", peak_bytes <= MEMORY_BYTES)
        | {"rows": all_users.rows, "peak_bytes": all_users.peak_bytes}
        | {"quarter_peak_bytes": few.peak_bytes, "budget_bytes": MEMORY_BYTES}
    )


def compare_small(folder: Path, lines: int) -> list[dict[str, Any]]:
    """The CPU seconds of an ingest of SMALL_LOGS logs of so many lines each, beside the same lines in a hundredth of them."""
    seconds, users = {}, SMALL_LOGS * lines // 50
    for num_logs in (SMALL_LOGS, SMALL_LOGS // 100):
        logs, each = folder / f"{num_logs}", SMALL_LOGS * lines // num_logs
        logs.mkdir()
        for number in range(num_logs):
            draw = random.Random(number)
            rows = (
                f"user{draw.randrange(users)},/item/{draw.randrange(500)},{1_700_000_000 + n}\n" for n in range(each)
            )
            (logs / f"{number}.csv").write_text("user_id,url,ts\n" + "".join(rows))
        seconds[num_logs] = min(run_side("ours", logs, folder, users).cpu_seconds for _ in range(REPEATS))
        shutil.rmtree(logs)
    many, few = seconds.values()
    ratio, mark = many / few, f"<= {MOST_SMALL_RATIO:g} x the same lines in few"
    return [
        make_case(f"small logs, {lines} lines", ratio, mark, ratio <= MOST_SMALL_RATIO)
        | {"logs": SMALL_LOGS, "cpu_seconds": many, "few_cpu_seconds": few}
        | {"cpu_seconds_per_log": (many - few) / SMALL_LOGS}
    ]


def measure_ingest(_: Path, users: int = 200_000) -> list[dict[str, Any]]:
    """All cases, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="surf2vec-ingest-") as folder:
        cases = [case for lines in SMALL_LINES for case in compare_small(Path(folder), lines)]
        return cases + [case for format in FORMATS for case in compare(format, users, Path(folder))]


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_ingest, small={"users": 2_000, "ITEMS": 1_000, "REPEATS": 1, "SMALL_LOGS": 200}))
