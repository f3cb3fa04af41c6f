"""Compiling the kernel: a message says so, it is timed by itself, a signal does not wait for it, and its memory is returned."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import Kernel, cpu
from surf2vec.trainer.training.warm_up import warm_up
from tests.servers.python import stand_in

COMPILING = "compiling the kernel, once for this installation"
CONFIG = TrainConfig(parts="interest")
WARM_UP = """
import sys
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import pick_kernel
from surf2vec.trainer.system.memory import private_bytes
from surf2vec.trainer.system.signals import install_handlers
from surf2vec.trainer.training.warm_up import warm_up

install_handlers()
sys.executable = sys.argv[1]
kernel = pick_kernel("cpu", TrainConfig())
before_bytes = private_bytes()
try:
    warm_up(kernel, TrainConfig(), lambda name, values: print(values["message"], flush=True))
    print(private_bytes() - before_bytes)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(("is_compiled", "messages"), [(False, [COMPILING]), (True, [])])
def test_compiling_is_logged_and_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_compiled: bool, messages: list[str]
) -> None:
    monkeypatch.setattr(cpu, "is_compiled", lambda: is_compiled)
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, "exec sleep 0.4"))
    lines: list[Any] = []
    seconds = warm_up(Kernel("cpu", "", lambda *_: 0), CONFIG, lambda name, values: lines.append(values["message"]))
    assert (seconds >= 0.4) is not is_compiled
    assert lines == messages


def test_what_a_kernel_raises_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the other process says so first."""

    def fail(*_: Any) -> int:
        raise ValueError("no such instruction")

    monkeypatch.setattr(cpu, "is_compiled", lambda: False)
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, "exit 1"))
    with pytest.raises(ValueError, match="no such instruction"):
        warm_up(Kernel("cpu", "", fail), CONFIG)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_wait_for_the_compiler(tmp_path: Path, number: signal.Signals) -> None:
    environment, script = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}, stand_in(tmp_path, "exec sleep 60")
    command = [sys.executable, "-c", WARM_UP, script]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == COMPILING + "\n"
        process.send_signal(number)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(5) == 0


@pytest.mark.long
def test_a_training_keeps_none_of_the_compilers_memory(tmp_path: Path) -> None:
    environment, command = (
        os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        [sys.executable, "-c", WARM_UP, sys.executable],
    )
    grown_bytes = []
    for messages in ([COMPILING], []):
        *lines, grown = subprocess.check_output(command, env=environment, text=True).splitlines()
        assert lines == messages
        grown_bytes.append(int(grown))
    assert grown_bytes[0] == pytest.approx(grown_bytes[1], abs=10**7)
    assert grown_bytes[0] < 60 * 10**6
