"""A kernel's data on a device as tensors, streams of work on it, events between them, and pinned host memory.

A stream does its work in order and in parallel to others; only an event makes it wait. On a CPU (Triton's interpreter) a stream
does its work at once, an event is a time, and memory is not pinned: all differences between the two are in this file.
trainer/training/device_engine.py copies the tensors to the device.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.kernels.signature import most_streams
from surf2vec.trainer.model.objectives import TrailTables
from surf2vec.trainer.model.rows import Rows, TrailItems
from surf2vec.trainer.system.memory import make_pages


@dataclass(frozen=True)
class DeviceRows:
    """surf2vec.trainer.model.rows.Rows on the device: vectors float32[n, D], in one piece; squares float32[n]."""

    vectors: torch.Tensor
    squares: torch.Tensor


@dataclass(frozen=True)
class DeviceSampling:
    """trainer.model.objectives.Sampling on the device. thresholds, keep int64[V]; aliases int32[V]; corrections float32[V]."""

    thresholds: torch.Tensor
    aliases: torch.Tensor
    keep: torch.Tensor
    corrections: torch.Tensor


@dataclass(frozen=True)
class DevicePass:
    """surf2vec.trainer.kernels.signature.Pass on the device.

    hashes int64[N]: the bits of the unsigned hashes, as torch has no arithmetic on uint64; streams int64[S + 1]: Pass.streams;
    the rest as in Pass.
    """

    config: TrainConfig
    tokens: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    hashes: torch.Tensor
    order: torch.Tensor
    alphas: torch.Tensor
    streams: torch.Tensor
    sampling: DeviceSampling
    recency: float
    epoch_key: int
    update_items: bool = True


@dataclass(frozen=True)
class DeviceTrail:
    """trainer.model.rows.TrailItems on the device, and trainer.model.objectives.TrailTables, with int64 thresholds."""

    outputs: DeviceRows
    inputs: DeviceRows
    lags: DeviceRows
    thresholds: torch.Tensor
    aliases: torch.Tensor
    corrections: torch.Tensor
    l2s: torch.Tensor
    shares: torch.Tensor


@dataclass(frozen=True)
class Scratch:
    """Temporary arrays of a pass, for at least its users and tokens.

    keys int64[N]; kept int32[T]: the kept positions of each history, from the start of its tokens on; num_kept int32[M];
    coming int32[M]: of each stream the places of users with kept tokens, from the stream's start on; num_coming int32[S].
    """

    keys: torch.Tensor
    kept: torch.Tensor
    num_kept: torch.Tensor
    coming: torch.Tensor
    num_coming: torch.Tensor


def make_scratch(num_users: int, num_tokens: int, device: torch.device) -> Scratch:
    """Return scratch arrays for passes of up to so many users and tokens."""
    return Scratch(
        torch.empty(num_users, dtype=torch.int64, device=device),
        torch.empty(num_tokens, dtype=torch.int32, device=device),
        torch.empty(num_users, dtype=torch.int32, device=device),
        torch.empty(num_users, dtype=torch.int32, device=device),
        torch.empty(most_streams(num_users), dtype=torch.int32, device=device),
    )


@dataclass(frozen=True)
class TrailSample:
    """What the curve measures of the trail, on the device or the host: the places of tokens, and the rows that each scores.

    starts, places int64[S]: of the history and the token among the tokens of a pass; rows int64[S, 1 + K]: the token's item, and
    negatives.
    """

    starts: Any
    places: Any
    rows: Any


@dataclass(frozen=True)
class Accelerator:
    """A device, and the module that trains on it (kernels/gpu.py). free_bytes: before this process used the device, if known."""

    device: torch.device
    gpu: Any
    free_bytes: int | None = None


class Event:
    """A moment in the work of a stream."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._at = time.perf_counter()
        self._event = torch.cuda.Event(enable_timing=True, blocking=True) if stream else None
        if self._event:
            self._event.record(stream)

    def wait(self) -> None:
        """Wait until the stream has reached this event."""
        if self._event:
            self._event.synchronize()

    def hold(self, stream: torch.cuda.Stream | None) -> None:
        """Make later work of this stream wait for this event."""
        if stream and self._event:
            stream.wait_event(self._event)

    def seconds_since(self, earlier: "Event") -> float:
        """Return the seconds from an earlier event to this one; both have happened."""
        if self._event and earlier._event:
            return earlier._event.elapsed_time(self._event) / 1000
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
        event.hold(self._stream)

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


def copy_rows(rows: Rows, device: torch.device) -> DeviceRows:
    """Copy rows to the device."""
    return DeviceRows(**copy_fields(rows, device))


def copy_trail(trail: TrailItems, tables: TrailTables, device: torch.device) -> DeviceTrail:
    """Copy the trail's item table and its tables to the device."""
    outputs, inputs, lags = (copy_rows(one, device) for one in (trail.outputs, trail.inputs, trail.lags))
    return DeviceTrail(outputs, inputs, lags, **copy_fields(tables, device))


def copy_home(device_trail: DeviceTrail, trail: TrailItems) -> None:
    """Copy the trail's item table to the host, and wait."""
    for name in ("outputs", "inputs", "lags"):
        host_rows, device_rows = getattr(trail, name), getattr(device_trail, name)
        as_tensor(host_rows.vectors).copy_(device_rows.vectors)
        as_tensor(host_rows.squares).copy_(device_rows.squares)


def copy_fields(fields: Any, device: torch.device) -> dict[str, Any]:
    """Return the fields of a dataclass, with arrays copied to the device; uint64 becomes int64 of the same bits."""
    copies = dict(vars(fields))
    for name, value in copies.items():
        if isinstance(value, np.ndarray):
            copies[name] = torch.tensor(value.view(np.int64) if value.dtype == np.uint64 else value, device=device)
    return copies
