"""What a GPU, its driver or Triton refuse at the trial is told in words, and nothing is trained."""

import dataclasses
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from surf2vec.trainer import __main__ as trainer_alone
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.kernels.device import Event, Stream
from surf2vec.trainer.kernels.failures import explain_failures
from surf2vec.trainer.training import device_engine, loop
from surf2vec.trainer.training.warm_up import try_kernel, warm_up
from tests.data.corpora import planted_histories, write_corpus
from tests.trainer.kernels.test_gpu import gpu, triton
from tests.trainer.training.late_device import kernel_of

CONFIG = TrainConfig(parts="interest", vector_size=4, negative=2)
FAILURES: dict[str, tuple[Exception, str]] = {
    "no compiler": (
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
        r"found none: apt install gcc python3-dev",
    ),
    "no headers": (subprocess.CalledProcessError(1, ["gcc", "main.c"]), "could not build.*apt install gcc python3-dev"),
    "no memory": (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB"), "too little free memory.*smi"),
    "memory taken meanwhile": (RuntimeError("CUDA error: out of memory\nCUDA kernel errors"), "too little free memory"),
    "old driver": (
        RuntimeError("The NVIDIA driver on your system is too old (found version 11040)"), "update NVIDIA's driver",
    ),
    "older driver than Triton": (
        RuntimeError("Triton Error [CUDA]: the provided PTX was compiled with an unsupported toolchain."), "its driver|update",
    ),
    "old card": (RuntimeError("CUDA error: no kernel image is available for execution"), "no code for this card"),
    "no libcuda": (AssertionError("libcuda.so cannot found!\n"), "or run ldconfig"),
    "not compiled": (triton.CompilationError(None, None, "no such instruction"), "cannot compile.*constraints.txt"),
    "not assembled": (triton.runtime.errors.PTXASError("Value 'sm_75' is not defined"), "cannot compile the kernel"),
    "too small": (triton.runtime.errors.OutOfResources(200_000, 65_536, "shared memory"), "lower train.negative"),
    "something else": (OSError("the card fell off the bus"), "the card fell off the bus.*docs/gpu.md"),
}  # fmt: skip


def failing_kernel(error: Exception) -> Kernel:
    """A GPU kernel whose launch raises this error."""
    return kernel_of(mock.Mock(side_effect=error))


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_at_the_trial_says_what_failed_and_what_to_do(failure: str) -> None:
    error, words = FAILURES[failure]
    with pytest.raises(ResourceError, match=words) as raised:
        warm_up(failing_kernel(error), CONFIG)
    assert type(error).__name__ in str(raised.value)
    assert "or train on the CPU" in str(raised.value)


def test_our_own_errors_stay_as_they_are() -> None:
    with pytest.raises(ConfigError, match="train.dm"), explain_failures(str):
        raise ConfigError("train.dm")


def test_the_trial_runs_both_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    real = gpu.launch

    def launch(users: Any, outputs: Any, work: Any, scratch: Any) -> None:
        before = users.vectors.clone()
        real(users, outputs, work, scratch)
        launched.append((int(scratch.num_targets.sum()), bool((users.vectors != before).any())))

    monkeypatch.setattr(gpu, "launch", launch)
    try_kernel(kernel_of(launch, gpu.find_device().type, gpu), CONFIG)
    assert len(launched) == 1
    assert launched[0][0] > 0, "a token was kept"
    assert launched[0][1], "the user was trained"


def test_vectors_that_are_no_numbers_are_a_failure() -> None:
    def spoil(users: Any, *_: Any) -> int:
        users.vectors[:] = np.nan
        return 0

    with pytest.raises(ResourceError, match="not finite"):
        try_kernel(kernel_of(spoil), CONFIG)


def test_the_trainer_refuses_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path / "corpus", planted_histories(num_users=8), partitions=2)
    error, words = FAILURES["no compiler"]
    monkeypatch.setattr(loop, "pick_kernel", lambda *_: failing_kernel(error))
    monkeypatch.setattr(trainer_alone, "install_handlers", lambda: None)
    command = ["trainer", "--corpus", str(tmp_path / "corpus"), "--store", str(tmp_path / "store"), "--device", "cuda"]
    monkeypatch.setattr(sys, "argv", command)
    assert trainer_alone.main() == ResourceError.exit_code
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""
    assert not (tmp_path / "store" / "MANIFEST.json").exists()


def test_an_error_that_comes_late_names_what_ran_and_what_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CUDA reports it at any later call, and at each one from then on. The CPU resumes from the commit."""
    corpus, store, settings = (tmp_path / name for name in ("corpus", "store", "settings.json"))
    write_corpus(corpus, planted_histories(num_users=16), partitions=4)
    settings.write_text('{"parts": "interest", "vector_size": 4, "negative": 2, "commit_seconds": 0, "epochs": 2}')
    words = ["trainer", "--corpus", str(corpus), "--store", str(store), "--config", str(settings), "--resume"]

    message, launched = "CUDA error: an illegal memory access was encountered\nSearch for it", []

    def launch(*_: Any) -> None:
        launched.append(store)
        if len(launched) > 1:  # the first micro-partition is being committed
            ends = time.monotonic() + 60
            while not (store / "MANIFEST.json").exists() and time.monotonic() < ends:
                time.sleep(0.01)
            raise torch.AcceleratorError(message)

    class FailingStream(Stream):
        def mark(self) -> Event:
            if len(launched) > 1:
                raise torch.AcceleratorError(message)
            return super().mark()

    monkeypatch.setattr(device_engine, "Stream", FailingStream)
    monkeypatch.setattr(trainer_alone, "install_handlers", lambda: None)
    kernel = dataclasses.replace(kernel_of(launch), train_users=lambda *_: 0)
    monkeypatch.setattr(loop, "pick_kernel", lambda *_: kernel)
    monkeypatch.setattr(sys, "argv", [*words, "--device", "cuda"])
    assert trainer_alone.main() == ResourceError.exit_code
    said = capsys.readouterr().err
    for part in (
        r"^error: the GPU kernel failed on the interest or a copy after 1 of 8 micro-partitions, with generation 1 committed "
        r"\(AcceleratorError: CUDA error: an illegal memory access was encountered\)",
        "CUDA_LAUNCH_BLOCKING=1.*; or train on the CPU$",
    ):  # fmt: skip
        assert re.search(part, said, re.MULTILINE), (part, said)
    assert "Traceback" not in said
    monkeypatch.setattr(loop, "pick_kernel", lambda *_: Kernel("cpu", "a test's", lambda *_: 0))
    monkeypatch.setattr(sys, "argv", words)
    assert trainer_alone.main() == 0
    assert "resuming a stopped training" in capsys.readouterr().err


def test_a_card_that_torch_does_not_see_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "JITFunction", type(gpu.train_stream))  # as if this kernel were not interpreted
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    old = RuntimeError("The NVIDIA driver on your system is too old\nPlease update")
    monkeypatch.setattr(torch.cuda, "init", mock.Mock(side_effect=old))
    with pytest.raises(ResourceError, match=r"sees none here \(The NVIDIA driver on your system is too old\)"):
        gpu.find_device()


@pytest.fixture(autouse=True)
def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
