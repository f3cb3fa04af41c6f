"""Compiling the kernel: a person is told, it is timed by itself, and a signal does not wait for it."""

import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.training import preparation
from surf2vec.trainer.training.preparation import warm_up

WAITING = """
import time
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.training.preparation import warm_up
from surf2vec.trainer.system.signals import install_handlers

install_handlers()
slow = Kernel("cpu", "", lambda *_: time.sleep(60), is_compiling=lambda: True)
try:
    warm_up(slow, TrainConfig(), lambda name, values: print(values["message"], flush=True))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("is_compiling", "told"), [(True, ["compiling the kernel, once for this installation"]), (False, [])]
)
def test_compiling_is_told_and_timed(monkeypatch: pytest.MonkeyPatch, is_compiling: bool, told: list[str]) -> None:
    monkeypatch.setattr(preparation, "PATIENCE_SECONDS", 0.05)
    slow = Kernel("cpu", "", lambda *_: bool(time.sleep(0.4)), is_compiling=lambda: is_compiling)
    lines: list[Any] = []
    assert 0.4 <= warm_up(slow, TrainConfig(parts="interest"), lambda name, values: lines.append(values["message"])) < 5
    assert lines == told


def test_what_a_kernel_raises_is_raised() -> None:
    def fail(*_: Any) -> int:
        raise ValueError("no such instruction")

    with pytest.raises(ValueError, match="no such instruction"):
        warm_up(Kernel("cpu", "", fail), TrainConfig())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_wait_for_the_compiler(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "compiling" in process.stdout.readline()
        process.send_signal(number)
        assert process.stdout.readline() == "interrupted\n"
        process.kill()
