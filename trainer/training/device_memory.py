"""What the engine for a GPU allocates, once, at the beginning; trainer/plan/sizes.py counts it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.device import DeviceRows, PinnedPages, Scratch, TrailSample, as_tensor, make_scratch
from surf2vec.trainer.kernels.signature import most_streams
from surf2vec.trainer.model.rows import Rows
from surf2vec.trainer.plan.alone import Plan
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.training.course import Visit
from surf2vec.trainer.training.curve import MAX_SAMPLES


@dataclass(frozen=True)
class MaxSizes:
    """The most users and tokens of a micro-partition, and rows of an item block.

    at_once: micro-partitions trained at the same time; staying: where all users stay on the device, users and tokens of each
    micro-partition; has_trail: whether the trail is trained on the device.
    """

    users: int
    tokens: int
    items: int
    at_once: int = 1
    staying: tuple[tuple[int, int], ...] = ()
    has_trail: bool = False


def find_largest(corpus: Corpus, num_items: int, plan: Plan) -> MaxSizes:
    """Return the sizes for the micro-partitions of a corpus and item blocks of at most so many rows, as planned."""
    staying = tuple(zip(corpus.users.tolist(), corpus.tokens.tolist(), strict=True)) if plan.stays_on_device else ()
    num_users, num_tokens = int(corpus.users.max()), int(corpus.tokens.max())
    return MaxSizes(num_users, num_tokens, num_items, plan.at_once, staying, plan.trail_on_device)


@dataclass
class Place:
    """Device memory of a micro-partition: its users' rows, the arrays of its passes that never change, and halves int16[n, D]
    (its rows as bfloat16). is_filled: whether it has the micro-partition that stays there.
    """

    rows: DeviceRows
    arrays: dict[str, torch.Tensor]
    halves: torch.Tensor
    is_filled: bool = False

    def copy_in(self, host: Rows) -> None:
        num_users = len(host.squares)
        self.rows.squares[:num_users].copy_(as_tensor(host.squares), non_blocking=True)
        if len(self.halves):
            self.halves[:num_users].copy_(as_tensor(host.vectors), non_blocking=True)
            self.widen(num_users)
        else:
            self.rows.vectors[:num_users].copy_(as_tensor(host.vectors), non_blocking=True)

    def copy_out(self, host: Rows) -> None:
        num_users, vectors = len(host.squares), self.halves if len(self.halves) else self.rows.vectors
        as_tensor(host.vectors).copy_(vectors[:num_users], non_blocking=True)
        as_tensor(host.squares).copy_(self.rows.squares[:num_users], non_blocking=True)

    def widen(self, num_users: int) -> None:
        """Make the rows of halves, as surf2vec.trainer.model.rows.widen."""
        self.rows.vectors[:num_users].view(torch.int32).copy_(self.halves[:num_users]).bitwise_left_shift_(16)


@dataclass(frozen=True)
class Seat:
    """What a visit needs while it is trained: the arrays of its pass alone, and what the curve measures of it.

    sample: the rows of items, then of users, that are gathered at its end; bounds: the least and largest number of its users.
    landed_sample, landed_bounds: the same on the host. trail_scores, landed_scores float32[S, 1 + K]: of the trail's sample.
    """

    arrays: dict[str, torch.Tensor]
    scratch: Scratch
    sample: torch.Tensor
    bounds: torch.Tensor
    landed_sample: NDArray[np.float32]
    landed_bounds: NDArray[np.float32]
    trail_scores: torch.Tensor
    landed_scores: NDArray[np.float32]

    def gather(self, users: DeviceRows, outputs: DeviceRows, num_items: int, num_users: int) -> None:
        """Copy the rows of the sample, and find the bounds."""
        items_D, users_D = self.sample[: num_items + num_users].split([num_items, num_users])
        torch.index_select(outputs.vectors, 0, self.arrays["sampled_items"][:num_items], out=items_D)
        torch.index_select(users.vectors, 0, self.arrays["sampled_users"][:num_users], out=users_D)
        torch.stack(torch.aminmax(users.vectors), out=self.bounds)

    def trail_sample(self, num: int) -> TrailSample:
        """Return the first `num` tokens of the trail's sample."""
        rows = self.arrays["trail_rows"].view(-1, self.trail_scores.shape[1])
        return TrailSample(self.arrays["trail_starts"][:num], self.arrays["trail_places"][:num], rows[:num])

    def copy_out(self, num: int) -> None:
        as_tensor(self.landed_scores).copy_(self.trail_scores, non_blocking=True)
        as_tensor(self.landed_sample[:num]).copy_(self.sample[:num], non_blocking=True)
        as_tensor(self.landed_bounds).copy_(self.bounds, non_blocking=True)


class DeviceMemory:
    """On the device: tables of sampling, the items' outputs, a place for each micro-partition that stays there, otherwise one a
    seat, and one seat more than visits are trained at once. Pinned on the host: the tray, from which a visit's arrays are copied.
    """

    def __init__(self, device: torch.device, config: TrainConfig, largest: MaxSizes, pinned: PinnedPages) -> None:
        self.device, self.pinned, self.dims, self.has_halves = (
            device, pinned, config.interest_size, config.dtype == "bfloat16",
        )  # fmt: skip
        self.trail_tokens, self.trail_rows = MAX_SAMPLES * largest.has_trail, 1 + config.trail_negative
        num_items = MAX_SAMPLES * (1 + config.negative)
        self.tables = [
            self._empty(dtype, largest.items + 1) for dtype in (torch.int64, torch.int32, torch.int64, torch.float32)
        ]
        self.outputs = self._make_rows(largest.items)
        changing = {
            "order": (np.int64, largest.users), "alphas": (np.float32, largest.users),
            "streams": (np.int64, most_streams(largest.users) + 1), "sampled_items": (np.int64, num_items),
            "sampled_users": (np.int64, MAX_SAMPLES), "trail_rows": (np.int64, self.trail_tokens * self.trail_rows),
            "trail_starts": (np.int64, self.trail_tokens), "trail_places": (np.int64, self.trail_tokens),
        }  # fmt: skip
        arrays = changing | fixed_arrays(largest.users, largest.tokens)
        self.tray = {name: pinned.make(dtype, num) for name, (dtype, num) in arrays.items()}
        self.seats = [
            self._make_seat(list(changing), largest, num_items + MAX_SAMPLES) for _ in range(largest.at_once + 1)
        ]
        sizes = largest.staying or [(largest.users, largest.tokens)] * len(self.seats)
        self.places = [self._make_place(*size) for size in sizes]

    def fill_tray(self, visit: Visit, is_fixed: bool, trail_sample: TrailSample | None = None) -> dict[str, int]:
        """Copy the arrays of a visit's pass to the tray, and the rows of its samples; is_fixed: also those that never change.

        Returns their lengths.
        """
        work = visit.work
        users, items = visit.sample.rows()
        arrays: dict[str, NDArray[Any]] = {
            "order": work.order, "alphas": work.alphas, "streams": work.streams,
            "sampled_items": items, "sampled_users": users,
        }  # fmt: skip
        if trail_sample:
            arrays |= {f"trail_{name}": array.ravel() for name, array in vars(trail_sample).items()}
        if is_fixed:
            arrays |= {"starts": work.starts, "ends": work.ends, "hashes": work.hashes.view(np.int64)}
            arrays["tokens"] = work.tokens
        for name, array in arrays.items():
            self.tray[name][: len(array)] = array
        return {name: len(array) for name, array in arrays.items()}

    def copy_tray(self, place: Place, seat: Seat, lengths: dict[str, int]) -> None:
        """Copy arrays of these lengths from the tray to the device."""
        arrays = place.arrays | seat.arrays
        for name, length in lengths.items():
            arrays[name][:length].copy_(as_tensor(self.tray[name][:length]), non_blocking=True)

    def _make_seat(self, names: list[str], largest: MaxSizes, num_sampled: int) -> Seat:
        return Seat(
            {name: self._empty(as_tensor(self.tray[name]).dtype, len(self.tray[name])) for name in names},
            make_scratch(largest.users, largest.tokens, self.device),
            self._empty(torch.float32, num_sampled, self.dims),
            self._empty(torch.float32, 2),
            self.pinned.make(np.float32, num_sampled, self.dims),
            self.pinned.make(np.float32, 2),
            self._empty(torch.float32, self.trail_tokens, self.trail_rows),
            self.pinned.make(np.float32, self.trail_tokens, self.trail_rows),
        )

    def _make_place(self, num_users: int, num_tokens: int) -> Place:
        arrays = fixed_arrays(num_users, num_tokens)
        return Place(
            self._make_rows(num_users),
            {name: self._empty(as_tensor(np.empty(0, dtype)).dtype, num) for name, (dtype, num) in arrays.items()},
            self._empty(torch.int16, num_users * self.has_halves, self.dims),
        )

    def _empty(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _make_rows(self, num_rows: int) -> DeviceRows:
        return DeviceRows(self._empty(torch.float32, num_rows, self.dims), self._empty(torch.float32, num_rows))


def fixed_arrays(num_users: int, num_tokens: int) -> dict[str, tuple[type, int]]:
    """Return the types and lengths of the arrays of a pass that are the same in each epoch."""
    users = dict.fromkeys(("starts", "ends", "hashes"), (np.int64, num_users))
    return users | {"tokens": (np.int32, num_tokens)}
