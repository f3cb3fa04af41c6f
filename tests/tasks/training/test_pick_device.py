"""The device of a run: the GPU if a trial of its kernel succeeds in a process of its own, else the CPU with the reason."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surf2vec.tasks.config import ResourcesConfig
from surf2vec.tasks.training.worker_processes import Device, count_workers, pick_device
from surf2vec.trainer import kernels
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.training import warm_up
from tests.servers.python import stand_in
from tests.trainer.kernels.test_gpu import HAS_GPU, gpu, is_interpreted

CONFIG = TrainConfig(parts="interest", vector_size=4, negative=2)
ON_GPU = ResourcesConfig(device_memory="1GB")


@pytest.fixture(autouse=True)
def interpret(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where there is a card, but the trial's process interprets the kernel where there is none."""
    monkeypatch.setenv("TRITON_INTERPRET", str(int(is_interpreted)))
    monkeypatch.setattr(gpu, "find_device", lambda: None)
    warm_up.try_apart.cache_clear()
    yield
    warm_up.try_apart.cache_clear()


def test_a_trial_that_succeeds_takes_the_gpu() -> None:
    assert pick_device(CONFIG, ON_GPU) == Device("gpu", (10**9,))


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_a_trial_that_fails_takes_the_cpu_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")  # in the trial's process, where find_device is the real one
    device = pick_device(CONFIG, ON_GPU)
    assert (device.kernel, device.budgets) == ("cpu", ())
    assert device.reason.startswith("resources.device_memory is not used: kernel gpu needs an NVIDIA GPU")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo 'the GPU kernel failed: apt install gcc'; exit 1",
            "is not used: the GPU kernel failed: apt install gcc",
        ),
        ("echo 'illegal address' >&2; kill -ABRT $$", r"ended with -6 \(illegal address\): train on the CPU"),
        ("exec sleep 20", "did not end within 0.5 s"),
    ],
    ids=["told", "aborted", "hangs"],
)
def test_a_process_that_ends_badly_is_a_reason_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setattr(warm_up, "TRIAL_SECONDS", 0.5)
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, script))
    device = pick_device(CONFIG, ON_GPU)
    assert device.kernel == "cpu"
    assert re.search(words, device.reason), device.reason


def test_the_same_settings_are_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, f"echo tried >> {tmp_path}/trials"))
    for _ in range(3):
        assert pick_device(CONFIG, ON_GPU).kernel == "gpu"
    assert (tmp_path / "trials").read_text() == "tried\n"


def test_nothing_is_tried_where_no_gpu_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", os.devnull)
    monkeypatch.delattr(gpu, "find_device")
    assert pick_device(CONFIG, ResourcesConfig()) == Device("cpu")


@pytest.mark.parametrize("missing", ["torch", "triton"])
def test_without_torch_or_triton_the_cpu_is_taken(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)  # an import then raises ModuleNotFoundError
    monkeypatch.delitem(sys.modules, "surf2vec.trainer.kernels.gpu")
    monkeypatch.delattr(kernels, "gpu")
    device = pick_device(TrainConfig(), ResourcesConfig(device_memory="1GB"))
    assert device.kernel == "cpu"
    assert f"needs {missing}, which is not installed: install the extra surf2vec[torch]" in device.reason


def test_several_workers_need_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert count_workers(Device("cpu"), ResourcesConfig(workers=1)) == 1
    with pytest.raises(ConfigError, match=r"workers is 2, .* install the extra surf2vec\[torch\], or set 1"):
        count_workers(Device("cpu"), ResourcesConfig(workers=2))
