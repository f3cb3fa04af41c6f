"""The test files of the GPU path, each in a process of its own, to the end whatever fails; the test of frozen items first."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.acceptance.report import Report, run_step

ROOT = Path(__file__).parents[3]
FILES: dict[str, tuple[str, str]] = {
    "tests/trainer/training/test_device_races.py": ("", "float32 and frozen and 8-1"),
    "tests/trainer/kernels/test_gpu.py": ("", "only_the_users_in_the_order or no_users"),
    "tests/trainer/kernels/test_gpu_trail.py": ("", "without_two_pages or least"),
    "tests/trainer/training/test_device_engine.py": ("", "finite and 8"),
    "tests/trainer/kernels/test_failures.py": ("", "no_compiler or both_programs"),
    "tests/trainer/kernels/test_device.py": ("", ""),
    "tests/trainer/test_device_memory.py": ("", "refused"),
}
"""By file: which of its tests run (-k) on a card, and in a rehearsal."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)(.*)$", re.MULTILINE)


def run_suites(report: Report) -> None:
    if importlib.util.find_spec("pytest") is None:
        report.skip("test files", "needs pytest, which is not installed")
        return
    bare = [] if all(map(importlib.util.find_spec, ("hypothesis", "pyarrow"))) else ["--noconftest"]
    for file, words in FILES.items():
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *bare, file]
        command += ["-k", words[report.rehearses]] if words[report.rehearses] else []
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        (report.folder.parent / f"{Path(file).stem}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
        counts = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[-1].strip("= ")
        failed = [name for name, _ in FAILED.findall(done.stdout)]
        if "No module named" in done.stdout and done.returncode == 2:
            missing = re.search(r"No module named '([^']+)'", done.stdout)
            report.skip(file, f"needs the package {missing and missing[1]}, which is not installed")
        else:
            report.add(file, done.returncode == 0, counts, failed=failed)


if __name__ == "__main__":
    sys.exit(run_step(run_suites))
