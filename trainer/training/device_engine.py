"""The engine for a GPU: the item block stays on the device; users are copied in before their visit and out after it, or stay.

One stream copies the next micro-partition in (`ahead`), one or several train (`compute`), one copies what was trained out
(`home`). They wait for events, never for the complete device. Each visit has a seat, and its users a place; one more than visits
are trained at once suffices, as a further one would be empty while one is copied in. Users are copied directly from and to the
pinned image of their file. Another thread of the host makes the next visit. Of a visit the host sees only what the curve
measures; items, and users who stay, are copied to it before a commit or a change of block.

    ahead     | copy 2 in    |          | copy 3 in    |
    compute   | train 1                 | train 2                 | train 3
    home                     | 0 home   |              | 1 home   |
    the host  | conclude 0              | conclude 1
    its thread| make 2                  | make 3

On a CPU (Triton's interpreter) the same steps run one after the other (trainer/kernels/device.py).
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.kernels.device import (
    Accelerator,
    DevicePass,
    DeviceRows,
    DeviceSampling,
    Event,
    PinnedPages,
    Stream,
    TrailSample,
    as_tensor,
)
from surf2vec.trainer.model.rows import Items
from surf2vec.trainer.training.course import Ended, Visit
from surf2vec.trainer.training.curve import Targets
from surf2vec.trainer.training.device_memory import DeviceMemory, MaxSizes, Place, Seat
from surf2vec.trainer.training.device_trail import DeviceTrailSlot
from surf2vec.trainer.training.engine import Engine
from surf2vec.trainer.training.record import Record
from surf2vec.trainer.training.slots import Resident
from surf2vec.trainer.training.trail_slot import TrailSlot
from surf2vec.trainer.workers.exchange import Exchange


@dataclass
class Flight:
    """A visit on the device, and the events of its progress.

    lengths: of its arrays, by name; trail_sample: on the host, where the device trains the trail; uploaded: it is
    completely on the
    device; started, ended: its training; landed: what the host wants of it is in its memory; waited_seconds: the host's waiting
    time before its beginning.
    """

    visit: Visit
    place: Place
    seat: Seat
    lengths: dict[str, int]
    trail_sample: TrailSample | None
    uploaded: Event
    started: Event = field(init=False)
    ended: Event = field(init=False)
    landed: Event = field(init=False)
    waited_seconds: float = 0.0

    @property
    def rows(self) -> DeviceRows:
        num_users = self.visit.num_users
        return DeviceRows(self.place.rows.vectors[:num_users], self.place.rows.squares[:num_users])

    def device_pass(self, sampling: DeviceSampling) -> DevicePass:
        work, arrays = self.visit.work, self.place.arrays | self.seat.arrays
        starts, ends, hashes, order, alphas = (
            arrays[name][: self.visit.num_users] for name in ("starts", "ends", "hashes", "order", "alphas")
        )
        tokens, streams = arrays["tokens"][: len(work.tokens)], arrays["streams"][: self.lengths["streams"]]
        return DevicePass(
            work.config, tokens, starts, ends, hashes, order, alphas, streams, sampling, work.recency, work.epoch_key
        )

    @property
    def sampled(self) -> tuple[int, int]:
        """Rows of items and of users in its sample."""
        return self.lengths["sampled_items"], self.lengths["sampled_users"]


class DeviceEngine(Engine):
    """Trains visits on a device; exchange: with the other workers, between visits.

    Raises ResourceError when an item block and the micro-partitions do not fit the device.
    """

    looks_ahead = True

    def __init__(
        self, accelerator: Accelerator, config: TrainConfig, largest: MaxSizes, record: Record, trail: TrailSlot | None = None,
        exchange: Exchange | None = None,
    ) -> None:  # fmt: skip
        self.trail, self.exchange = trail, exchange
        self.gpu, self.device = accelerator.gpu, accelerator.device
        self.config, self.record, self.largest = config, record, largest
        self.ahead, self.home, *self.compute = (Stream(self.device) for _ in range(2 + largest.at_once))
        self.pinned = PinnedPages(self.device)
        try:
            self.memory = DeviceMemory(self.device, config, largest, self.pinned)
            self.device_trail = DeviceTrailSlot(trail, accelerator) if trail and largest.has_trail else None
        except torch.OutOfMemoryError as error:
            raise ResourceError(
                f"the GPU does not hold {largest.items:,} item rows and {max(2, len(largest.staying))} micro-partitions of up to "
                f"{largest.users:,} users and {largest.tokens:,} tokens within its budget: raise --device-memory or "
                f"store.partitions ({error})"
            ) from None
        self.block: DeviceRows
        self.sampling: DeviceSampling
        self._thread = ThreadPoolExecutor(1, "visits")
        self._staged: Flight | None = None
        self._flying: deque[Flight] = deque()
        self._before: Flight | None = None
        self._lengths: dict[str, int] = {}
        self._trail_sample: TrailSample | None = None
        self._num_begun = 0
        self._tray_is_free: Event | None = None
        self._ahead_of_host: dict[int, tuple[Place, Resident]] = {}
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
        self.compute[0].run(copy_in)
        self.compute[0].mark().wait()
        if self.exchange is not None:
            num_shared = self.exchange.num_rows
            shared = [self.block.vectors[:num_shared], self.block.squares[:num_shared]]
            self.exchange.attach(shared, self.compute[0].run)

    def update_host(self) -> None:
        staying = list(self._ahead_of_host.values())

        def copy_out() -> None:
            as_tensor(self.items.outputs.vectors).copy_(self.block.vectors)
            as_tensor(self.items.outputs.squares).copy_(self.block.squares)
            if self.device_trail:
                self.device_trail.copy_home()
            for place, resident in staying:
                place.copy_out(resident.rows)

        self.compute[0].run(copy_out)
        self.compute[0].mark().wait()
        self._ahead_of_host.clear()

    def is_training(self, partition: int) -> bool:
        return any(flight.visit.partition == partition for flight in self._flying)

    def prepare(self, make: Callable[[], Visit]) -> Future[Visit]:
        def make_and_fill() -> Visit:
            visit = make()
            if visit.num_users:
                stays = bool(self.largest.staying) and self.memory.places[visit.partition].is_filled
                self._trail_sample = self.device_trail.draw(visit) if self.device_trail else None
                self._lengths = self.memory.fill_tray(visit, not stays, self._trail_sample)
            return visit

        if self._tray_is_free is not None:
            self._tray_is_free.wait()  # until then the device reads it
        return self._thread.submit(make_and_fill)

    def stage(self, visit: Visit) -> None:
        """Begin to copy a visit, whose arrays are in the tray, to a free seat, and its users to their place."""
        if visit.num_users == 0:
            return
        taken = {id(flight.seat) for flight in self._flying}
        index, seat = next(pair for pair in enumerate(self.memory.seats) if id(pair[1]) not in taken)
        place = self.memory.places[visit.partition if self.largest.staying else index]
        lengths = self._lengths
        self.ahead.run(lambda: self.memory.copy_tray(place, seat, lengths))
        self._tray_is_free = self.ahead.mark()
        if not place.is_filled:
            resident = visit.resident
            self.pinned.pin(resident.place.users if resident.place else resident.image.pages)
            self.ahead.run(lambda: place.copy_in(resident.rows))
            place.is_filled = bool(self.largest.staying)
        self._staged = Flight(visit, place, seat, lengths, self._trail_sample, self.ahead.mark())

    def begin(self, visit: Visit) -> Iterator[Ended]:
        visit.resident.landed = threading.Event()
        if visit.num_users == 0:
            return
        if self._staged is None or self._staged.visit is not visit:
            yield from self.settle()
            self.prepare(lambda: visit).result()
            self.stage(visit)
        assert self._staged is not None
        flight, self._staged = self._staged, None
        self._train(flight)
        self._flying.append(flight)

    def train(self, visit: Visit) -> Iterator[Ended]:
        if visit.num_users == 0:
            yield from self.settle()
            nothing = np.zeros((0, self.config.interest_size), np.float32)
            yield Ended(visit, nothing, nothing, is_finite=True)
            return
        if self.trail is not None and self.device_trail is None:  # on the host, while the device trains
            self.trail.train(visit.work, visit)
        yield from self._settle(self.largest.at_once)

    def settle(self) -> Iterator[Ended]:
        yield from self._settle(0)

    def _settle(self, most: int) -> Iterator[Ended]:
        """Wait until at most so many visits are in progress, and yield the others."""
        while len(self._flying) > most:
            flight = self._flying[0]
            flight.landed.wait()
            self._flying.popleft()
            if before := self._before:  # idle time counts as stall, unless the host counted it as waiting for the disk
                idle = flight.started.seconds_since(before.ended) - (flight.waited_seconds - before.waited_seconds)
                self.record.stall_seconds += max(0.0, idle)
                self._idle_seconds += max(0.0, idle)
            if before is None or flight.ended.seconds_since(before.ended) >= 0:
                self._before = flight
            num_items, num_users = flight.sampled
            items, users = np.split(flight.seat.landed_sample[: num_items + num_users], [num_items])
            trail, is_finite = self.device_trail, bool(np.isfinite(flight.seat.landed_bounds).all())
            trail_sums = trail.sum_losses(flight.visit, flight.trail_sample, flight.seat) if trail else None
            yield Ended(flight.visit, users, items, is_finite, is_stored=True, trail_sums=trail_sums)

    def close(self) -> None:
        """Wait for the copies in progress, which need their memory, then release it."""
        self._thread.shutdown(cancel_futures=True)
        for flight in self._flying:
            if flight.visit.resident.landed is not None:
                flight.visit.resident.landed.set()
        for stream in (self.ahead, *self.compute, self.home):
            stream.mark().wait()
        self.pinned.release()

    def _train(self, flight: Flight) -> None:
        """Train a flight, and copy home what the host wants of it."""
        stream = self.compute[self._num_begun % len(self.compute)]
        self._num_begun += 1
        flight.waited_seconds = self.record.stall_seconds + self.record.commit_stall_seconds - self._idle_seconds
        device_pass = flight.device_pass(self.sampling)
        stream.after(flight.uploaded)
        flight.started = stream.mark()
        stream.run(lambda: self._launch(flight, device_pass))
        flight.ended = stream.mark()
        self.home.after(flight.ended)
        self.home.run(lambda: self._copy_out(flight))
        flight.landed = self.home.mark()

    def _launch(self, flight: Flight, device_pass: DevicePass) -> None:
        """Train the users, gather what the curve measures before others change it, and round the users for storage."""
        rows, seat, place = flight.rows, flight.seat, flight.place
        self.gpu.launch(rows, self.block, device_pass, seat.scratch)
        if self.device_trail:
            self.device_trail.train(flight.visit, device_pass, seat, flight.trail_sample)
        seat.gather(rows, self.block, *flight.sampled)
        if self.memory.has_halves:
            self.gpu.round_users(rows, place.halves, device_pass, seat.scratch)
            place.widen(flight.visit.num_users)

    def _copy_out(self, flight: Flight) -> None:
        """Copy what the curve measures to the host, and the users, unless they stay."""
        flight.seat.copy_out(sum(flight.sampled))
        if self.largest.staying:
            self._ahead_of_host[flight.visit.partition] = flight.place, flight.visit.resident
        else:
            flight.place.copy_out(flight.visit.resident.rows)
