"""Checks the GPU path on a machine with a card, in two calls of about five minutes; the most important lines come first.

    python3 -m tests.benchmarks.gpu_acceptance --call 1 --seconds 310
    python3 -m tests.benchmarks.gpu_acceptance --call 2 --seconds 275 --only core,counters,suites

With --rehearse it runs in Triton's interpreter with tiny sizes, without a card. It needs numpy, torch and triton, and no network;
trainings also need pyarrow and numba, comparisons pytest. What is missing is SKIPPED and named. Each step is a process with a
time limit of its own, whose lines are in WORK/STEP.json as soon as they are known. After each step page.md (PASS, FAIL or SKIPPED
a line) and all.tgz (the steps' files) are copied to $OUT. SIGTERM ends the running step and its children; what it reported until
then is on the page. The exit code is 1 if a line failed, 143 after SIGTERM.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STEPS_PACKAGE = "tests.benchmarks.acceptance"
REHEARSED_TIMES = 8
"""A rehearsal may take so many times as long."""
LEAST_SECONDS = 5
"""With less time left no step begins."""
GRACE_SECONDS = 3
"""Between SIGTERM and SIGKILL to a step: torchrun's workers are in sessions of their own, and it must end them itself."""
STOPPED = "the call was stopped (SIGTERM)"
WARM_UP = (
    "from surf2vec.trainer.config import TrainConfig; from surf2vec.trainer.kernels import pick_kernel; "
    "from surf2vec.trainer.training.warm_up import warm_up; warm_up(pick_kernel('cpu', TrainConfig()), TrainConfig())"
)


@dataclass(frozen=True)
class CardStep:
    """A module of `tests.benchmarks.acceptance`, and the seconds after which it is ended."""

    name: str
    seconds: int


Calls = Mapping[str, Sequence[CardStep]]
CALLS: Calls = {
    "1": (
        CardStep("machine", 60), CardStep("tiles", 70), CardStep("whole", 110), CardStep("speed", 70), CardStep("copies", 25),
        CardStep("sanitized", 70), CardStep("knobs", 60),
    ),
    "2": (
        CardStep("tiles", 60), CardStep("knobs", 80), CardStep("core", 150), CardStep("counters", 60), CardStep("team", 50),
        CardStep("suites", 120),
    ),
}  # fmt: skip


class StoppedCallError(Exception):
    """SIGTERM came."""


def main(words: Sequence[str] | None = None, calls: Calls = CALLS) -> int:
    """Run the steps of a call; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gpu_acceptance", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--call", choices=list(calls), required=True, help="which steps")
    parser.add_argument("--seconds", type=int, default=300, help="all steps together (default 300)")
    parser.add_argument("--only", default="", help="these steps, in this order: tiles,whole")
    parser.add_argument("--rehearse", action="store_true", help="in the interpreter, with tiny sizes")
    parser.add_argument("--work", type=Path, default=Path("/tmp/card"), help="folder of the steps' files")
    arguments = parser.parse_args(words)
    work = arguments.work.resolve()
    for folder in (work, out_folder()):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        steps = select_steps(calls, arguments.call, arguments.only)
    except KeyError as error:
        parser.error(f"there is no step {error}: choose from {', '.join(sorted(all_steps(calls)))}")
    ends = time.monotonic() + arguments.seconds * (REHEARSED_TIMES if arguments.rehearse else 1)
    with warming_up(work):
        return run_steps(steps, work, arguments.rehearse, ends)


def all_steps(calls: Calls) -> dict[str, CardStep]:
    """Return the steps of all calls by name, with the limit of the last call that has it."""
    return {step.name: step for steps in calls.values() for step in steps}


def select_steps(calls: Calls, call: str, only: str) -> list[CardStep]:
    """Return the steps of a call, or those of any call named in `only`, in that order. Raises KeyError for an unknown name."""
    known = all_steps(calls) | {step.name: step for step in calls[call]}
    return [known[name] for name in only.split(",")] if only else list(calls[call])


def out_folder() -> Path:
    """The folder whose files come back from the machine: at most eight."""
    return Path(os.environ.get("OUT", "/tmp/card-out"))


@contextmanager
def warming_up(work: Path) -> Iterator[None]:
    """Compile the CPU's kernels, half a minute, beside the first steps."""
    with open(work / "warm_up.log", "wb") as log:
        environment = os.environ | {"PYTHONPATH": module_path()}
        process = subprocess.Popen([sys.executable, "-c", WARM_UP], cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def run_steps(steps: Sequence[CardStep], work: Path, rehearses: bool, ends: float) -> int:
    """Run the steps, with a page and an archive after each; returns the exit code."""
    for step in steps:
        (work / f"{step.name}.json").unlink(missing_ok=True)
    previous = signal.signal(signal.SIGTERM, stop_call)
    reason, why = "", ""  # why no further step begins; how the last one ended
    try:
        for step in steps:
            if not reason:
                why = run_step(step, work, rehearses, ends - time.monotonic())
                reason = STOPPED if why == STOPPED else find_reason(work, step, rehearses)
            else:
                write_lines(work, step, line_of("the whole step", "SKIPPED", reason))
            publish(steps, work, rehearses)
            print_step(read_step(work, step))
    except StoppedCallError:  # between two steps
        why = STOPPED
        publish(steps, work, rehearses)
    finally:
        signal.signal(signal.SIGTERM, previous)
        shutil.rmtree(work / "work", ignore_errors=True)
    failed = any(line["verdict"] == "FAIL" for step in steps for line in read_step(work, step)["lines"])
    return 143 if STOPPED in (why, reason) else int(failed)


def stop_call(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise StoppedCallError


def find_reason(work: Path, step: CardStep, rehearses: bool) -> str:
    """Why no other step is of use after this one: there is no card."""
    lines = read_step(work, step)["lines"]
    has_none = any(line["line"] == "card" and line["verdict"] != "PASS" for line in lines)
    return "no card" if has_none and not rehearses else ""


def run_step(step: CardStep, work: Path, rehearses: bool, seconds_left: float) -> str:
    """Run a step within its time; returns how it ended, empty if by itself. Its lines are in its file."""
    if seconds_left < LEAST_SECONDS:
        write_lines(work, step, line_of("the whole step", "SKIPPED", "no time was left: raise --seconds"))
        return ""
    limit = min(step.seconds * (REHEARSED_TIMES if rehearses else 1), seconds_left)
    command = [sys.executable, "-m", f"{STEPS_PACKAGE}.{step.name}", "--out", str(work / f"{step.name}.json")]
    started, log_path = time.monotonic(), work / f"{step.name}.log"
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            [*command, "--rehearse"] if rehearses else command, cwd=ROOT, env=environment(work, rehearses),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        why = wait_for(process, limit)
    if why.startswith("the process"):
        last = log_path.read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
        why = f"{why}: {last[0]}"
    elif not why and not read_step(work, step)["lines"]:
        why = "it reported nothing"
    rest = [line_of("the rest of the step", "FAIL", why)] if why else []
    write_lines(work, step, *rest, seconds=time.monotonic() - started)
    return why


def wait_for(process: "subprocess.Popen[bytes]", seconds: float) -> str:
    """Wait for a process; returns how it ended, empty if well. Nothing that it started is left running."""
    try:
        code = process.wait(seconds)
        return f"the process ended with {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"did not end within {seconds:.0f} s"
    except StoppedCallError:
        return STOPPED
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)


def module_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


def environment(work: Path, rehearses: bool) -> dict[str, str]:
    """The steps' environment: the tree's modules, compiled kernels kept in WORK, and the interpreter in a rehearsal."""
    ours = {"PYTHONPATH": module_path(), "TRITON_INTERPRET": str(int(rehearses)), "GLOO_SOCKET_IFNAME": "lo"}
    return {"TRITON_CACHE_DIR": str(work / "triton"), "OMP_NUM_THREADS": "2"} | os.environ | ours


def line_of(name: str, verdict: str, why: str) -> dict[str, Any]:
    return {"line": name, "verdict": verdict, "why": why, "figures": {}}


def read_step(work: Path, step: CardStep) -> dict[str, Any]:
    """What a step has reported; no lines if nothing yet."""
    path = work / f"{step.name}.json"
    if not path.exists():
        return {"step": step.name, "seconds": 0.0, "lines": []}
    return dict(json.loads(path.read_text(encoding="utf-8")))


def write_lines(work: Path, step: CardStep, *lines: dict[str, Any], seconds: float = 0.0) -> None:
    """Add lines to a step's file."""
    reported = read_step(work, step)
    reported = {"step": step.name, "seconds": seconds, "lines": [*reported["lines"], *lines]}
    replace_text(work / f"{step.name}.json", json.dumps(reported, indent=1))


def replace_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: SIGTERM may come meanwhile."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def publish(steps: Sequence[CardStep], work: Path, rehearses: bool) -> None:
    """Write the page, and copy it and an archive of the steps' files to $OUT."""
    replace_text(work / "page.md", make_page([read_step(work, step) for step in steps], rehearses))
    archive = work / "all.tgz.new"
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(path for kind in ("json", "log", "txt") for path in work.glob(f"*.{kind}")):
            tar.add(path, path.name)
    shutil.copy(work / "page.md", out_folder() / "page.md")
    shutil.move(archive, out_folder() / "all.tgz")


def make_page(reports: Sequence[dict[str, Any]], rehearses: bool) -> str:
    """The page: a line each, in the steps' order, and above them how many passed."""
    lines = [(step["step"], line) for step in reports for line in step["lines"]]
    counts = {verdict: sum(line["verdict"] == verdict for _, line in lines) for verdict in ("PASS", "FAIL", "SKIPPED")}
    kind = "Rehearsal in Triton's interpreter: no figure says anything of a card" if rehearses else f"On {find_card()}"
    total = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    page = ["# GPU acceptance", "", f"{kind}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {total}.", ""]
    page += ["| | step | what | figures | note |", "|---|---|---|---|---|"]
    for step, line in lines:
        note = " ".join(line["why"].split()).replace("|", "/")
        figures = show_figures(line).replace("|", "/")
        page.append(f"| {line['verdict']} | {step} | {line['line']} | {figures} | {note} |")
    seconds = ", ".join(f"{step['step']} {step['seconds']:.0f} s" for step in reports if step["lines"])
    return "\n".join([*page, "", f"Steps: {seconds}.", ""])


def find_card() -> str:
    """The card's name, or that there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return "no card"
    return found.strip().splitlines()[0] if found.strip() else "no card"


def print_step(reported: dict[str, Any]) -> None:
    """Print a step's lines: the end of the output comes back even where no file does."""
    print(f"--- {reported['step']}: {reported['seconds']:.0f} s", flush=True)
    for line in reported["lines"]:
        note = " ".join(line["why"].split())[:300]
        print(f"{line['verdict']} {line['line']}: {show_figures(line)} {note}", flush=True)


def show_figures(line: dict[str, Any]) -> str:
    return ", ".join(f"{name} {show(value)}" for name, value in line["figures"].items() if name != "trace")


def show(value: Any) -> str:
    """A figure for a person."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(main())
