"""What the engine for a GPU allocates, once, at the beginning; trainer/plan/sizes.py counts it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.device import DeviceRecord, PinnedPages, as_tensor, make_scratch
from surf2vec.trainer.kernels.signature import most_streams
from surf2vec.trainer.model.rows import Rows
from surf2vec.trainer.training.curve import MAX_SAMPLES

NUM_BUFFERS = 2
SAMPLING_DTYPES = {"thresholds": torch.int64, "aliases": torch.int32, "keep": torch.int64, "corrections": torch.float32}


@dataclass(frozen=True)
class MaxSizes:
    """The most users and tokens of a micro-partition, and rows of an item block. has_trail: whether a device trains the trail."""

    users: int
    tokens: int
    items: int
    has_trail: bool = False


@dataclass(frozen=True, eq=False)
class Buffers:
    """Device memory of a micro-partition while it is copied in, trained and copied out.

    rows: its users; halves int16[n, D]: the same as bfloat16, if they are stored so; arrays: of the pass, and the rows of its
    samples. results: what the curve measures, and host_results the same on the host: sample float32[m, D], the rows of items,
    then of users, as they were at the pass's end; bounds float32[2], the least and largest number of its users; trail_scores
    float32[S, 1 + K].
    """

    rows: DeviceRecord
    halves: torch.Tensor
    arrays: dict[str, torch.Tensor]
    scratch: DeviceRecord
    results: dict[str, torch.Tensor]
    host_results: dict[str, NDArray[np.float32]]

    def first_rows(self, num_users: int) -> DeviceRecord:
        return DeviceRecord(vectors=self.rows.vectors[:num_users], squares=self.rows.squares[:num_users])

    def copy_in(self, host: Rows) -> None:
        num_users = len(host.squares)
        stored = self.halves if len(self.halves) else self.rows.vectors
        stored[:num_users].copy_(as_tensor(host.vectors), non_blocking=True)
        self.rows.squares[:num_users].copy_(as_tensor(host.squares), non_blocking=True)
        if len(self.halves):  # as Rows.widened
            self.rows.vectors[:num_users].view(torch.int32).copy_(self.halves[:num_users]).bitwise_left_shift_(16)

    def copy_out(self, host: Rows) -> None:
        num_users, stored = len(host.squares), self.halves if len(self.halves) else self.rows.vectors
        as_tensor(host.vectors).copy_(stored[:num_users], non_blocking=True)
        as_tensor(host.squares).copy_(self.rows.squares[:num_users], non_blocking=True)
        for name, result in self.results.items():
            as_tensor(self.host_results[name]).copy_(result, non_blocking=True)

    def gather(self, users: DeviceRecord, outputs: DeviceRecord, num_items: int, num_users: int) -> None:
        """Copy the rows of the sample, and find the bounds."""
        items_D, users_D = self.results["sample"][: num_items + num_users].split([num_items, num_users])
        torch.index_select(outputs.vectors, 0, self.arrays["sampled_items"][:num_items], out=items_D)
        torch.index_select(users.vectors, 0, self.arrays["sampled_users"][:num_users], out=users_D)
        torch.stack(torch.aminmax(users.vectors), out=self.results["bounds"])


class DeviceMemory:
    """On the device: sampling tables, the items' outputs, the buffers. Pinned on the host: the tray that passes come from."""

    def __init__(self, device: torch.device, config: TrainConfig, sizes: MaxSizes, pinned: PinnedPages) -> None:
        self.device, self.dims, self.pinned = device, config.interest_size, pinned
        self.has_halves = config.dtype == "bfloat16"
        self.tables = {name: self._empty(dtype, sizes.items + 1) for name, dtype in SAMPLING_DTYPES.items()}
        self.outputs = self._make_rows(sizes.items)
        num_items, num_places = MAX_SAMPLES * (1 + config.negative), MAX_SAMPLES * sizes.has_trail
        lengths: dict[Any, dict[str, int]] = {
            np.int64: {
                **dict.fromkeys(("starts", "ends", "hashes", "order"), sizes.users),
                "streams": most_streams(sizes.users) + 1,
                "sampled_items": num_items,
                "sampled_users": MAX_SAMPLES,
                "trail_starts": num_places,
                "trail_places": num_places,
                "trail_rows": num_places * (1 + config.trail_negative),
            },
            np.int32: {"tokens": sizes.tokens},
            np.float32: {"alphas": sizes.users},
        }
        self.tray = {name: pinned.make(dtype, num) for dtype, nums in lengths.items() for name, num in nums.items()}
        results = {
            "sample": (num_items + MAX_SAMPLES, self.dims),
            "bounds": (2,),
            "trail_scores": (num_places, 1 + config.trail_negative),
        }
        self.buffers = [self._make_buffers(sizes, results) for _ in range(NUM_BUFFERS)]

    def fill_tray(self, arrays: dict[str, NDArray[Any]]) -> None:
        for name, array in arrays.items():
            self.tray[name][: len(array)] = array.view(np.int64) if array.dtype == np.uint64 else array

    def copy_tray(self, buffers: Buffers, lengths: dict[str, int]) -> None:
        """Copy arrays of these lengths from the tray to a buffer."""
        for name, length in lengths.items():
            buffers.arrays[name][:length].copy_(as_tensor(self.tray[name][:length]), non_blocking=True)

    def _make_buffers(self, sizes: MaxSizes, results: dict[str, tuple[int, ...]]) -> Buffers:
        return Buffers(
            self._make_rows(sizes.users),
            self._empty(torch.int16, sizes.users * self.has_halves, self.dims),
            {name: self._empty(as_tensor(array).dtype, len(array)) for name, array in self.tray.items()},
            make_scratch(sizes.users, sizes.tokens, self.device),
            {name: self._empty(torch.float32, *shape) for name, shape in results.items()},
            {name: self.pinned.make(np.float32, *shape) for name, shape in results.items()},
        )

    def _empty(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _make_rows(self, num_rows: int) -> DeviceRecord:
        return DeviceRecord(
            vectors=self._empty(torch.float32, num_rows, self.dims), squares=self._empty(torch.float32, num_rows)
        )
