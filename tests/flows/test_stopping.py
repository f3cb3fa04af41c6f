"""Ctrl-C and SIGTERM in every state of a run: it ends within seconds with a sentence, and the same command resumes."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from surf2vec.trainer.system.files import read_json
from tests.flows.test_cli import COMMAND
from tests.flows.test_nightly import FAST, generation, run, write_logs

IN_SECONDS = 20  # on a machine with eight at work; by itself 1 to 3
LONG = [*FAST, "--set", "train.epochs=1000"]


class Night:
    """A run as a terminal starts it: a process group of its own, whose lines go to a file."""

    def __init__(self, root: Path, *arguments: str, **environment: str) -> None:
        self.told = root.with_name("told.txt")
        with self.told.open("w") as stderr:
            self.process = subprocess.Popen(
                [*COMMAND, "run", "--root", str(root), "--json", *arguments], stdout=subprocess.PIPE, text=True, stderr=stderr,
                process_group=0, env=os.environ | environment,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )  # fmt: skip

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + 300
        while not is_so():
            assert self.process.poll() is None, self.told.read_text()
            assert time.monotonic() < end, self.told.read_text()
            time.sleep(0.01)

    def wait_for_line(self, text: str) -> None:
        self.wait_for(lambda: text in self.told.read_text())

    def end(self, in_seconds: float = IN_SECONDS) -> tuple[int, str]:
        """Exit code, and what it printed. It must take no longer."""
        printed, _ = self.process.communicate(timeout=in_seconds)
        return self.process.returncode, printed

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)


def list_ours(root: Path) -> list[list[str]]:
    """The command lines of processes that work for a root."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(root) in line]


def wait_for_none(root: Path) -> None:
    end = time.monotonic() + IN_SECONDS
    while list_ours(root) and time.monotonic() < end:
        time.sleep(0.1)
    assert list_ours(root) == []


def check_stopped(night: Night, number: signal.Signals | None = None) -> str:
    """Send a signal to a night's process alone, by default Ctrl-C to its group; it says that it ended. Return its sentence."""
    night.process.send_signal(number) if number else night.interrupt()
    code, printed = night.end()
    told = night.told.read_text()
    assert code == 1, told
    error = json.loads(printed)["error"]
    assert error["code"] == "stopped"
    assert "run the same command to resume" in error["message"]
    assert "Traceback" not in told
    return str(error["message"])


@pytest.mark.slow
def test_ctrl_c_in_every_state_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the beginning, in ingest, in training and in register; to the group, as a terminal does, or to one."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root, logs = tmp_path / "root", write_logs(tmp_path / "logs.csv")
    arguments = "--logs", str(logs), *LONG

    night = Night(root, *arguments)
    night.wait_for(root.exists)
    check_stopped(night)
    wait_for_none(root)

    night = Night(root, *arguments)
    night.wait_for_line("reading 1 new log file")
    check_stopped(night, signal.SIGTERM)

    night = Night(root, *arguments)
    night.wait_for_line("kernel=cpu")
    time.sleep(0.3)
    sentence = check_stopped(night)
    assert "after committing generation" in sentence
    assert generation(root) >= 1
    wait_for_none(root)

    night = Night(root, *arguments)
    night.wait_for_line("registering")
    check_stopped(night, signal.SIGINT)

    result = run(root, "--logs", str(logs), *LONG[len(FAST) :])
    assert result["alias"] == "champion"
    assert read_json(root / "runs" / result["run_id"] / "run.json")["steps"]["train"]["num_processes"] == 2
    wait_for_none(root)
    assert not (tmp_path / "home" / ".prefect").exists()


def test_ctrl_c_twice_ends_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    root, logs = tmp_path / "root", write_logs(tmp_path / "logs.csv")
    night = Night(root, "--logs", str(logs), *LONG)
    night.wait_for_line("reading 1 new log file")
    night.interrupt()
    time.sleep(0.05)
    night.interrupt()
    started = time.monotonic()
    code, printed = night.end()
    assert code in (1, -signal.SIGINT)  # 1 where it had ended by then
    assert code == 1 or (printed == "" and time.monotonic() - started < 3)
    wait_for_none(root)
