"""Everything that a card can tell of the GPU path, by one command, the most telling first.

    python -m tests.benchmarks.gpu_acceptance --out DIR --seconds 540    from the tree, on a machine with a card
    python -m tests.benchmarks.gpu_acceptance --out DIR --rehearse       with Triton's interpreter and tiny sizes, without a card

It needs numpy, torch and triton, and no network; trainings also need pyarrow and numba, the test files pytest. What is missing
is SKIPPED and named. Each step is a process with a time limit of its own, whose lines are in DIR/STEP.json as soon as they are
known. DIR/page.md is written anew after each step: PASS, FAIL or SKIPPED a line. The exit code is 1 if a line failed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STEPS_PACKAGE = "tests.benchmarks.acceptance"
REHEARSED_SECONDS = 900
LEAST_SECONDS = 5
"""With less time left no step begins."""


@dataclass(frozen=True)
class Step:
    """A module of `tests.benchmarks.acceptance`, and the seconds after which it is ended."""

    name: str
    seconds: int


STEPS = (
    Step("machine", 60), Step("copies", 40), Step("suites", 150), Step("memory_check", 60), Step("atomics", 40),
    Step("pairs", 120), Step("profiled", 40), Step("swaps", 240), Step("budgets", 90), Step("team", 60), Step("quality", 90),
)  # fmt: skip


def main(steps: Sequence[Step] = STEPS) -> int:
    """Run the steps; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gpu_acceptance", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the page and the steps' files")
    parser.add_argument("--seconds", type=int, default=540, help="all steps together (default 540)")
    parser.add_argument("--rehearse", action="store_true", help="with the interpreter and tiny sizes")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + (REHEARSED_SECONDS if arguments.rehearse else arguments.seconds)
    done: list[dict[str, Any]] = []
    try:
        for step in steps:
            done.append(run_step(step, out, arguments.rehearse, ends - time.monotonic()))
            write_page(out, done, arguments.rehearse)
            counts = ", ".join(
                f"{line['verdict']} {line['line']}" for line in done[-1]["lines"] if line["verdict"] != "PASS"
            )
            print(f"{step.name}: {done[-1]['seconds']:.0f} s; {counts or 'all PASS'}", flush=True)
    finally:
        shutil.rmtree(out / "work", ignore_errors=True)
    print(out / "page.md")
    return 1 if any(line["verdict"] == "FAIL" for step in done for line in step["lines"]) else 0


def run_step(step: Step, out: Path, rehearses: bool, seconds_left: float) -> dict[str, Any]:
    """Run a step within its time; what it told until its end, whatever that was."""
    told = {"step": step.name, "seconds": 0.0, "lines": []}
    if seconds_left < LEAST_SECONDS:
        return told | {"lines": [line_of("the whole step", "SKIPPED", "no time was left: raise --seconds")]}
    path, limit = out / f"{step.name}.json", min(step.seconds * (3 if rehearses else 1), seconds_left)
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"{STEPS_PACKAGE}.{step.name}", "--out", str(path)]
    started = time.monotonic()
    with open(out / f"{step.name}.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "--rehearse"] if rehearses else command, cwd=ROOT, env=environment(out, rehearses),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        ended = wait_for(process, limit)
    if path.exists():
        told = json.loads(path.read_text(encoding="utf-8"))
    told["seconds"] = time.monotonic() - started
    if ended is None:
        told["lines"].append(line_of("the rest of the step", "FAIL", f"did not end within {limit:.0f} s"))
    elif ended != 0 or not told["lines"]:
        last = (out / f"{step.name}.log").read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
        told["lines"].append(line_of("the rest of the step", "FAIL", f"the process ended with {ended}: {last[0]}"))
    path.write_text(json.dumps(told, indent=1), encoding="utf-8")
    return told


def wait_for(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    """The exit code of a process; None if it was killed, with all that it had started, after so many seconds."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it left running
        process.wait()


def environment(out: Path, rehearses: bool) -> dict[str, str]:
    """The steps' environment: the tree's modules, compiled kernels below DIR, and the interpreter in a rehearsal."""
    modules = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    more = {"PYTHONPATH": modules, "TRITON_CACHE_DIR": str(out / "triton"), "TRITON_INTERPRET": str(int(rehearses))}
    return os.environ | more | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"), "GLOO_SOCKET_IFNAME": "lo"}


def line_of(name: str, verdict: str, why: str) -> dict[str, Any]:
    return {"line": name, "verdict": verdict, "why": why, "figures": {}}


def write_page(out: Path, done: Sequence[dict[str, Any]], rehearses: bool) -> None:
    """Write DIR/page.md: a line each, and above them how many passed."""
    lines = [(step["step"], line) for step in done for line in step["lines"]]
    counts = {verdict: sum(line["verdict"] == verdict for _, line in lines) for verdict in ("PASS", "FAIL", "SKIPPED")}
    card = next((line["figures"]["name"] for _, line in lines if line["line"] == "card" and line["figures"]), "no card")
    kind = "Rehearsal with Triton's interpreter: no figure says anything of a card" if rehearses else f"On {card}"
    told = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    page = ["# GPU acceptance", "", f"{kind}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {told}.", ""]
    page += ["| | step | what | figures | note |", "|---|---|---|---|---|"]
    for step, line in lines:
        figures = ", ".join(f"{name} {show(value)}" for name, value in line["figures"].items() if name != "trace")
        note = " ".join(line["why"].split()).replace("|", "/")
        page.append(f"| {line['verdict']} | {step} | {line['line']} | {figures.replace('|', '/')} | {note} |")
    seconds = ", ".join(f"{step['step']} {step['seconds']:.0f} s" for step in done)
    (out / "page.md").write_text("\n".join([*page, "", f"Steps: {seconds}.", ""]), encoding="utf-8")


def show(value: Any) -> str:
    """A figure for a person."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(main())
