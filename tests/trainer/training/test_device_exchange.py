"""Workers on GPUs exchange the rows of items and of the trail in the stream that trains them, so that no sum overwrites steps.

One worker alone exchanges with nobody: that must change nothing, whatever the device does when
(tests/trainer/training/late_device.py). Two that torchrun starts learn what two on CPUs learn.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from surf2vec.trainer.kernels.first_rows import begin_trail
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.training import device_engine, loop
from surf2vec.trainer.training.device_engine import DeviceEngine
from surf2vec.trainer.training.team import Requests, Team
from surf2vec.trainer.workers.exchange import Exchange
from tests.data.corpora import planted_histories, write_corpus
from tests.servers.torchrun import run_workers
from tests.trainer.kernels.test_trail import arrays
from tests.trainer.training.late_device import LateDevice
from tests.trainer.training.test_device_engine import CONFIG, exact, interpret, make_job, several_streams, use_device
from tests.trainer.training.test_device_trail import BOTH, ordered_dir

__all__ = ["interpret", "ordered_dir", "several_streams", "use_device"]  # fixtures
NUM_ITEMS = 12


class Arrived:
    """The handle of a sum over one worker."""

    def is_completed(self) -> bool:
        return True


class OneWorker:
    num = 1

    def add_up(self, _: torch.Tensor) -> Arrived:
        return Arrived()

    def wait(self, _: Arrived) -> None:
        pass


class Alone(Team):
    """A team of one that exchanges after every micro-partition."""

    staleness = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.exchange = Exchange(OneWorker(), NUM_ITEMS, self.staleness)  # type: ignore[arg-type]

    def meets_at(self, position: int) -> bool:
        return True

    def meet(self, position: int, own: Requests) -> Iterator[Requests]:
        self.exchange.run()
        yield own

    def drain(self) -> Iterator[Requests]:
        self.exchange.drain()
        yield from ()


class Watch(TorchDispatchMode):
    """Notes the stream of each torch call that reads or writes the items or the trail of the engine, once it trains."""

    def __init__(self, device: LateDevice, engines: list[DeviceEngine]) -> None:
        super().__init__()
        self.device, self.engines, self.streams = device, engines, set()

    def __torch_dispatch__(
        self, call: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        tensors = [leaf for leaf in tree_leaves((arguments, named)) if isinstance(leaf, torch.Tensor)]
        for engine in self.engines:
            trails = [rows.vectors for trail in engine.trails for rows in (trail.outputs, trail.inputs, trail.lags)]
            tables = {table.untyped_storage().data_ptr() for table in (engine.memory.outputs.vectors, *trails)}
            if not call.is_view and any(tensor.untyped_storage().data_ptr() in tables for tensor in tensors):
                self.streams.add("compute" if self.device.current is engine.compute else "another")
        return call(*arguments, **named or {})


@exact
@pytest.mark.parametrize("staleness", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_exchange_with_nobody_changes_nothing(
    ordered_dir: Path, tmp_path: Path, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch, staleness: int
) -> None:
    use_device(3, has_trail=True)
    loop.train(make_job(ordered_dir, tmp_path / "alone", **BOTH))
    monkeypatch.setattr(Alone, "staleness", staleness)
    monkeypatch.setattr(loop, "Team", Alone)
    device, engines = LateDevice(staleness), []
    monkeypatch.setattr(device_engine, "Stream", device.stream)

    class Known(DeviceEngine):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            engines.append(self)

    monkeypatch.setattr(device_engine, "DeviceEngine", Known)
    with Watch(device, engines) as watch:
        loop.train(make_job(ordered_dir, tmp_path / "exchanging", **BOTH))
    assert watch.streams == {"compute"}
    found, expected = open_generation(tmp_path / "exchanging"), open_generation(tmp_path / "alone")
    for rows, wanted in zip(arrays(found.trail), arrays(expected.trail), strict=True):
        np.testing.assert_allclose(rows, wanted, atol=1e-6)
    np.testing.assert_allclose(found.read_items(), expected.read_items(), atol=1e-6)
    for partition in range(found.num_partitions):
        np.testing.assert_allclose(found.read_users(partition), expected.read_users(partition), atol=1e-6)


@exact
@pytest.mark.slow
@pytest.mark.parametrize(("sharing", "is_on_device"), [("replicated", True), ("sharded", False)])
def test_two_workers_of_torchrun_train_the_trail_as_two_cpus_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharing: str, is_on_device: bool
) -> None:
    """With one sum per epoch, as GPUs exchange between micro-partitions only, few users beside others and few visits of one
    item, as lanes of a device move at once. On the host beside the device, where items are divided, with the same bits.
    """
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    corpus_dir, histories = tmp_path / "corpus", planted_histories(num_users=6, num_items=48, topics=2, length=10)
    write_corpus(corpus_dir, histories, partitions=16)
    settings = BOTH | {"sharing": sharing, "exchange_tokens": 10**6}
    records, trails = [], []
    for kernel, device_bytes in (("cpu", None), ("gpu", 4 * 10**9)):
        job = dataclasses.replace(make_job(corpus_dir, tmp_path / kernel, **settings), kernel=kernel)
        records.append(run_workers(dataclasses.replace(job, device_memory_bytes=device_bytes), 2))
        trails.append(arrays(open_generation(job.store_dir).trail))
    assert [record["plan"]["trail_on_device"] for record in records] == [False, is_on_device]
    assert [[worker["num_exchanges"] for worker in record["workers"]] for record in records] == [[2, 2]] * 2
    untrained = arrays(begin_trail(dataclasses.replace(CONFIG, **BOTH), len(trails[0][0])))
    for wanted, found, first in zip(*trails, untrained, strict=True):
        moved = np.abs(wanted - first).max()
        assert moved > 0
        assert np.abs(found - wanted).max() <= 0.1 * moved * is_on_device
    assert records[1]["curve"][-1]["trail_loss"] == pytest.approx(records[0]["curve"][-1]["trail_loss"], rel=5e-3)
