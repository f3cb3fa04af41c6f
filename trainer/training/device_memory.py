"""All memory that the engine for a GPU needs, taken once at the beginning: on the device, and pinned on the host.

trainer/plan/alone.py counts it.
"""

from dataclasses import dataclass

import numpy as np
import torch

from trainer.config import TrainConfig
from trainer.kernels.device import DeviceRows, make_scratch
from trainer.kernels.streams import PinnedPages, as_tensor
from trainer.training.curve import MAX_SAMPLES


@dataclass(frozen=True)
class Largest:
    """The most that a visit has: users and tokens of a micro-partition, rows of an item block."""

    users: int
    tokens: int
    items: int


@dataclass(frozen=True)
class Place:
    """Where a micro-partition is on the device: its rows, and by name the arrays of its pass and of its sample's items."""

    rows: DeviceRows
    arrays: dict[str, torch.Tensor]


class DeviceMemory:
    """What is reserved.

    On the device: tables of sampling, the items' outputs, scratch, two places for micro-partitions, halves (users' rows in
    bfloat16 on their way in), sample and bounds (what the curve and the check for finite numbers look at).
    On the host: the tray, from which the arrays of a visit are copied, and where users, sample and bounds land.
    """

    def __init__(self, device: torch.device, config: TrainConfig, largest: Largest, pinned: PinnedPages) -> None:
        self.device, self.dims = device, config.vector_size
        users, halved_users = largest.users, largest.users * (config.dtype == "bfloat16")
        num_sampled = min(MAX_SAMPLES * (1 + config.negative), largest.items)
        arrays = dict.fromkeys(("starts", "ends", "hashes", "order"), (np.int64, users)) | {
            "alphas": (np.float32, users), "tokens": (np.int32, largest.tokens), "sampled": (np.int64, num_sampled)
        }  # fmt: skip
        self.tables = [
            self._empty(dtype, largest.items + 1) for dtype in (torch.int64, torch.int32, torch.int64, torch.float32)
        ]
        self.outputs = self._make_rows(largest.items)
        self.scratch = make_scratch(users, largest.tokens, device)
        self.sample, self.bounds = self._empty(torch.float32, num_sampled, self.dims), self._empty(torch.float32, 2)
        self.halves = self._empty(torch.int16, halved_users, self.dims)
        self.tray = {name: pinned.make(dtype, num) for name, (dtype, num) in arrays.items()}
        self.places = [
            Place(
                self._make_rows(users),
                {name: self._empty(as_tensor(array).dtype, len(array)) for name, array in self.tray.items()},
            )
            for _ in range(2)
        ]
        self.landed_vectors = pinned.make(np.float32, halved_users, self.dims)
        self.landed_sample = pinned.make(np.float32, num_sampled, self.dims)
        self.landed_bounds = pinned.make(np.float32, 2)

    def _empty(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _make_rows(self, num_rows: int) -> DeviceRows:
        return DeviceRows(self._empty(torch.float32, num_rows, self.dims), self._empty(torch.float32, num_rows))
