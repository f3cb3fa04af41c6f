"""One tiny launch under compute-sanitizer, where it is: no access outside of an array, no use of what nobody wrote.

python -m tests.benchmarks.acceptance.memory_check --launch    only the launch
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.acceptance.report import Report, run_step

TOOLS = ("memcheck", "initcheck")
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/compute-sanitizer")
LAUNCH = (sys.executable, "-m", "tests.benchmarks.acceptance.memory_check", "--launch")
WRONG = 77


def launch_tiny() -> None:
    """Train a few users; odd sizes, so that masks matter."""
    from surf2vec.trainer.config import TrainConfig
    from tests.benchmarks.acceptance.pairs import measure_agreement

    config = TrainConfig(parts="interest", vector_size=33, negative=3, sample=0, tile_users=1)
    share, largest = measure_agreement(config, num_users=2)
    if share < 1:
        raise SystemExit(f"the launch differs from the reference by up to {largest}")


def check_memory(report: Report) -> None:
    done = subprocess.run(LAUNCH, capture_output=True, text=True, check=False)
    report.add("a tiny launch by itself", done.returncode == 0, done.stderr[-300:])
    found = shutil.which("compute-sanitizer") or next(
        (str(path) for place in PLACES if (path := Path(place) / "compute-sanitizer").exists()), None
    )
    for tool in TOOLS:
        if found is None:
            report.skip(tool, "compute-sanitizer is not installed (it comes with the CUDA toolkit)")
        elif report.rehearses:
            report.skip(tool, "the interpreter launches nothing on a card")
        else:
            command = [found, "--tool", tool, "--error-exitcode", str(WRONG), *LAUNCH]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            report.add(tool, done.returncode == 0, f"exit {done.returncode}: {done.stdout[-600:]}")


if __name__ == "__main__":
    if "--launch" in sys.argv:
        launch_tiny()
        sys.exit(0)
    sys.exit(run_step(check_memory))
