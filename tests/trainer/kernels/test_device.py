"""Streams, events and pinned pages: what they ask of CUDA, by a made-up CUDA, and that they do their work on a CPU."""

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.kernels.device import PinnedPages, Stream, as_tensor


def test_on_a_cpu_work_is_done_when_it_is_asked_for() -> None:
    stream, other, done = Stream(torch.device("cpu")), Stream(torch.device("cpu")), []
    before = stream.mark()
    other.after(before)
    other.run(lambda: done.append(1))
    assert done == [1]
    after = other.mark()
    after.wait()
    assert 0 <= after.seconds_since(before) < 1


def test_on_a_gpu_work_goes_to_its_stream_and_waits_for_events(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class MadeUpStream:
        def __init__(self, device: torch.device) -> None:
            told.append(("stream", device.type))

        def wait_event(self, event: Any) -> None:
            told.append(("wait for", event.number))

    class MadeUpEvent:
        def __init__(self, enable_timing: bool, blocking: bool) -> None:
            assert enable_timing
            assert blocking
            self.number = sum(1 for what, _ in told if what == "record")

        def record(self, stream: MadeUpStream) -> None:
            assert isinstance(stream, MadeUpStream)
            told.append(("record", self.number))

        def synchronize(self) -> None:
            told.append(("synchronize", self.number))

        def elapsed_time(self, later: "MadeUpEvent") -> float:
            return 1500.0 * (later.number - self.number)

    @contextmanager
    def enter(stream: MadeUpStream) -> Any:
        told.append(("enter", None))
        yield
        told.append(("leave", None))

    for name, made_up in (("Stream", MadeUpStream), ("Event", MadeUpEvent), ("stream", enter)):
        monkeypatch.setattr(torch.cuda, name, made_up)
    stream, other = Stream(torch.device("cuda")), Stream(torch.device("cuda"))
    first = stream.mark()
    other.after(first)
    other.run(lambda: told.append(("work", None)))
    second = other.mark()
    second.wait()
    assert [what for what, _ in told] == [
        "stream", "stream", "record", "wait for", "enter", "work", "leave", "record", "synchronize"
    ]  # fmt: skip
    assert told[3] == ("wait for", 0)
    assert told[-1] == ("synchronize", 1)
    assert second.seconds_since(first) == 1.5


def test_unsigned_numbers_are_signed_ones_of_the_same_memory() -> None:
    array = np.array([2**64 - 1, 1], dtype=np.uint64)
    tensor = as_tensor(array)
    assert tensor.tolist() == [-1, 1]
    tensor[1] = 7
    assert array[1] == 7
    assert as_tensor(np.zeros(2, np.uint16)).dtype == torch.int16
    assert as_tensor(np.zeros(2, np.float32)).dtype == torch.float32


def test_pages_are_pinned_once_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def __init__(self) -> None:
            self.pinned: dict[int, int] = {}

        def cudaHostRegister(self, address: int, num_bytes: int, _: int) -> int:  # noqa: N802 (the driver's name)
            if num_bytes > 10**6:
                return 2
            assert address not in self.pinned
            self.pinned[address] = num_bytes
            return 0

        def cudaHostUnregister(self, address: int) -> None:  # noqa: N802
            del self.pinned[address]

    driver = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    pinned = PinnedPages(torch.device("cuda"))
    array = pinned.make(np.float32, 100, 3)
    pinned.pin(array.view(np.uint8))
    assert driver.pinned == {array.ctypes.data: 4096}
    with pytest.raises(ResourceError, match=r"did not pin 2,002,944 bytes.*CUDA error 2.*lower --host-memory"):
        pinned.make(np.uint8, 2 * 10**6)
    pinned.release()
    assert not driver.pinned
    PinnedPages(torch.device("cpu")).make(np.int64, 5)
    assert not driver.pinned
