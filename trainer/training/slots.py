"""The places in memory that hold chunks of user vectors and item blocks: admit, evict, prefetch, write behind, commit.

While one chunk trains, a thread reads the next and another writes the last. All writing is done by that one thread, in
order: what is evicted, then a commit, then what is evicted after it. So a commit is a moment, although training goes on
while it is written: it waits only where it would change what has not been written yet.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.kernels.first_rows import at_rest, begin_users
from trainer.model.rows import Items, Rows
from trainer.store.images import Image, Shapes, image_of, make_image
from trainer.store.layout import image_of_items, items_in, rows_in, shapes_of_items
from trainer.store.tokens import Corpus, Histories
from trainer.store.writer import Writer
from trainer.system.pages import Bytes, make_pages
from trainer.training.item_blocks import ItemBlocks
from trainer.training.record import Record
from trainer.workers.group import ALONE, Workers
from trainer.workers.joint_commit import commit_together
from trainer.workers.ring import Ring

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
    """What is in memory. It comes from the writer's files, or begins at random where there is none.

    record: where waiting and bytes are added up. place_bytes: the sizes of a place for a micro-partition that comes and goes,
    of its users and of its tokens; None where all stay. shared_from: the item block in whose file the rows that all blocks share
    are as they were left. workers: who trains with this one; is_sharded: whether the item blocks go round them, instead of to
    the disk and back.
    """

    def __init__(
        self, corpus: Corpus, writer: Writer, config: TrainConfig, record: Record,
        place_bytes: tuple[int, int] | None, blocks: ItemBlocks,
        shared_from: int | None = None, workers: Workers = ALONE, is_sharded: bool = False,
    ) -> None:  # fmt: skip
        self.corpus, self.writer, self.config = corpus, writer, config
        self.record, self.place_bytes, self.blocks = record, place_bytes, blocks
        self.shared_from, self.workers = shared_from, workers
        self.ring = Ring(workers, blocks.num_blocks, self._read_first, self._make_block) if is_sharded else None
        self.residents: dict[int, Resident] = {}
        self.block = -1
        self._items: Image
        self._free: list[Place] = []
        self._free_blocks: list[Bytes] = []
        self._reads: dict[int, Future[Resident]] = {}
        self._writes: dict[int, Future[None]] = {}
        self._next_block: tuple[int, Future[Image]] | None = None
        self._block_write: Future[None] | None = None
        self._committing: Future[None] | None = None
        self._failure: Exception | None = None
        self._reader = ThreadPoolExecutor(1, "prefetch")
        self._behind = ThreadPoolExecutor(1, "write-behind")

    def prefetch(self, partitions: list[int]) -> None:
        """Begin to read these micro-partitions in the background."""
        for partition in partitions:
            if partition not in self.residents and partition not in self._reads:
                self._reads[partition] = self._reader.submit(self._read, partition)

    def admit(self, partition: int) -> Resident:
        """The micro-partition in memory, free to change; waits while it is still being read or written."""
        with self._stall():
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
        with self._stall():  # no more than one chunk is being written: the third slot
            for write in self._writes.values():
                write.result()
        self._writes.clear()
        for partition in partitions:
            resident = self.residents.pop(partition)
            self._writes[partition] = self._behind.submit(self._write_evicted, partition, resident)

    def prefetch_block(self, block: int) -> None:
        """Begin to read an item block in the background, once the one before is written."""
        if self._next_block is None and block != self.block:
            self._next_block = block, self._reader.submit(self._read_block, block, self._block_write)

    def admit_block(self, block: int) -> Items:
        """The item block in memory, free to change; the one before is written in the background."""
        if block != self.block and self.ring is not None:
            self._turn_ring(self.ring, block)
        elif block != self.block:
            self.prefetch_block(block)
            with self._stall():
                assert self._next_block is not None
                wanted, read = self._next_block
                assert wanted == block
                items = read.result()
            self._share_rows(items)
            if self.block >= 0:
                self._block_write = self._behind.submit(self._write_block, self.block, self._items)
            self._items, self.block, self._next_block = items, block, None
        return items_in(self._items)

    def _turn_ring(self, ring: Ring, block: int) -> None:
        """Pass the item block on to another worker, and take the next one, which is `block`; the first are read."""
        if self.block < 0:
            num_blocks = self.blocks.num_blocks
            items = ring.begin([(block + ahead) % num_blocks for ahead in range(num_blocks // self.workers.num)])
        else:
            found, items = ring.turn()
            assert found == block
        self._share_rows(items)
        self._items, self.block = items, block

    def commit(self, values: dict[str, Any]) -> None:
        """Begin to make a generation of everything as it is now: what changed, then the manifest with `values`."""
        self.wait_for_commit()
        started = time.perf_counter()
        for partition, resident in self.residents.items():
            if resident.is_dirty:
                resident.is_dirty = False
                resident.writing = self._behind.submit(self._write, partition, resident.image)
        copies = [
            (block, image_of(image.arrays, self._free_blocks.pop() if self._free_blocks else None))
            for block, image in self._own_blocks()
        ]
        self._committing = self._behind.submit(self._commit, copies, values)
        self.record.commit_stall_seconds += time.perf_counter() - started

    def _own_blocks(self) -> list[tuple[int, Image]]:
        """The item blocks that this worker commits: those it has; of a table that all have the first worker writes its own."""
        if self.ring is not None:
            return self.ring.settle()
        return [(self.block, self._items)] if self.workers.is_first else []

    def wait_for_commit(self) -> None:
        """Wait until the generation that was begun last is on disk. Raises what kept it from that."""
        if self._committing is not None:
            started = time.perf_counter()
            self._committing.result()
            self._committing = None
            self.record.commit_stall_seconds += time.perf_counter() - started

    def check(self) -> None:
        """Raise what went wrong in the background since, if anything did."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the threads. What was not committed is not kept."""
        self._reader.shutdown(cancel_futures=True)
        self._behind.shutdown(cancel_futures=True)

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
            image = begin_image(self.config, histories.hashes, pages)
        return Resident(image, histories, place)

    def _take_place(self) -> Place | None:
        """A place that is free, or a new one; none where all stay."""
        if self.place_bytes is None:
            return None
        return self._free.pop() if self._free else Place(*map(make_pages, self.place_bytes))

    def _read_block(self, block: int, write_before: Future[None] | None) -> Image:
        if write_before is not None:  # its pages are those for this block
            write_before.result()
        pages = self._free_blocks.pop() if self._free_blocks else None
        if block not in self.writer.items:
            return image_of_items(self.blocks.first_items(block), self.blocks.rows(block), pages)
        image = self.writer.read_items(block, pages)
        self.record.bytes_read += image.num_bytes
        self.blocks.check(block, image.arrays.get("rows"), self.writer.folder)
        return image

    def _read_first(self, block: int) -> Image:
        return self._read_block(block, None)

    def _make_block(self, block: int, spare: Bytes | None) -> Image:
        """The image of an item block that is on its way from another worker."""
        shapes = shapes_of_items(self.blocks.num_outputs(block), self.config.vector_size, has_rows=True)
        return make_image(shapes, spare)

    def _share_rows(self, image: Image) -> None:
        """Bring the rows that all blocks share into the block that comes in: from the one that goes, or from its file."""
        if self.block >= 0:
            before = self._items
        elif self.shared_from is not None and self.blocks.num_shared_rows:
            before = self.writer.read_items(self.shared_from)
        else:
            return
        for mine, theirs in zip(
            vars(items_in(image).outputs).values(), vars(items_in(before).outputs).values(), strict=True
        ):
            mine[: self.blocks.num_shared_rows] = theirs[: self.blocks.num_shared_rows]

    def _write(self, partition: int, image: Image) -> None:
        with self._keep_failure():
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

    def _write_block(self, block: int, image: Image) -> None:
        with self._keep_failure():
            self.writer.write_items(block, image)
            self.record.bytes_written += image.num_bytes
        self._free_blocks.append(image.pages)

    def _commit(self, copies: list[tuple[int, Image]], values: dict[str, Any]) -> None:
        with self._keep_failure():
            commit_together(self.writer, self.workers, values, lambda: self._write_last(copies))
        self._free_blocks += [image.pages for _, image in copies]

    def _write_last(self, copies: list[tuple[int, Image]]) -> None:
        self.check()  # a generation without one of its files must not be
        for block, image in copies:
            self.writer.write_items(block, image)
            self.record.bytes_written += image.num_bytes

    @contextmanager
    def _stall(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.record.stall_seconds += time.perf_counter() - started

    @contextmanager
    def _keep_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failure = error
            raise


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
