"""Every benchmark program runs, at a small size, and ends with a figure."""

import json
import math
import shutil
from pathlib import Path

import pytest

from tests.benchmarks.harness import list_programs
from tests.servers.python import run_python


@pytest.mark.slow
@pytest.mark.parametrize("name", list_programs())
def test_a_program_ends_with_a_figure(name: str, data_dir: Path, tmp_path: Path) -> None:
    if name == "soak" and shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    printed = run_python("-m", f"tests.benchmarks.{name}", "--small", "--json", "--data", str(data_dir), cwd=tmp_path)
    result = json.loads(printed.splitlines()[-1])
    assert result["name"] == name
    assert result["cases"]
    assert all(math.isfinite(case["ratio"]) for case in result["cases"])
    if name == "hostile":
        assert {case["faults"] for case in result["cases"]} == {0}


def test_all_programs_are_known() -> None:
    """Those that are named in design and docs, of what `make bench` runs."""
    named = {"gensim_quality", "defaults", "headline", "swap", "workers", "ladder", "gpu", "tree"}
    assert named.issubset(list_programs())
