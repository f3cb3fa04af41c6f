"""The engine for a GPU: the item block stays on the device; users are copied in before their pass and out after it.

One stream copies the next micro-partition in, one trains, one copies out what was trained. They wait for events, never for the
complete device; trainer/README.md has a picture. There are two buffers: one is trained, while the other is copied out, and then
in. Users are copied directly from and to the pinned image of their file. Of a pass the host sees only what the curve measures;
items are copied to it before a commit or a change of block. On a CPU (Triton's interpreter) the same steps run one after the
other (trainer/kernels/device.py).
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.kernels.device import DeviceRecord, Event, PinnedPages, Stream, as_tensor, copy_back, on_device
from surf2vec.trainer.model.rows import Items
from surf2vec.trainer.training.curve import Targets
from surf2vec.trainer.training.device_memory import Buffers, DeviceMemory, MaxSizes
from surf2vec.trainer.training.engine import Engine, FinishedPass
from surf2vec.trainer.training.record import Record
from surf2vec.trainer.training.schedule import PartitionPass
from surf2vec.trainer.training.trail_slot import TrailSlot
from surf2vec.trainer.workers.exchange import Exchange


@dataclass
class DevicePass:
    """A pass on the device, and the events of its progress.

    lengths: of its arrays, by name; trail_rows int64[S, 1 + K]: what the trail's sample scores. copied_in: it is on the device;
    started, ended: its training; copied_out: the host has its users and results. waited_seconds: the host's waiting time before.
    """

    partition_pass: PartitionPass
    buffers: Buffers
    lengths: dict[str, int]
    trail_rows: np.ndarray
    copied_in: Event = field(init=False)
    started: Event = field(init=False)
    ended: Event = field(init=False)
    copied_out: Event = field(init=False)
    waited_seconds: float = 0.0


class DeviceEngine(Engine):
    """Trains on a device, one micro-partition after the other; exchange: with the other workers, between passes.

    Raises ResourceError when an item block and the micro-partitions do not fit the device.
    """

    looks_ahead = True

    def __init__(
        self, kernel: Kernel, config: TrainConfig, sizes: MaxSizes, record: Record, parts: list[TrailSlot],
        exchange: Exchange | None = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel, config, parts, exchange)
        assert kernel.device is not None, "the engine of a device was chosen without one"
        self.gpu, self.device, self.record = kernel.gpu, kernel.device, record
        self.into, self.compute, self.out = (Stream(self.device) for _ in range(3))
        self.pinned = PinnedPages(self.device)
        self.trails: list[DeviceRecord] = []  # on the device; of `parts`
        try:
            self.memory = DeviceMemory(self.device, config, sizes, self.pinned)
            if sizes.has_trail:
                self.trails = [on_device(part.items, self.device, **vars(part.tables)) for part in parts]
        except torch.OutOfMemoryError as error:
            raise ResourceError(
                f"the GPU does not hold {sizes.items:,} item rows and 2 micro-partitions of up to {sizes.users:,} users and "
                f"{sizes.tokens:,} tokens within its budget: raise --device-memory or store.partitions ({error})"
            ) from None
        self.block: DeviceRecord
        self.sampling: DeviceRecord
        self._staged: DevicePass | None = None
        self._running: deque[DevicePass] = deque()
        self._before: DevicePass | None = None
        self._idle_seconds = 0.0

    def admit_block(self, items: Items, targets: Targets) -> None:
        """Copy an item block and its tables to the device, replacing the previous block."""
        self.items, memory, outputs, sampling = items, self.memory, items.outputs, vars(targets.sampling)
        num_rows = len(outputs.squares)
        self.block = DeviceRecord(vectors=memory.outputs.vectors[:num_rows], squares=memory.outputs.squares[:num_rows])
        self.sampling = DeviceRecord(**{name: memory.tables[name][: len(table)] for name, table in sampling.items()})

        def copy_in() -> None:
            for tensors, arrays in ((vars(self.block), vars(outputs)), (vars(self.sampling), sampling)):
                for name, tensor in tensors.items():
                    tensor.copy_(as_tensor(arrays[name]))

        self.compute.run(copy_in)
        if self.exchange is not None:
            on_host = () if self.trails else [part.items for part in self.parts]
            self.exchange.attach(self.block, [], [*self.trails, *on_host], self.compute.run)
        self.compute.mark().wait()

    def update_host(self) -> None:
        def copy_out() -> None:
            copy_back(self.block, self.items.outputs)
            for trail, part in zip(self.trails, self.parts, strict=False):
                copy_back(trail, part.items)

        self.compute.run(copy_out)
        self.compute.mark().wait()

    def is_training(self, partition: int) -> bool:
        return any(running.partition_pass.partition == partition for running in self._running)

    def stage(self, partition_pass: PartitionPass) -> None:
        """Begin to copy a pass to the buffers that are free."""
        if partition_pass.num_users == 0:
            return
        if self._running:
            self._running[-1].copied_in.wait()  # until then the device reads the tray
        taken = [running.buffers for running in self._running]
        buffers = next(buffers for buffers in self.memory.buffers if buffers not in taken)
        resident, work = partition_pass.resident, partition_pass.work
        users, items = partition_pass.sample.rows()
        names = ("tokens", "starts", "ends", "hashes", "order", "alphas", "streams")
        arrays = {name: getattr(work, name) for name in names}
        arrays |= {"sampled_items": items, "sampled_users": users}
        trail_rows = np.empty((0, 0), np.int64)
        for part in self.parts if self.trails else ():
            starts, places, trail_rows = part.draw(partition_pass.sample, resident.histories)
            arrays |= {"trail_starts": starts, "trail_places": places, "trail_rows": trail_rows.ravel()}
        lengths = {name: len(array) for name, array in arrays.items()}
        self.memory.fill_tray(arrays)
        self.into.run(lambda: self.memory.copy_tray(buffers, lengths))
        self.pinned.pin(resident.pages.users if resident.pages else resident.image.pages)
        self.into.run(lambda: buffers.copy_in(resident.rows))
        self._staged = DevicePass(partition_pass, buffers, lengths, trail_rows)
        self._staged.copied_in = self.into.mark()

    def train(self, partition_pass: PartitionPass) -> Iterator[FinishedPass]:
        if partition_pass.num_users == 0:
            yield from self._finish_but(0)
            yield FinishedPass(partition_pass)
            return
        if self._staged is None or self._staged.partition_pass is not partition_pass:
            yield from self._finish_but(0)
            self.stage(partition_pass)
        partition_pass.resident.copied_back = threading.Event()  # only now: an earlier pass has set the last one
        assert self._staged is not None, "no pass over a micro-partition was staged on the device"
        running, self._staged = self._staged, None
        self._running.append(running)
        running.waited_seconds = self.record.stall_seconds + self.record.commit_stall_seconds - self._idle_seconds
        arrays = {name: running.buffers.arrays[name][:length] for name, length in running.lengths.items()}
        work = DeviceRecord(**vars(partition_pass.work) | arrays | {"sampling": self.sampling})
        self.compute.after(running.copied_in)
        running.started = self.compute.mark()
        self.compute.run(lambda: self._launch(running, work))
        running.ended = self.compute.mark()
        self.out.after(running.ended)
        self.out.run(lambda: running.buffers.copy_out(partition_pass.resident.rows))
        running.copied_out = self.out.mark()
        if not self.trails:  # on the host, while the device trains
            self.train_parts(partition_pass, partition_pass.work)
        yield from self._finish_but(1)

    def settle(self) -> Iterator[FinishedPass]:
        yield from self._finish_but(0)

    def close(self) -> None:
        """Wait for the copies in progress, which need their memory, then release it. A card that failed copies nothing."""
        for running in self._running:
            running.partition_pass.resident.release()
        with suppress(RuntimeError):
            for stream in (self.into, self.compute, self.out):
                stream.mark().wait()
        self.pinned.release()

    def _launch(self, running: DevicePass, work: DeviceRecord) -> None:
        """Train the users, keep what the curve measures before others change it, and round the users for storage."""
        done, buffers, lengths = running.partition_pass, running.buffers, running.lengths
        rows = buffers.first_rows(done.num_users)
        self.gpu.launch(rows, self.block, work, buffers.scratch)
        for trail in self.trails:
            self.gpu.launch_trail(trail, work, buffers.scratch, done.backward)
            sample = work.trail_starts, work.trail_places, work.trail_rows.view(running.trail_rows.shape)
            self.gpu.score_trail(trail, work, sample, buffers.results["trail_scores"])
        buffers.gather(rows, self.block, lengths["sampled_items"], lengths["sampled_users"])
        if self.memory.has_halves:
            self.gpu.round_users(rows, buffers.halves, work, buffers.scratch)

    def _finish_but(self, most: int) -> Iterator[FinishedPass]:
        """Wait until at most so many passes are in progress, and yield the others."""
        while len(self._running) > most:
            running = self._running[0]
            running.copied_out.wait()
            self._running.popleft()
            if before := self._before:  # idle time counts as stall, unless the host counted it as waiting for the disk
                idle = running.started.seconds_since(before.ended) - (running.waited_seconds - before.waited_seconds)
                self.record.stall_seconds += max(0.0, idle)
                self._idle_seconds += max(0.0, idle)
            self._before = running
            yield self._measure(running)

    def _measure(self, running: DevicePass) -> FinishedPass:
        done, results = running.partition_pass, running.buffers.host_results
        num_items = running.lengths["sampled_items"]
        if not np.isfinite(results["bounds"]).all():
            return FinishedPass(done, is_finite=False)
        items, users = np.split(results["sample"][: num_items + running.lengths["sampled_users"]], [num_items])
        rows, scores = running.trail_rows, results["trail_scores"][: len(running.trail_rows)]
        of_parts = [part.sum_losses(done.sample, rows, scores) for part in self.parts] if self.trails else None
        return self.measure(done, users, items, is_gathered=True, of_parts=of_parts)
