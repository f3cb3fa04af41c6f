"""Hardware counters of one launch of the shipped tile by ncu, where it may read them.

python -m tests.benchmarks.acceptance.counters --launch    only the launch
"""

import shutil
import subprocess
import sys
import time

from tests.benchmarks.acceptance.pairs import Load, measure_speed, shipped
from tests.benchmarks.acceptance.report import Report, run_step

LAUNCH = (sys.executable, "-m", "tests.benchmarks.acceptance.counters", "--launch")
SECTIONS = ("SpeedOfLight", "WarpStateStats", "Occupancy", "MemoryWorkloadAnalysis", "SchedulerStats")
WANTED = (
    "Duration", "Compute (SM) Throughput", "Memory Throughput", "DRAM Throughput", "L2 Hit Rate", "Achieved Occupancy",
    "Issue Slots Busy", "No Eligible", "Warp Cycles Per Issued", "Registers Per Thread",
)  # fmt: skip


def read_counters(report: Report) -> None:
    ncu = shutil.which("ncu")
    if report.rehearses:
        started = time.perf_counter()
        measure_speed(shipped(report), Load(2, 40), 1)
        report.add("one launch of the tile, without counters", True, seconds=time.perf_counter() - started)
        return
    if ncu is None:
        report.skip("one launch of the tile", "ncu (Nsight Compute) is not installed")
        return
    options = [
        "--clock-control",
        "none",
        "--kernel-name",
        "regex:train_stream",
        "--launch-skip",
        "1",
        "--launch-count",
        "1",
    ]
    options += [word for section in SECTIONS for word in ("--section", section)]
    done = subprocess.run([ncu, *options, *LAUNCH], capture_output=True, text=True, check=False)
    report.keep("ncu.txt", done.stdout + done.stderr)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if any(name in line for name in WANTED)]
    passed = done.returncode == 0 and bool(lines)
    report.add("one launch of the tile", passed, "; ".join(lines)[:900] if passed else done.stderr[-300:])


if __name__ == "__main__":
    if "--launch" in sys.argv:
        measure_speed(shipped(), Load(200_000, 1_000_000), 1)
        sys.exit(0)
    sys.exit(run_step(read_counters))
