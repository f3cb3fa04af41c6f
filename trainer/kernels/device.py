"""A kernel's data on a device as tensors, streams of work on it, events between them, and pinned host memory.

A stream does its work in order and in parallel to others; only an event makes it wait. On a CPU (Triton's interpreter) a stream
does its work at once, an event is a time, and memory is not pinned: all differences between the two are in this file.
trainer/training/device_engine.py copies the tensors to the device.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.kernels.signature import most_streams
from surf2vec.trainer.system.memory import make_pages

DeviceRecord = SimpleNamespace
"""The fields of a record (Rows, Sampling, Pass, TrailItems, TrailTables) with tensors for its arrays, as `on_device` makes it.
Hashes and thresholds are int64 of the same bits, as torch has no arithmetic on uint64. A Pass has its `streams`, too; a
TrailItems the fields of TrailTables.
"""


def on_device(record: Any, device: torch.device, **more: Any) -> DeviceRecord:
    """Copy a record, and more fields for it, to a device."""

    def copy(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.tensor(value.view(np.int64) if value.dtype == np.uint64 else value, device=device)
        is_record = is_dataclass(value) and not isinstance(value, TrainConfig)
        return on_device(value, device) if is_record else value

    return DeviceRecord(**{name: copy(value) for name, value in (vars(record) | more).items()})


def copy_back(copied: DeviceRecord, record: Any) -> None:
    """Copy tensors into the arrays of the record that `on_device` copied, and wait."""
    for name, value in vars(record).items():
        if isinstance(value, np.ndarray):
            as_tensor(value).copy_(getattr(copied, name))
        else:
            copy_back(getattr(copied, name), value)


def make_scratch(num_users: int, num_tokens: int, device: torch.device) -> DeviceRecord:
    """Return temporary arrays for passes of up to so many users and tokens.

    keys int64[N]; targets int32[T]: of each history, from the start of its tokens on, as in kernels/model.py; listed int32[T]:
    the trail's in the order of the history; num_targets int32[M]; coming int32[M]: the places of each stream's users with
    targets, from its start on; num_coming int32[S].
    """
    lengths = {
        "targets": num_tokens,
        "listed": num_tokens,
        "num_targets": num_users,
        "coming": num_users,
        "num_coming": most_streams(num_users),
    }
    arrays = {name: torch.empty(length, dtype=torch.int32, device=device) for name, length in lengths.items()}
    return DeviceRecord(**arrays, keys=torch.empty(num_users, dtype=torch.int64, device=device))


class Event:
    """A moment in the work of a stream."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._at = time.perf_counter()
        self.event = torch.cuda.Event(enable_timing=True, blocking=True) if stream else None
        if self.event:
            self.event.record(stream)

    def wait(self) -> None:
        """Wait until the stream has reached this event."""
        if self.event:
            self.event.synchronize()

    def seconds_since(self, earlier: "Event") -> float:
        """Return the seconds from an earlier event to this one; both have happened."""
        if self.event and earlier.event:
            return earlier.event.elapsed_time(self.event) / 1000
        return self._at - earlier._at


class Stream:
    """Work that the device does in order, in parallel to other streams."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, work: Callable[[], None]) -> None:
        """Enqueue the torch and Triton calls of `work`. On a GPU `run` returns before they are done."""
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            work()

    def after(self, event: Event) -> None:
        """Make later work wait for an event of another stream."""
        if self._stream and event.event:
            self._stream.wait_event(event.event)

    def mark(self) -> Event:
        """Return the event that all work so far is done."""
        return Event(self._stream)


class PinnedPages:
    """Pages of host memory that are pinned until `release`, so that the device can copy from and to them at any time."""

    def __init__(self, device: torch.device) -> None:
        self._is_needed = device.type == "cuda"
        self._pages: dict[int, NDArray[Any]] = {}

    def make(self, dtype: Any, *shape: int) -> NDArray[Any]:
        """Return an unfilled array in pinned pages."""
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        pages = make_pages(num_bytes)
        self.pin(pages)
        return pages[:num_bytes].view(dtype).reshape(shape)

    def pin(self, pages: NDArray[Any]) -> None:
        """Pin these pages, once. Raises ResourceError when the driver refuses."""
        address = pages.ctypes.data
        if not self._is_needed or address in self._pages or pages.nbytes == 0:
            return
        code = int(torch.cuda.cudart().cudaHostRegister(address, pages.nbytes, 0))
        if code != 0:
            raise ResourceError(
                f"the GPU's driver did not pin {pages.nbytes:,} bytes of host memory (CUDA error {code}): "
                "lower --host-memory, or permit this process to lock more"
            )
        self._pages[address] = pages

    def release(self) -> None:
        """Unpin all pages. No copy may be in progress."""
        for address in self._pages:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pages.clear()


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the array's memory; unsigned numbers become signed ones of the same bits."""
    return torch.from_numpy(array.view(np.dtype(array.dtype.str.replace("u", "i"))))
