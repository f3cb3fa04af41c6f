"""The places in memory that hold chunks of user vectors: admit, evict, prefetch, write behind, commit.

While one chunk trains, a thread reads the next and another writes the last. All writing is done by that one thread, in
order: what is evicted, then a commit, then what is evicted after it. So a commit is a moment, although training goes on
while it is written: it waits only where it would change what has not been written yet.
"""

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.kernels.first_rows import at_rest, begin_users
from trainer.model.rows import Rows
from trainer.store.images import Image, Shapes, make_image
from trainer.store.layout import rows_in
from trainer.store.tokens import Corpus, Histories
from trainer.store.writer import Writer
from trainer.system.pages import Bytes, make_pages
from trainer.training.background import Background
from trainer.training.item_slots import Blocks, ItemSlots
from trainer.workers.joint_commit import commit_together

BEGIN_ROWS = 1024


@dataclass(frozen=True)
class Place:
    """Where a micro-partition that comes and goes is in memory: the image of its users' file, and its tokens."""

    users: Bytes
    tokens: Bytes


@dataclass
class Resident:
    """A micro-partition in memory: the image of its file, its histories, and whether the disk is behind.

    place: where it is, for the next one; None where all stay. writing: its write under way, before whose end it must not change;
    landed: set once its rows are back from the device and `is_dirty` is right, before which they must not be written.
    """

    image: Image
    histories: Histories
    place: Place | None
    is_dirty: bool = False
    writing: Future[None] | None = None
    landed: threading.Event | None = None

    @property
    def rows(self) -> Rows:
        return rows_in(self.image)


class Slots:
    """What is in memory. Users come from the writer's files, or begin at random where there is none.

    items: the places of item blocks. place_bytes: the sizes of a place for a micro-partition that comes and goes, of its users
    and of its tokens; None where all stay.
    """

    def __init__(
        self, corpus: Corpus, writer: Writer, items: ItemSlots, background: Background, place_bytes: tuple[int, int] | None
    ) -> None:  # fmt: skip
        self.corpus, self.writer, self.items, self.background = corpus, writer, items, background
        self.place_bytes, self.record = place_bytes, background.record
        self.residents: dict[int, Resident] = {}
        self._free: list[Place] = []
        self._reads: dict[int, Future[Resident]] = {}
        self._writes: dict[int, Future[None]] = {}
        self._committing: Future[None] | None = None

    def prefetch(self, partitions: list[int]) -> None:
        """Begin to read these micro-partitions in the background."""
        for partition in partitions:
            if partition not in self.residents and partition not in self._reads:
                self._reads[partition] = self.background.read(self._read, partition)

    def admit(self, partition: int) -> Resident:
        """The micro-partition in memory, free to change; waits while it is still being read or written."""
        with self.background.stall():
            if partition not in self.residents:
                self.prefetch([partition])
                self.residents[partition] = self._reads.pop(partition).result()
            resident = self.residents[partition]
            if resident.writing is not None:
                resident.writing.result()
                resident.writing = None
        return resident

    def evict(self, partitions: list[int]) -> None:
        """Take these micro-partitions out of memory; those that changed are written in the background."""
        with self.background.stall():  # no more than one chunk is being written: the third slot
            for write in self._writes.values():
                write.result()
        self._writes.clear()
        for partition in partitions:
            resident = self.residents.pop(partition)
            self._writes[partition] = self.background.write(self._write_evicted, partition, resident)

    def commit(self, values: dict[str, Any]) -> None:
        """Begin to make a generation of everything as it is now: what changed, then the manifest with `values`."""
        self.wait_for_commit()
        started = time.perf_counter()
        for partition, resident in self.residents.items():
            if resident.is_dirty:
                resident.is_dirty = False
                resident.writing = self.background.write(self._write, partition, resident.image)
        self._committing = self.background.write(self._commit, self.items.copy(), values)
        self.record.commit_stall_seconds += time.perf_counter() - started

    def wait_for_commit(self) -> None:
        """Wait until the generation that was begun last is on disk. Raises what kept it from that."""
        if self._committing is not None:
            started = time.perf_counter()
            self._committing.result()
            self._committing = None
            self.record.commit_stall_seconds += time.perf_counter() - started

    def check(self) -> None:
        """Raise what went wrong in the background since, if anything did."""
        self.background.check()

    def close(self) -> None:
        """End the threads. What was not committed is not kept."""
        self.background.close()

    def _read(self, partition: int) -> Resident:
        if write := self._writes.get(partition):  # evicted a moment ago, and wanted again by the next epoch
            write.result()
        place = self._take_place()
        histories = self.corpus.read(partition, place.tokens if place else None)
        pages = place.users if place else None
        if self.writer.has_users(partition):
            image = self.writer.read_users(partition, pages)
            self.record.bytes_read += image.num_bytes
        else:
            image = begin_image(self.items.blocks.config, histories.hashes, pages)
        return Resident(image, histories, place)

    def _take_place(self) -> Place | None:
        """A place that is free, or a new one; none where all stay."""
        if self.place_bytes is None:
            return None
        return self._free.pop() if self._free else Place(*map(make_pages, self.place_bytes))

    def _write(self, partition: int, image: Image) -> None:
        self.writer.write_users(partition, image)
        self.record.bytes_written += image.num_bytes

    def _write_evicted(self, partition: int, resident: Resident) -> None:
        """Comes after the commits begun before: what they write is on disk when this is done."""
        if resident.landed is not None:
            resident.landed.wait()
        if resident.is_dirty:
            self._write(partition, resident.image)
        if resident.place is not None:
            self._free.append(resident.place)

    def _commit(self, copies: Blocks, values: dict[str, Any]) -> None:
        def write_last() -> None:
            self.check()  # a generation without one of its files must not be
            self.items.write(copies)

        commit_together(self.writer, self.items.workers, values, write_last)
        self.items.free(copies)


def begin_image(config: TrainConfig, hashes: NDArray[np.uint64], spare: Bytes | None) -> Image:
    """The image of users who begin; made from a few rows at a time, so that it is all the memory it takes."""
    dtype = np.float32 if config.dtype == "float32" else np.uint16
    shapes: Shapes = {"vectors": (dtype, (len(hashes), config.vector_size)), "squares": (np.float32, (len(hashes),))}
    image = make_image(shapes, spare)
    rows = rows_in(image)
    for start in range(0, len(hashes), BEGIN_ROWS):
        some = slice(start, start + BEGIN_ROWS)
        begun = at_rest(config, -1, hashes[some], begin_users(config, hashes[some]))
        rows.vectors[some], rows.squares[some] = begun.vectors, begun.squares
    return image
