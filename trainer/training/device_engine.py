"""The engine for a GPU: the item block stays on the device; users are copied in before their visit and out after it.

Three streams: `ahead` copies the next micro-partition in, `compute` trains one, `home` copies the last one out. They wait for
events, never for the complete device. Two places for micro-partitions on the device suffice: a third would be empty while one is
copied in. Users are copied directly from and to the pinned image of their file. Of the items only the rows for the curve are
copied to the host, until a commit or a change of block needs all.

    ahead     | copy 2 in    |          | copy 3 in    |
    compute   | train 1                 | train 2                 | train 3
    home                     | 0 home   |              | 1 home   |
    the host  | conclude 0, make 2      | conclude 1, make 3

On a CPU (Triton's interpreter) the same steps run one after the other (trainer/kernels/device.py).
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.errors import ResourceError
from trainer.kernels.device import (
    Accelerator,
    DevicePass,
    DeviceRows,
    DeviceSampling,
    Event,
    PinnedPages,
    Stream,
    as_tensor,
    make_scratch,
)
from trainer.kernels.signature import most_streams
from trainer.model.rows import Items, Rows
from trainer.training.course import Ended, Visit
from trainer.training.curve import MAX_SAMPLES, Targets
from trainer.training.engine import Engine
from trainer.training.path_slot import PathSlot
from trainer.training.record import Record
from trainer.workers.exchange import Exchange


@dataclass(frozen=True)
class Largest:
    """The most users and tokens of a micro-partition, rows of an item block, and users of a launch (None: no limit)."""

    users: int
    tokens: int
    items: int
    launch: int | None = None


@dataclass(frozen=True)
class Place:
    """Device memory of a micro-partition: its rows, and by name the arrays of its pass and of its sample's items."""

    rows: DeviceRows
    arrays: dict[str, torch.Tensor]


class DeviceMemory:
    """All memory of the engine, allocated once at the beginning; trainer/plan/sizes.py counts it.

    On the device: tables of sampling, the items' outputs, scratch, two places for micro-partitions, halves (users' rows in
    bfloat16 while they are copied in), sample and bounds (for the curve and the check for finite numbers).
    Pinned on the host: the tray, from which a visit's arrays are copied, and the targets of copies of users, sample and bounds.
    """

    def __init__(self, device: torch.device, config: TrainConfig, largest: Largest, pinned: PinnedPages) -> None:
        self.device, self.dims = device, config.interest_size
        users, halved_users = largest.users, largest.users * (config.dtype == "bfloat16")
        num_sampled = min(MAX_SAMPLES * (1 + config.negative), largest.items)
        arrays = dict.fromkeys(("starts", "ends", "hashes", "order"), (np.int64, users)) | {
            "alphas": (np.float32, users), "tokens": (np.int32, largest.tokens), "sampled": (np.int64, num_sampled),
            "streams": (np.int64, most_streams(users) + 1),
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


@dataclass
class Flight:
    """A visit on the device, and the events of its progress.

    sampled int64[m]: the items of its sample; num_streams: of its pass; uploaded: it is completely on the device; started, ended:
    its training; landed: its users are in the host's memory again; waited_seconds: the host's waiting time before its beginning.
    """

    visit: Visit
    place: Place
    sampled: NDArray[np.int64]
    num_streams: int
    uploaded: Event
    started: Event = field(init=False)
    ended: Event = field(init=False)
    landed: Event = field(init=False)
    waited_seconds: float = 0.0


class DeviceEngine(Engine):
    """Trains visits on a device; exchange: with the other workers, between visits.

    Raises ResourceError when an item block and two micro-partitions do not fit the device.
    """

    looks_ahead = True

    def __init__(
        self, accelerator: Accelerator, config: TrainConfig, largest: Largest, record: Record, path: PathSlot | None = None,
        exchange: Exchange | None = None,
    ) -> None:  # fmt: skip
        self.path, self.exchange = path, exchange
        self.launch, self.device = accelerator.launch, accelerator.device
        self.config, self.record, self.largest = config, record, largest
        self.ahead, self.compute, self.home = (Stream(self.device) for _ in range(3))
        self.pinned = PinnedPages(self.device)
        try:
            self.memory = DeviceMemory(self.device, config, largest, self.pinned)
        except torch.OutOfMemoryError as error:
            raise ResourceError(
                f"the GPU does not hold {largest.items:,} item rows and two micro-partitions of up to {largest.users:,} users "
                f"and {largest.tokens:,} tokens within its budget: raise --device-memory or store.partitions ({error})"
            ) from None
        self.block: DeviceRows
        self.sampling: DeviceSampling
        self._staged: Flight | None = None
        self._flying: Flight | None = None
        self._before: Flight | None = None
        self._uploaded: Event | None = None
        self._idle_seconds = 0.0

    def admit_block(self, items: Items, targets: Targets) -> None:
        """Copy an item block and its tables to the device, replacing the previous block."""

        def copy_in() -> None:
            self.block.vectors.copy_(as_tensor(items.outputs.vectors))
            self.block.squares.copy_(as_tensor(items.outputs.squares))
            for table, values in zip(self.memory.tables, tables, strict=True):
                table[: len(values)].copy_(as_tensor(values))

        self.items = items
        num_rows = len(items.outputs.squares)
        self.block = DeviceRows(self.memory.outputs.vectors[:num_rows], self.memory.outputs.squares[:num_rows])
        sampling = targets.sampling
        tables: tuple[NDArray[Any], ...] = (sampling.thresholds, sampling.aliases, sampling.keep, sampling.corrections)
        self.sampling = DeviceSampling(
            *(table[: len(values)] for table, values in zip(self.memory.tables, tables, strict=True))
        )
        self.compute.run(copy_in)
        self.compute.mark().wait()
        if self.exchange is not None:
            num_shared = self.exchange.num_rows
            shared = [self.block.vectors[:num_shared], self.block.squares[:num_shared]]
            self.exchange.attach(shared, self.compute.run)

    def update_host_items(self) -> None:

        def copy_out() -> None:
            as_tensor(self.items.outputs.vectors).copy_(self.block.vectors)
            as_tensor(self.items.outputs.squares).copy_(self.block.squares)

        self.compute.run(copy_out)
        self.compute.mark().wait()

    def train(self, visit: Visit) -> Iterator[Ended]:
        visit.resident.landed = threading.Event()
        if visit.num_users == 0:
            yield from self.settle()
            yield Ended(visit, np.zeros((0, self.config.interest_size), np.float32), is_finite=True)
            return
        if self._staged is None or self._staged.visit is not visit:
            yield from self.settle()
            self._staged = self._stage(visit)
        flight, self._staged = self._staged, None
        self._begin(flight)
        if self.path is not None:  # on the host, while the device trains
            self.path.train(visit.work, visit)
        yield from self.settle()
        self._send_home(flight)
        self._flying = flight

    def stage(self, visit: Visit) -> None:
        if visit.num_users:
            self._staged = self._stage(visit)

    def settle(self) -> Iterator[Ended]:
        flight = self._flying
        if flight is None:
            return
        flight.landed.wait()
        if before := self._before:  # idle time counts as stall, unless the host counted it as waiting for the disk
            idle = flight.started.seconds_since(before.ended) - (flight.waited_seconds - before.waited_seconds)
            self.record.stall_seconds += max(0.0, idle)
            self._idle_seconds += max(0.0, idle)
        self._before, self._flying = flight, None
        self.items.outputs.vectors[flight.sampled] = self.memory.landed_sample[: len(flight.sampled)]
        yield Ended(flight.visit, self._host_vectors(flight.visit), bool(np.isfinite(self.memory.landed_bounds).all()))

    def close(self) -> None:
        """Wait for the copies in progress, which need their memory, then release it."""
        if self._flying is not None and self._flying.visit.resident.landed is not None:
            self._flying.visit.resident.landed.set()
        for stream in (self.ahead, self.compute, self.home):
            stream.mark().wait()
        self.pinned.release()

    def _stage(self, visit: Visit) -> Flight:
        """Begin to copy a visit to the free place. Its users' rows and its arrays are on the host."""
        place = next(place for place in self.memory.places if self._flying is None or self._flying.place is not place)
        if self._uploaded is not None:
            self._uploaded.wait()  # until then the device reads the tray
        resident, work, sampled = visit.resident, visit.work, visit.sample.item_rows()
        self.pinned.pin(resident.place.users if resident.place else resident.image.pages)
        arrays: dict[str, NDArray[Any]] = {
            "starts": work.starts, "ends": work.ends, "hashes": work.hashes.view(np.int64), "order": work.order,
            "alphas": work.alphas, "tokens": work.tokens, "sampled": sampled,
            "streams": work.streams if work.has_tiles else work.order[:1],
        }  # fmt: skip
        for name, array in arrays.items():
            self.memory.tray[name][: len(array)] = array
        lengths = {name: len(array) for name, array in arrays.items()}
        self.ahead.run(lambda: self._copy_in(place, resident.rows, lengths))
        self._uploaded = self.ahead.mark()
        return Flight(visit, place, sampled, lengths["streams"] - 1, self._uploaded)

    def _begin(self, flight: Flight) -> None:
        work, place, num_users = flight.visit.work, flight.place, flight.visit.num_users
        starts, ends, hashes, order, alphas = (
            place.arrays[name][:num_users] for name in ("starts", "ends", "hashes", "order", "alphas")
        )
        tokens = place.arrays["tokens"][: len(work.tokens)]
        streams = place.arrays["streams"][: flight.num_streams + 1]
        device_pass = DevicePass(
            work.config,
            tokens,
            starts,
            ends,
            hashes,
            order,
            alphas,
            streams,
            self.sampling,
            work.recency,
            work.epoch_key,
        )
        rows = DeviceRows(place.rows.vectors[:num_users], place.rows.squares[:num_users])
        flight.waited_seconds = self.record.stall_seconds + self.record.commit_stall_seconds - self._idle_seconds
        self.compute.after(flight.uploaded)
        flight.started = self.compute.mark()

        def launch_parts() -> None:
            for part in device_pass.parts(self.largest.launch):
                self.launch(rows, self.block, part, self.memory.scratch)

        self.compute.run(launch_parts)
        if self._flying is not None:
            self.compute.after(self._flying.landed)  # until then the home stream reads sample and bounds
        self.compute.run(lambda: self._gather_measured(rows, place.arrays["sampled"][: len(flight.sampled)]))
        flight.ended = self.compute.mark()

    def _send_home(self, flight: Flight) -> None:
        self.home.after(flight.ended)
        self.home.run(lambda: self._copy_out(flight))
        flight.landed = self.home.mark()

    def _host_vectors(self, visit: Visit) -> NDArray[np.float32]:
        """Return the host array that receives a visit's vectors: the resident's own, or a buffer to round from."""
        if self.config.dtype == "bfloat16":
            return self.memory.landed_vectors[: visit.num_users]
        return visit.resident.rows.vectors

    def _copy_in(self, place: Place, rows: Rows, lengths: dict[str, int]) -> None:
        for name, length in lengths.items():
            place.arrays[name][:length].copy_(as_tensor(self.memory.tray[name][:length]), non_blocking=True)
        num_users = len(rows.squares)
        vectors = place.rows.vectors[:num_users]
        place.rows.squares[:num_users].copy_(as_tensor(rows.squares), non_blocking=True)
        if self.config.dtype == "bfloat16":
            halves = self.memory.halves[:num_users]
            halves.copy_(as_tensor(rows.vectors), non_blocking=True)
            vectors.view(torch.int32).copy_(halves).bitwise_left_shift_(16)  # as trainer.model.rows.widen
        else:
            vectors.copy_(as_tensor(rows.vectors), non_blocking=True)

    def _gather_measured(self, rows: DeviceRows, sampled: torch.Tensor) -> None:
        """Copy the values for the curve and the check for finite numbers, before the next visit changes the items."""
        torch.index_select(self.block.vectors, 0, sampled, out=self.memory.sample[: len(sampled)])
        torch.stack(torch.aminmax(rows.vectors), out=self.memory.bounds)

    def _copy_out(self, flight: Flight) -> None:
        """Copy the users' rows and the results of `_gather_measured` to the host."""
        visit, rows, num_sampled = flight.visit, flight.place.rows, len(flight.sampled)
        for host, device in (
            (self._host_vectors(visit), rows.vectors[: visit.num_users]),
            (visit.resident.rows.squares, rows.squares[: visit.num_users]),
            (self.memory.landed_sample[:num_sampled], self.memory.sample[:num_sampled]),
            (self.memory.landed_bounds, self.memory.bounds),
        ):
            as_tensor(host).copy_(device, non_blocking=True)
