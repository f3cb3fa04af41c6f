"""The acceptance of a card: whatever a step does, the page has a line of it; and both calls run without a card."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from pathlib import Path

import pytest

from tests.benchmarks import gpu_acceptance
from tests.benchmarks.gpu_acceptance import CALLS, ROOT, STOPPED, Calls, CardStep, all_steps, select_steps

HEAD = """
import os, signal, subprocess, sys, time
from pathlib import Path
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
    "cardless": "report.skip('card', 'torch sees none')",
    "attempted": "with report.attempt('first'): raise ValueError('one')\nreport.add('second', True)",
}
NOT_ON_THE_MACHINE = (
    "pydantic",
    "mlflow",
    "prefect",
    "polars",
    "duckdb",
    "typer",
    "hypothesis",
    "faiss",
    "ada_url",
    "optuna",
)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a call whose steps end in every way, in place of the real ones."""
    folder = tmp_path / "modules" / "made_up_steps"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    for name, body in STEP_BODIES.items():
        ending = "\n\nsys.exit(run_step(step))\n"
        (folder / f"{name}.py").write_text(HEAD + textwrap.indent(body, "    ") + ending)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setattr(gpu_acceptance, "STEPS_PACKAGE", "made_up_steps")
    monkeypatch.setattr(gpu_acceptance, "LEAST_SECONDS", 0.5)
    monkeypatch.setattr(gpu_acceptance, "WARM_UP", "")
    return tmp_path / "work"


def call_of(*names: str, seconds: int = 30) -> Calls:
    return {"1": [CardStep(name, seconds) for name in names]}


def run(work: Path, calls: Calls, *options: str) -> int:
    return gpu_acceptance.main(["--call", "1", "--work", str(work), *options], calls)


def rows_of(page: Path) -> list[list[str]]:
    """The lines of a page: verdict, step, line, figures, note."""
    lines = page.read_text().splitlines()
    return [line[2:-2].split(" | ") for line in lines if line.startswith(("| PASS", "| FAIL", "| SKIPPED"))]


def test_every_end_of_a_step_is_a_line(work: Path, tmp_path: Path) -> None:
    names = ("fine", "wrong", "raising", "bare", "dying", "attempted")
    calls = {"1": [*call_of(*names)["1"], CardStep("hanging", 2)]}
    assert run(work, calls) == 1
    rows = rows_of(tmp_path / "out" / "page.md")
    assert [row[1] for row in rows if row[2] == "begun"] == [*names, "hanging"], (
        "in order, with what was reported before"
    )
    assert {(row[1], row[2]): (row[0], row[4]) for row in rows if row[2] not in ("begun", "second")} == (
        {("fine", "more"): ("SKIPPED", "there is no more"), ("wrong", "a mark"): ("FAIL", "below")}
        | {("raising", "the rest of the step"): ("FAIL", "ValueError: no such thing")}
        | {
            ("bare", "the rest of the step"): (
                "SKIPPED",
                "needs the package there_is_no_such_package, which is not installed",
            )
        }
        | {("dying", "the rest of the step"): ("FAIL", "the process ended with -9: no message")}
        | {("attempted", "first"): ("FAIL", "ValueError: one")}
        | {("hanging", "the rest of the step"): ("FAIL", "did not end within 2 s")}
    )
    page = (tmp_path / "out" / "page.md").read_text()
    assert "8 PASS, 5 FAIL, 2 SKIPPED" in page
    assert "| PASS | fine | begun | rate 2.5 |" in page
    assert not (work / "work").exists()


def test_page_and_archive_come_back_after_each_step(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(reported: dict[str, object]) -> None:
        with tarfile.open(tmp_path / "out" / "all.tgz") as archive:
            names = archive.getnames()
        has_row = any(row[1] == reported["step"] for row in rows_of(tmp_path / "out" / "page.md"))
        seen.append(
            (reported["step"], has_row, f"{reported['step']}.json" in names, f"{reported['step']}.log" in names)
        )

    monkeypatch.setattr(gpu_acceptance, "print_step", look)
    run(work, call_of("fine", "wrong"))
    assert seen == [("fine", True, True, True), ("wrong", True, True, True)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["all.tgz", "page.md"], "at most 8 come back"


def test_without_a_card_or_time_steps_are_skipped(work: Path, tmp_path: Path) -> None:
    assert run(work, call_of("cardless", "fine")) == 0
    assert rows_of(tmp_path / "out" / "page.md")[-1][:3] == ["SKIPPED", "fine", "the whole step"]
    assert run(work, call_of("cardless", "fine"), "--rehearse") == 0
    assert ["PASS", "fine", "begun"] in [row[:3] for row in rows_of(tmp_path / "out" / "page.md")]
    assert run(work, call_of("fine"), "--seconds", "0") == 0
    assert rows_of(tmp_path / "out" / "page.md")[0][4] == "no time was left: raise --seconds"


def test_sigterm_ends_the_step_with_its_children(work: Path, tmp_path: Path) -> None:
    """What the step had reported is on the page, and the others are named."""
    (tmp_path / "modules" / "made_up_steps" / "waiting.py").write_text(
        HEAD + "    child = subprocess.Popen(['sleep', '60'])\n"
        f"    Path({str(tmp_path / 'child')!r}).write_text(str(child.pid))\n    time.sleep(60)\n\nsys.exit(run_step(step))\n"
    )
    code = (
        "import sys\nfrom tests.benchmarks import gpu_acceptance as a\n"
        "a.STEPS_PACKAGE, a.WARM_UP = 'made_up_steps', ''\n"
        "steps = [a.CardStep('waiting', 60), a.CardStep('fine', 60)]\n"
        f"sys.exit(a.main(['--call', '1', '--work', {str(work)!r}], {{'1': steps}}))"
    )
    modules = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": modules})
    ends = time.monotonic() + 60
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        assert time.monotonic() < ends
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    command = Path("/proc", (tmp_path / "child").read_text(), "cmdline")
    assert not command.exists() or not command.read_bytes(), "it ended, if nobody waited for it yet"
    assert [[row[0], row[1], row[2], row[4]] for row in rows_of(tmp_path / "out" / "page.md")] == [
        ["PASS", "waiting", "begun", ""],
        ["FAIL", "waiting", "the rest of the step", STOPPED],
        ["SKIPPED", "fine", "the whole step", STOPPED],
    ]


def test_only_takes_steps_of_any_call_in_the_order_given(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [step.name for step in select_steps(CALLS, "2", "")] == [step.name for step in CALLS["2"]]
    assert [step.name for step in select_steps(CALLS, "2", "whole,tiles")] == ["whole", "tiles"]
    assert select_steps(CALLS, "1", "tiles") == [CardStep("tiles", 70)]
    with pytest.raises(SystemExit):
        run(work, CALLS, "--only", "tales")
    assert "there is no step 'tales'" in capsys.readouterr().err


@pytest.mark.slow
def test_it_needs_only_what_the_machine_has() -> None:
    """From a clone, without the project or what it installs: torch, triton, numpy, numba, pyarrow and pytest."""
    files = "test_gpu test_gpu_trail"
    code = f"""
import importlib, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {NOT_ON_THE_MACHINE!r}:
            raise ModuleNotFoundError(name, name=name.split(".")[0])
sys.meta_path.insert(0, Absent())
for name in {sorted(all_steps(CALLS))!r} + ["one_card"]:
    importlib.import_module("tests.benchmarks.acceptance." + name)
for name in {files.split()!r}:
    importlib.import_module("tests.trainer.kernels." + name)
for name in ("tests.data.corpora", "tests.benchmarks.swap", "surf2vec.trainer.__main__", "surf2vec.trainer.kernels.cpu"):
    importlib.import_module(name)
print(sys.modules["surf2vec"].__file__)
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "TRITON_INTERPRET": "1"
    }
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(ROOT / "surf2vec" / "__init__.py")


@pytest.mark.slow
@pytest.mark.parametrize("call", list(CALLS))
def test_the_rehearsal_ends_with_a_figure_of_each_step(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton's interpreter, where there is a card, too."""
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    words = ["--call", call, "--seconds", "300", "--rehearse", "--work", str(tmp_path / "work")]
    code = gpu_acceptance.main(words)
    page = (tmp_path / "out" / "page.md").read_text()
    assert code == 0, page
    assert "no figure says anything of a card" in page
    for step in CALLS[call]:
        reported = json.loads((tmp_path / "work" / f"{step.name}.json").read_text())
        assert any(line["verdict"] == "PASS" and line["figures"] for line in reported["lines"]), step.name
