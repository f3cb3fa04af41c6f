"""The test files of the GPU path on the card, six at a time, without what needs no card."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.acceptance.report import Report, run_step

ROOT = Path(__file__).parents[3]
FILES = (
    "tests/trainer/kernels/test_gpu.py",
    "tests/trainer/kernels/test_gpu_trail.py",
    "tests/trainer/training/test_device_engine.py",
    "tests/trainer/kernels/test_failures.py",
    "tests/trainer/test_device_memory.py",
)
WITHOUT_CARD = "not spills and not 16_bytes_a_thread and not tensor_cores"
"""Tests of what the compiler makes."""
REHEARSED = "nobody or no_users"
OUTCOME = re.compile(r"^(?:FAILED|ERROR) (\S+)(.*)$", re.MULTILINE)
MOST_LINES = 25


def run_suites(report: Report) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-m", "not long"]
    command += ["-o", "filterwarnings=default", "-k", REHEARSED if report.rehearses else WITHOUT_CARD]
    if importlib.util.find_spec("hypothesis") is None:
        command.append("--noconftest")  # tests/conftest.py needs it
    if importlib.util.find_spec("xdist") is not None and not report.rehearses:
        command += ["-n", "6", "--dist", "loadfile"]
    command += FILES[: report.size(len(FILES), 2)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report.keep("pytest.txt", done.stdout + done.stderr)
    passed = re.search(r"(\d+) passed", done.stdout)
    last = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[-1]
    report.add("all files", done.returncode == 0, last, num_passed=int(passed[1]) if passed else 0)
    for name, why in OUTCOME.findall(done.stdout)[:MOST_LINES]:
        report.add(name, False, why)


if __name__ == "__main__":
    sys.exit(run_step(run_suites))
