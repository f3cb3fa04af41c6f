"""What a plan for GPUs rests on: their context, and the memory of NCCL."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.plan.alone import Budget, plan_training
from surf2vec.trainer.plan.prediction import Rates
from surf2vec.trainer.plan.sizes import Work, training_sizes
from surf2vec.trainer.system import memory
from surf2vec.trainer.system.memory import DEVICE_CONTEXT_BYTES, context_bytes, free_device_bytes
from surf2vec.trainer.training.preparation import connect_devices, find_budget
from surf2vec.trainer.workers import group
from surf2vec.trainer.workers.group import WorkerLostError, Workers, join_workers

CONFIG = TrainConfig(parts="interest", vector_size=8, negative=2)


class Summing:
    """Two workers, of which one notes the tensors it is given to sum."""

    num = 2

    def __init__(self) -> None:
        self.summed: list[torch.Tensor] = []

    def add_up(self, numbers: torch.Tensor) -> None:
        self.summed.append(numbers)

    def wait(self, _: None) -> None:
        time.sleep(0.001)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_workers_connect_on_the_device_of_the_rows(device: str) -> None:
    """`meta` stands for a card: a tensor on it has the kind of device that chooses NCCL."""
    device_of_rows = None if device == "cpu" else torch.device(device)
    workers: Any = Summing()
    connect_devices(workers, Kernel("gpu", "a test's", lambda *_: 0, device=device_of_rows))
    assert [numbers.device.type for numbers in workers.summed] == [device]


def test_nccl_waits_on_the_host_so_that_its_failures_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, str | None]] = []
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(dist, "rendezvous", lambda *_, **__: iter([(dist.HashStore(), 0, 2)]))
    monkeypatch.setattr(group, "find_each_other", lambda *_: "all")
    waits = "TORCH_NCCL_BLOCKING_WAIT"
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: begun.append((backend, os.environ.get(waits))))
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "new_group", lambda **_: None)
    join_workers(on_gpu=True)
    assert begun == [("cpu:gloo,cuda:nccl", "1")]


@pytest.mark.parametrize("message", ["NCCL error: remote process exited\nncclRemoteError", ""])
def test_a_failure_of_nccl_is_a_lost_worker(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    class Failed:
        def wait(self) -> None:
            raise dist.DistBackendError(message)

    monkeypatch.setattr(dist, "new_group", lambda **_: None)
    with pytest.raises(WorkerLostError, match=r"lost touch.*\((NCCL error: remote process exited|DistBackendError)\)"):
        Workers(1, 2).wait(Failed())


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A made-up card with 10,000 MiB free before; what is free and reserved by torch now may be set."""
    now = {"free": 9_400 * 2**20, "reserved": 100 * 2**20}
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\n[ "$1" = --id=GPU-4711 ] && echo 10000\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: type("Properties", (), {"uuid": "4711"}))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (now["free"], 12_000 * 2**20))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: now["reserved"])
    return now


def test_the_context_is_what_is_gone_and_not_reserved_by_torch(card: dict[str, int]) -> None:
    before = free_device_bytes()
    assert before == 10_000 * 2**20
    assert 500 * 2**20 <= context_bytes(before) < 500 * 2**20 + memory.CONTEXT_STEP_BYTES
    card["free"] = before + 1
    assert context_bytes(before) == memory.LEAST_CONTEXT_BYTES, "another process ended meanwhile"


def test_where_the_driver_says_nothing_the_constant_is_taken(card: dict[str, int], tmp_path: Path) -> None:
    for script in ("echo '[N/A]'", "exit 9"):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        assert free_device_bytes() is None
    assert context_bytes(None) == DEVICE_CONTEXT_BYTES


def test_torch_gets_what_the_measured_context_leaves(
    card: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    work, sizes = Work([100] * 4, [500] * 4, 20, 60.0), training_sizes(CONFIG, 100, None)
    kernel = Kernel("gpu", "a test's", lambda *_: 0, device=torch.device("cuda"), free_bytes=10_000 * 2**20)
    budget = find_budget(kernel, (10**12, 10**9), tmp_path)
    assert 500 * 2**20 <= budget.context_bytes < 560 * 2**20
    assert shares == [pytest.approx((10**9 - budget.context_bytes) / (12_000 * 2**20))]
    assumed = Budget(10**12, 0, 10**15, 10**9)
    measured, plan = (plan_training(work, sizes, one, Rates(1e6, 1e8, 1e8)).device_bytes for one in (budget, assumed))
    assert plan - measured == DEVICE_CONTEXT_BYTES - budget.context_bytes
