"""A tiny launch of the tile and of the trail under compute-sanitizer: racecheck for shared memory, memcheck for addresses.

python -m tests.benchmarks.acceptance.sanitized --launch    only the launch
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.acceptance.report import Report, run_step

TOOLS = ("racecheck", "memcheck")
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/compute-sanitizer")
LAUNCH = (sys.executable, "-m", "tests.benchmarks.acceptance.sanitized", "--launch")
FOUND_EXIT = 77


def launch_tiny() -> None:
    """Train a few users by both programs, as shipped."""
    from surf2vec.trainer.config import TrainConfig
    from tests.trainer.kernels.test_gpu import gpu, make_rows, make_work
    from tests.trainer.kernels.test_gpu_trail import make_case

    work = make_work(TrainConfig(parts="interest", vector_size=64, sample=0), 34, 50)
    gpu.train_users(*make_rows(work), work)
    trail, tables, work = make_case(34, vector_size=64, trail_negative=64)
    gpu.train_trail(trail, work, tables, 0.5)


def check_accesses(report: Report) -> None:
    started = time.perf_counter()
    done = subprocess.run(LAUNCH, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    report.add("tile and trail by themselves", done.returncode == 0, done.stderr[-300:], seconds=seconds)
    found = shutil.which("compute-sanitizer") or next(
        (str(path) for place in PLACES if (path := Path(place) / "compute-sanitizer").exists()), None
    )
    for tool in TOOLS:
        if found is None:
            report.skip(tool, "compute-sanitizer is not installed (it comes with the CUDA toolkit)")
        elif report.rehearses:
            report.skip(tool, "the interpreter launches nothing on a card")
        else:
            options = ["--tool", tool, "--error-exitcode", str(FOUND_EXIT), "--kernel-regex", "kns=train_"]
            done = subprocess.run([found, *options, *LAUNCH], capture_output=True, text=True, check=False)
            report.keep(f"sanitizer-{tool}.txt", done.stdout + done.stderr)
            report.add(tool, done.returncode == 0, f"exit {done.returncode}: {done.stdout[-500:]}")


if __name__ == "__main__":
    if "--launch" in sys.argv:
        launch_tiny()
        sys.exit(0)
    sys.exit(run_step(check_accesses))
