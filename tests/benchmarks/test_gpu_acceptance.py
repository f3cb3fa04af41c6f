"""The acceptance of a card: whatever a step does, the page has a line of it; and the whole runs without a card."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from tests.benchmarks import gpu_acceptance
from tests.benchmarks.acceptance.report import Report
from tests.benchmarks.gpu_acceptance import STEPS, Step

HEAD = """
import os, signal, subprocess, sys, time
from tests.benchmarks.acceptance.report import Report, run_step

def step(report):
    report.add("begun", True, rate=2.5)
"""
STEP_BODIES = {
    "fine": "report.skip('more', 'there is no more')",
    "wrong": "report.add('a mark', False, 'below')",
    "raising": "raise ValueError('no such thing')",
    "bare": "import there_is_no_such_package",
    "dying": "os.kill(os.getpid(), signal.SIGKILL)",
    "hanging": "subprocess.Popen(['sleep', '60']); time.sleep(60)",
}


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Steps that end in every way, in place of the real ones."""
    folder = tmp_path / "modules" / "made_up_steps"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    for name, body in STEP_BODIES.items():
        ending = "\n\nsys.exit(run_step(step))\n"
        (folder / f"{name}.py").write_text(HEAD + textwrap.indent(body, "    ") + ending)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    monkeypatch.setattr(gpu_acceptance, "STEPS_PACKAGE", "made_up_steps")
    monkeypatch.setattr(gpu_acceptance, "LEAST_SECONDS", 0.5)
    return [Step(name, 2) for name in STEP_BODIES]


def run(out: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_acceptance", "--out", str(out), *options])


def test_every_end_of_a_step_is_a_line(tmp_path: Path, steps: list[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "out", monkeypatch)
    assert gpu_acceptance.main(steps) == 1
    page = (tmp_path / "out" / "page.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith(("| PASS", "| FAIL", "| SKIPPED"))]
    assert [row[1] for row in rows if row[2] == "begun"] == list(STEP_BODIES), "what was told before stays"
    ends = {row[1]: (row[0][2:], row[4].rstrip(" |")) for row in rows if row[2] != "begun"}
    assert ends == {
        "fine": ("SKIPPED", "there is no more"),
        "wrong": ("FAIL", "below"),
        "raising": ("FAIL", "ValueError: no such thing"),
        "bare": ("SKIPPED", "needs the package there_is_no_such_package, which is not installed"),
        "dying": ("FAIL", "the process ended with -9: no message"),
        "hanging": ("FAIL", "did not end within 2 s"),
    }
    assert "6 PASS, 4 FAIL, 2 SKIPPED" in page
    assert "| PASS | fine | begun | rate 2.5 |" in page
    assert not (tmp_path / "out" / "work").exists()


def test_steps_for_which_no_time_is_left_are_told(
    tmp_path: Path, steps: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "out", monkeypatch, "--seconds", "0")
    assert gpu_acceptance.main(steps[:1]) == 0
    page = (tmp_path / "out" / "page.md").read_text()
    assert "| SKIPPED | fine | the whole step |  | no time was left: raise --seconds |" in page


def test_a_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    report = Report(tmp_path / "step.json", rehearses=False)
    report.add("first", True, figure=1)
    told = json.loads((tmp_path / "step.json").read_text())
    assert told["step"] == "step"
    assert told["lines"] == [{"line": "first", "verdict": "PASS", "why": "", "figures": {"figure": 1}}]
    assert (report.size(5, 2), Report(tmp_path / "other.json", rehearses=True).size(5, 2)) == (5, 2)


@pytest.mark.long
def test_the_rehearsal_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter, where there is a card, too."""
    run(tmp_path / "out", monkeypatch, "--rehearse")
    code = gpu_acceptance.main()
    page = (tmp_path / "out" / "page.md").read_text()
    assert code == 0, page
    for step in STEPS:
        told = json.loads((tmp_path / "out" / f"{step.name}.json").read_text())
        assert told["lines"], step.name
        assert told["seconds"] < step.seconds * 3
    assert page.count("| PASS |") >= 30
    assert "no figure says anything of a card" in page
