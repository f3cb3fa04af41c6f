"""What the engine for a GPU holds on it: counted by the planner, refused where it does not fit."""

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.kernels.first_rows import begin_trail
from surf2vec.trainer.model.objectives import make_trail_tables
from surf2vec.trainer.plan.alone import Budget, plan_training
from surf2vec.trainer.plan.prediction import Rates
from surf2vec.trainer.plan.sharing import ALONE, Sharing
from surf2vec.trainer.plan.sizes import (
    DEVICE_ROUNDING_BYTES,
    MEASURED_TOKENS,
    Work,
    device_bytes,
    training_sizes,
    tray_bytes,
)
from surf2vec.trainer.system.memory import DEVICE_CONTEXT_BYTES
from surf2vec.trainer.training.curve import MAX_SAMPLE_USERS, MAX_SAMPLES
from surf2vec.trainer.training.device_engine import DeviceEngine
from surf2vec.trainer.training.device_memory import DeviceMemory, MaxSizes
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.training.record import Record
from surf2vec.trainer.training.trail_slot import TrailSlot
from surf2vec.trainer.workers.exchange import Exchange
from tests.data.corpora import planted_histories, write_corpus
from tests.trainer.kernels.test_gpu import HAS_GPU

KERNEL = Kernel("gpu", "a test's", lambda *_: 0, device=torch.device("cpu"))


@pytest.mark.parametrize(
    "settings",
    [
        {"vector_size": 128, "negative": 20}, {"vector_size": 64, "dtype": "bfloat16", "negative": 5},
        {"vector_size": 128, "parts": "both"},
    ], ids=str,
)  # fmt: skip
def test_the_planner_counts_what_is_held_on_the_device(settings: dict[str, Any]) -> None:
    config, users, num_items = TrainConfig(**{"parts": "interest"} | settings), [2_000, 3_000, 1_000], 20_000
    work = Work(users, [25 * num for num in users], 1, 60.0)
    budget = Budget(10**12, 0, 10**15, device_bytes=10**11)
    plan = plan_training(work, training_sizes(config, num_items, None), budget, Rates(1e6, 1e8, 1e8))
    parts = []
    assert plan.trail_on_device == (config.trail_size > 0)
    if plan.trail_on_device:
        tables = make_trail_tables(np.ones(num_items, np.int64), config)
        parts = [cast(TrailSlot, SimpleNamespace(items=begin_trail(config, num_items), tables=tables))]
    sizes = MaxSizes(max(users), 25 * max(users), num_items, plan.trail_on_device)
    engine = DeviceEngine(KERNEL, config, sizes, Record(), parts)
    held = sum(tensor.nbytes for tensor in tensors_of([vars(engine.memory), engine.trails]))
    planned = plan.device_bytes - DEVICE_CONTEXT_BYTES - DEVICE_ROUNDING_BYTES
    assert held <= planned <= 1.1 * held
    pinned = sum(array.nbytes for array in arrays_of(engine.memory))
    tray = tray_bytes(work, training_sizes(config, num_items, None))
    assert pinned <= tray <= 1.1 * pinned
    assert MEASURED_TOKENS == MAX_SAMPLES == 2 * MAX_SAMPLE_USERS


@pytest.mark.parametrize("mode", ["replicated", "asynchronous"])
def test_the_planner_counts_the_copies_that_exchanges_take(mode: str) -> None:
    """Of items and trail: the last state, and changes with their sums, of as many exchanges as may be in progress."""
    config, work, counts = TrainConfig(vector_size=64), Work([100], [500], 1, 60.0), np.ones(20_000, np.int64)
    sizes = replace(training_sizes(config, len(counts), None), sharing=Sharing(mode, (1.0, 1.0), staleness=2))
    alone = replace(sizes, sharing=ALONE)
    part = SimpleNamespace(items=begin_trail(config, len(counts)), tables=make_trail_tables(counts, config))
    exchange = Exchange(NeverArriving(), len(counts), 2 if mode == "asynchronous" else 0)  # type: ignore[arg-type]
    device_sizes = MaxSizes(100, 500, len(counts), has_trail=True)
    engine = DeviceEngine(KERNEL, config, device_sizes, Record(), [cast(TrailSlot, part)], exchange)
    blocks = ItemBlocks(config, counts, 1)
    engine.admit_block(blocks.first_items(0), blocks.targets(0))
    for _ in range(5):
        exchange.run()
    underway = [(one.own, one.total) for one in exchange._underway]
    copies = [exchange._base, exchange._free, *underway]
    held = sum(tensor.nbytes for tensor in tensors_of([list(map(list, copies))]))
    planned = device_bytes(work, sizes, 1, has_trail=True) - device_bytes(work, alone, 1, has_trail=True)
    assert planned == pytest.approx(held, rel=1e-4)  # the lags are not counted


class NeverArriving:
    """Two workers, whose sums arrive when they are waited for."""

    num = 2

    def add_up(self, _: torch.Tensor) -> Any:
        return SimpleNamespace(is_completed=lambda: False)

    def wait(self, _: Any) -> None:
        pass


@pytest.mark.parametrize("num_blocks", [2, 7])
def test_the_planner_counts_the_items_that_blocks_share(num_blocks: int) -> None:
    config, users, counts = TrainConfig(parts="interest", vector_size=16), [200, 300], np.arange(10_000)
    work = Work(users, [25 * num for num in users], 1, 60.0)
    rows = ItemBlocks(config, counts, num_blocks).num_rows(0)
    assert rows > len(counts) / num_blocks + 100
    engine = DeviceEngine(KERNEL, config, MaxSizes(max(users), 25 * max(users), rows), Record(), [])
    held = sum(tensor.nbytes for tensor in tensors_of(vars(engine.memory)))
    planned = device_bytes(work, training_sizes(config, len(counts), None), num_blocks)
    assert held <= planned - DEVICE_ROUNDING_BYTES


def arrays_of(memory: DeviceMemory) -> list[np.ndarray]:
    """The arrays on the host that are pinned for good."""
    return [*memory.tray.values(), *(array for buffers in memory.buffers for array in buffers.host_results.values())]


def tensors_of(thing: Any) -> Iterator[torch.Tensor]:
    """All tensors in dictionaries, lists and dataclasses."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        yield from (tensor for one in thing.values() for tensor in tensors_of(one))
    elif isinstance(thing, list):
        yield from (tensor for one in thing for tensor in tensors_of(one))
    elif dataclasses.is_dataclass(thing) or isinstance(thing, SimpleNamespace):
        yield from tensors_of(vars(thing))


def test_what_the_device_does_not_hold_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(ResourceError, match=r"1,000 item rows.*20 users and 300 tokens.*raise --device-memory"):
        DeviceEngine(KERNEL, TrainConfig(), MaxSizes(20, 300, 1000), Record(), [])


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_card_the_budget_holds(tmp_path: Path, dtype: str) -> None:
    """The driver's figure, context included, by --device-memory; nobody else may use the card meanwhile."""
    from tests.benchmarks.acceptance.core import watch_device
    from tests.benchmarks.acceptance.training import run_trainer

    write_corpus(tmp_path / "corpus", planted_histories(num_users=4000), partitions=8)
    settings = {"parts": "interest", "vector_size": 64, "epochs": 5, "negative": 5, "threads": 1, "dtype": dtype}
    with watch_device() as taken:
        done = run_trainer(tmp_path / "corpus", tmp_path / "store", settings, device_bytes=10**9)
    assert done.returncode == 0, done.stderr
    assert 0 < max(taken) - taken[0] <= 10**9
