"""Streams of work on a device, events between them, and host memory that the device reads and writes by itself.

A stream does its work in order and beside the others; nobody waits but for an event. Where the device is the CPU (Triton's
interpreter) a stream does at once what it is given, an event is a moment, and memory needs no preparation: all that
differs between the two is in this file.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.errors import ResourceError
from trainer.system.memory import make_pages


class Event:
    """A moment in the work of a stream."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._at = time.perf_counter()
        self._event = torch.cuda.Event(enable_timing=True, blocking=True) if stream else None
        if self._event:
            self._event.record(stream)

    def wait(self) -> None:
        """Let this thread wait until the stream has come to it."""
        if self._event:
            self._event.synchronize()

    def hold(self, stream: torch.cuda.Stream | None) -> None:
        """Let what this stream is given from now on wait for it."""
        if stream and self._event:
            stream.wait_event(self._event)

    def seconds_since(self, earlier: "Event") -> float:
        """Seconds from an earlier event to this one; both have come."""
        if self._event and earlier._event:
            return earlier._event.elapsed_time(self._event) / 1000
        return self._at - earlier._at


class Stream:
    """Work that the device does in order, beside that of other streams."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, work: Callable[[], None]) -> None:
        """Give it work: what torch and Triton are asked for within, which on a GPU is done later than `run` returns."""
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            work()

    def after(self, event: Event) -> None:
        """What comes from now on waits for an event of another stream."""
        event.hold(self._stream)

    def mark(self) -> Event:
        """The moment when all that was asked for so far is done."""
        return Event(self._stream)


class PinnedPages:
    """Pages of host memory that stay where they are, so that the device can copy from and to them beside all else.

    They are kept until `release`: memory that is given back while the device knows it would be copied from nowhere.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_needed = device.type == "cuda"
        self._pages: dict[int, NDArray[Any]] = {}

    def make(self, dtype: Any, *shape: int) -> NDArray[Any]:
        """An array in pinned pages, not filled yet."""
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        pages = make_pages(num_bytes)
        self.pin(pages)
        return pages[:num_bytes].view(dtype).reshape(shape)

    def pin(self, pages: NDArray[Any]) -> None:
        """Pin these whole pages (trainer.store.images.make_pages), once. Raises ResourceError when the driver refuses."""
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
        """Unpin all; nothing may be on its way."""
        for address in self._pages:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pages.clear()


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """A tensor that is the array's memory; unsigned numbers as signed ones of the same bits."""
    return torch.from_numpy(array.view(np.dtype(array.dtype.str.replace("u", "i"))))
