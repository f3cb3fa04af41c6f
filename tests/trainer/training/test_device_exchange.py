"""Workers on GPUs exchange item rows in the stream that trains them, so that no sum overwrites steps made meanwhile.

One worker alone exchanges with nobody: that must change nothing, whatever the device does when
(tests/trainer/training/late_device.py).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.training import device_engine, loop
from surf2vec.trainer.training.device_engine import DeviceEngine
from surf2vec.trainer.training.team import Requests, Team
from surf2vec.trainer.workers.exchange import Exchange
from tests.trainer.training.late_device import LateDevice
from tests.trainer.training.test_device_engine import Copied, copied, corpus_dir, exact, interpret, make_job, use_device

__all__ = ["copied", "corpus_dir", "interpret", "use_device"]  # fixtures
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
    """Notes the stream of each torch call that reads or writes the item table of the engine."""

    def __init__(self, device: LateDevice, engines: list[DeviceEngine]) -> None:
        super().__init__()
        self.device, self.engines, self.streams = device, engines, set()

    def __torch_dispatch__(
        self, call: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        tensors = [leaf for leaf in tree_leaves((arguments, named)) if isinstance(leaf, torch.Tensor)]
        for engine in self.engines:
            table = engine.memory.outputs.vectors.untyped_storage().data_ptr()
            if not call.is_view and any(tensor.untyped_storage().data_ptr() == table for tensor in tensors):
                self.streams.add("compute" if self.device.current is engine.compute else "another")
        return call(*arguments, **named or {})


@exact
@pytest.mark.parametrize("staleness", [0, 1])
def test_an_exchange_with_nobody_changes_nothing(
    corpus_dir: Path, tmp_path: Path, copied: Copied, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    staleness: int,
) -> None:  # fmt: skip
    store_dir, _ = copied()
    use_device(3)
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
        loop.train(make_job(corpus_dir, tmp_path))
    assert watch.streams == {"compute"}
    found, expected = open_generation(tmp_path), open_generation(store_dir)
    np.testing.assert_allclose(found.read_items(), expected.read_items(), atol=1e-6)
    for partition in range(found.num_partitions):
        np.testing.assert_allclose(found.read_users(partition), expected.read_users(partition), atol=1e-6)
