"""The memory of user chunks and item blocks: admit, evict, prefetch, write behind, commit.

While one chunk trains, a thread reads the next and another writes the last. The latter does all writing, in order: evicted
partitions, then a commit, then partitions evicted after it. So a commit is a consistent state, although training continues while
it is written. Training waits only before it changes rows that are not written yet.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.first_rows import at_rest, begin_users
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.store.images import Image, Shapes, image_of, make_image
from surf2vec.trainer.store.layout import image_of_items, items_of, rows_in, shapes_of_items
from surf2vec.trainer.store.tokens import Corpus, Histories
from surf2vec.trainer.store.writer import Writer
from surf2vec.trainer.system.memory import Bytes, make_pages
from surf2vec.trainer.training.curve import Sample
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.training.record import Record
from surf2vec.trainer.training.trail_slot import TrailSlot
from surf2vec.trainer.workers.group import Workers, commit_together

BEGIN_ROWS = 1024

Blocks = list[tuple[int, Image]]
"""Item blocks with their numbers."""


class SlotPages(NamedTuple):
    """Reusable memory of a micro-partition: for the image of its users' file, and for its tokens."""

    users: Bytes
    tokens: Bytes


@dataclass
class Resident:
    """A micro-partition in memory: the image of its file, its histories, and whether it has unwritten changes.

    pages: its memory, which the next one reuses; None if all stay. writing: its write in progress, before whose end it must
    not change. copied_back: set when its rows are back from the device and `is_dirty` is valid; only then they may be written.
    sample: the last item block whose sample was drawn, and the sample.
    """

    image: Image
    histories: Histories
    pages: SlotPages | None
    is_dirty: bool = False
    writing: Future[None] | None = None
    copied_back: threading.Event | None = None
    sample: tuple[int, Sample] | None = None

    @property
    def rows(self) -> Rows:
        return rows_in(self.image)

    def release(self) -> None:
        """Allow a thread that waits for the rows to write them."""
        if self.copied_back is not None:
            self.copied_back.set()


class Background:
    """Two background threads: one reads ahead, the other writes behind, each in order.

    The training waits for them only if it needs their result. The record counts this time as stall.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self._failure: Exception | None = None
        self.reader = ThreadPoolExecutor(1, "prefetch")
        self._writer = ThreadPoolExecutor(1, "write-behind")

    def write(self, work: Callable[..., None], *arguments: Any) -> Future[None]:
        """Begin to write. `check` raises its error, if any."""

        def keep_failure() -> None:
            try:
                work(*arguments)
            except Exception as error:
                self._failure = error
                raise

        return self._writer.submit(keep_failure)

    @contextmanager
    def stall(self, kind: str = "stall_seconds") -> Iterator[None]:
        """Add the time of the block to a field of the record: "stall_seconds" or "commit_stall_seconds"."""
        started = time.perf_counter()
        yield
        setattr(self.record, kind, getattr(self.record, kind) + time.perf_counter() - started)

    def check(self) -> None:
        """Raise the error of a failed write, if any."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop the threads. Work that has not begun is cancelled."""
        self.reader.shutdown(cancel_futures=True)
        self._writer.shutdown(cancel_futures=True)


class Slots:
    """The micro-partitions in memory. Users come from the writer's files, or begin at random without a file.

    items: the memory of item blocks; parts: the other parts, whose item tables the first worker commits.
    place_bytes: the bytes of reusable memory for a micro-partition's users and for its tokens; None if all stay in memory.
    """

    def __init__(
        self,
        corpus: Corpus,
        writer: Writer,
        items: "ItemSlots",
        parts: Sequence[TrailSlot],
        background: Background,
        place_bytes: tuple[int, int] | None,
    ) -> None:
        self.corpus, self.writer, self.items, self.parts, self.background = corpus, writer, items, parts, background
        self.place_bytes, self.record = place_bytes, background.record
        self.residents: dict[int, Resident] = {}
        self._free: list[SlotPages] = []
        self._reads: dict[int, Future[Resident]] = {}
        self._writes: dict[int, Future[None]] = {}
        self._committing: Future[None] | None = None

    def prefetch(self, partitions: list[int]) -> None:
        for partition in partitions:
            if partition not in self.residents and partition not in self._reads:
                self._reads[partition] = self.background.reader.submit(self._read, partition)

    def admit(self, partition: int) -> Resident:
        """Return the micro-partition in memory, free to change. Waits while it is being read or written."""
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
        """Remove these micro-partitions from memory. Changed ones are written in the background."""
        with self.background.stall():  # at most one chunk is being written, in the third slot
            for write in self._writes.values():
                write.result()
        self._writes.clear()
        for partition in partitions:
            resident = self.residents.pop(partition)
            self._writes[partition] = self.background.write(self._write_evicted, partition, resident)

    def commit(self, values: dict[str, Any]) -> None:
        """Begin to commit the current state: changed files, then the manifest with `values`."""
        self.wait_for_commit()
        with self.background.stall("commit_stall_seconds"):
            for partition, resident in self.residents.items():
                if resident.is_dirty:
                    resident.is_dirty = False
                    resident.writing = self.background.write(self._write, partition, resident.image)
            tables = {part.name: part.copy() for part in self.parts} if self.items.workers.is_first else {}
            self._committing = self.background.write(self._commit, self.items.copy(), tables, values)

    def wait_for_commit(self) -> None:
        """Wait until the last commit is on disk. Raises its error, if any."""
        if self._committing is not None:
            with self.background.stall("commit_stall_seconds"):
                self._committing.result()
            self._committing = None

    def _read(self, partition: int) -> Resident:
        if write := self._writes.get(partition):  # just evicted, and needed again in the next epoch
            write.result()
        pages = None
        if self.place_bytes is not None:
            pages = self._free.pop() if self._free else SlotPages(*map(make_pages, self.place_bytes))
        histories = self.corpus.read(partition, pages.tokens if pages else None)
        spare = pages.users if pages else None
        if self.writer.has("users", partition):
            image = self.writer.read("users", partition, spare)
            self.record.bytes_read += image.num_bytes
        else:
            image = begin_image(self.items.blocks.config, histories.hashes, spare)
        return Resident(image, histories, pages)

    def _write(self, partition: int, image: Image) -> None:
        self.writer.write("users", partition, image)
        self.record.bytes_written += image.num_bytes

    def _write_evicted(self, partition: int, resident: Resident) -> None:
        """Write an evicted micro-partition. Earlier commits are on disk when this is done."""
        if resident.copied_back is not None:
            resident.copied_back.wait()
        if resident.is_dirty:
            self._write(partition, resident.image)
        if resident.pages is not None:
            self._free.append(resident.pages)

    def _commit(self, copies: Blocks, tables: dict[str, Image], values: dict[str, Any]) -> None:
        def write_last() -> None:
            self.background.check()  # a failed write must prevent the commit
            self.items.write(copies)
            for part, image in tables.items():
                self.writer.write(part, 0, image)
                self.record.bytes_written += image.num_bytes

        commit_together(self.writer, self.items.workers, values, write_last)


def begin_image(config: TrainConfig, hashes: NDArray[np.uint64], spare: Bytes | None) -> Image:
    """Return the image of untrained users. Made a few rows at a time, it takes no further memory."""
    dtype = np.float32 if config.dtype == "float32" else np.uint16
    hashes = hashes if config.interest_size else hashes[:0]  # a trail that stands alone has nothing for a user
    shapes: Shapes = {"vectors": (dtype, (len(hashes), config.interest_size)), "squares": (np.float32, (len(hashes),))}
    image = make_image(shapes, spare)
    rows = rows_in(image)
    for start in range(0, len(hashes), BEGIN_ROWS):
        some = slice(start, start + BEGIN_ROWS)
        begun = at_rest(config, -1, hashes[some], begin_users(config, hashes[some]))
        rows.vectors[some], rows.squares[some] = begun.vectors, begun.squares
    return image


class ItemSlots:
    """The item blocks in memory: the trained one, the next being read, and the last being written.

    They come from the writer's files, or begin untrained. block: the trained one, -1 before the first. shared_from: the block
    whose file has the newest shared rows.
    """

    def __init__(
        self, blocks: ItemBlocks, writer: Writer, background: Background, shared_from: int | None, workers: Workers
    ) -> None:
        self.blocks, self.writer, self.background = blocks, writer, background
        self.shared_from, self.workers = shared_from, workers
        self.block = -1
        self._items: Image
        self._free: list[Bytes] = []
        self._next: Future[Image] | None = None
        self._writing: Future[None] | None = None

    def prefetch(self, block: int) -> None:
        """Begin to read the next item block in the background, after the last one is written."""
        if self._next is None and block != self.block:
            self._next = self.background.reader.submit(self._read, block, self._writing)

    def admit(self, block: int) -> Items:
        """Return the item block in memory, free to change. The previous one is written."""
        if block != self.block:
            image = self._exchange(block)
            self._share_rows(image)
            self._items, self.block = image, block
        return items_of(self._items.arrays)

    def copy(self) -> Blocks:
        """Return copies of the blocks that this worker commits."""
        return [(block, image_of(image.arrays, self._take_pages())) for block, image in self._own()]

    def write(self, images: Blocks) -> None:
        """Write blocks, whose memory the next ones reuse."""
        for block, image in images:
            self.writer.write("interest", block, image)
            self.background.record.bytes_written += image.num_bytes
            self._free.append(image.pages)

    def _own(self) -> Blocks:
        """Return the blocks to commit. If all workers have the table, only the first one commits it."""
        return [(self.block, self._items)] if self.workers.is_first else []

    def _exchange(self, block: int) -> Image:
        """Begin to write the trained block, and wait for the next one."""
        self.prefetch(block)
        with self.background.stall():
            assert self._next is not None, f"block {block} was not prefetched"
            image = self._next.result()
        self._next = None
        if self.block >= 0:
            self._writing = self.background.write(self.write, [(self.block, self._items)])
        return image

    def _share_rows(self, image: Image) -> None:
        """Copy the shared rows into the new block, from the previous block or from its file."""
        num_rows = self.blocks.num_shared_rows
        if self.block >= 0:
            before = self._items
        elif self.shared_from is not None and num_rows:
            before = self.writer.read("interest", self.shared_from)
        else:
            return
        own, newest = items_of(image.arrays).outputs, items_of(before.arrays).outputs
        own.vectors[:num_rows], own.squares[:num_rows] = newest.vectors[:num_rows], newest.squares[:num_rows]

    def _take_pages(self) -> Bytes:
        """Return pages for any block: pages that did not suffice would be in memory until others have their place."""
        if self._free:
            return self._free.pop()
        num_outputs = max(map(self.blocks.num_outputs, range(self.blocks.num_blocks)))
        return make_image(shapes_of_items(num_outputs, self.blocks.config.interest_size, has_rows=True)).pages

    def _read(self, block: int, write_before: Future[None] | None = None) -> Image:
        if write_before is not None:  # its pages are reused for this block
            write_before.result()
        pages = self._take_pages()
        if not self.writer.has("interest", block):
            return image_of_items(self.blocks.first_items(block), self.blocks.rows(block), pages)
        image = self.writer.read("interest", block, pages)
        self.background.record.bytes_read += image.num_bytes
        return image


class RingSlots(ItemSlots):
    """Item blocks that circulate among the workers: each trains one of its few, passes it to the previous worker, and receives
    one from the next worker. No row has two writers, and no block is on two workers.

    With one block, a worker waits for the next one after each turn. With more, blocks are passed while it trains another.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.passed_bytes, self.wait_seconds = 0, 0.0
        self._held: deque[tuple[int, Image]] = deque()
        self._arriving: dict[int, Any] = {}
        self._leaving: tuple[Any, Bytes] | None = None

    def prefetch(self, block: int) -> None:
        """Do nothing: the next block comes from another worker."""

    def _exchange(self, block: int) -> Image:
        """Pass the trained block on, and wait for the next one. The first blocks are read."""
        num_blocks = self.blocks.num_blocks
        num_held = num_blocks // self.workers.num
        if self.block < 0:
            ahead = [(block + turn) % num_blocks for turn in range(num_held)]
            self._held = deque((one, self._read(one)) for one in ahead)
            return self._held[0][1]
        started = time.perf_counter()
        trained, image = self._held.popleft()
        if self._leaving is None:
            spare = self._take_pages()
        else:
            sending, spare = self._leaving
            self.workers.wait(sending)
        coming = (trained + num_held) % num_blocks
        num_outputs, size = self.blocks.num_outputs(coming), self.blocks.config.interest_size
        into = make_image(shapes_of_items(num_outputs, size, has_rows=True), spare)
        sending, self._arriving[coming] = self.workers.pass_on(
            image.pages[: image.num_bytes], into.pages[: into.num_bytes]
        )
        self.passed_bytes += image.num_bytes
        self._leaving = sending, image.pages
        self._held.append((coming, into))
        found, image = self._held[0]
        assert found == block, f"block {found} came from the neighbour where {block} was due"
        self._arrive(block)
        self.wait_seconds += time.perf_counter() - started
        return image

    def _own(self) -> Blocks:
        """Wait for this worker's blocks to arrive, and return them."""
        started = time.perf_counter()
        for block, _ in self._held:
            self._arrive(block)
        self.wait_seconds += time.perf_counter() - started
        return list(self._held)

    def _arrive(self, block: int) -> None:
        if block in self._arriving:
            self.workers.wait(self._arriving.pop(block))
