"""Every benchmark program runs, at a small size, and ends with a figure."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.harness import list_programs

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", list_programs())
def test_a_program_ends_with_a_figure(name: str, data_dir: Path, tmp_path: Path) -> None:
    if name == "soak" and shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", "--small", "--json", "--data", str(data_dir)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["name"] == name
    assert result["cases"]
    assert all(math.isfinite(case["ratio"]) for case in result["cases"])
    if name == "hostile":
        assert {case["faults"] for case in result["cases"]} == {0}


def test_all_programs_are_known() -> None:
    """Those that are named in design and docs, of what `make bench` runs."""
    assert {"gensim_quality", "defaults", "headline", "swap", "workers", "ladder", "gpu", "tree"} <= set(
        list_programs()
    )
