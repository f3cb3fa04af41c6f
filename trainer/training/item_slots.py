"""The places in memory that hold item blocks: the one that is trained, the next one on its way in, the last one on its way out.

Of several workers that share the table out, blocks go round them instead of to the disk and back.
"""

from concurrent.futures import Future

from trainer.model.rows import Items
from trainer.store.images import Image, image_of, make_image
from trainer.store.layout import image_of_items, items_in, shapes_of_items
from trainer.store.writer import Writer
from trainer.system.pages import Bytes
from trainer.training.background import Background
from trainer.training.item_blocks import ItemBlocks
from trainer.workers.group import Workers
from trainer.workers.ring import Ring

Blocks = list[tuple[int, Image]]
"""Item blocks with their numbers."""


class ItemSlots:
    """The item blocks in memory. They come from the writer's files, or begin at random where there is none.

    block: which one is trained, -1 before the first. shared_from: the item block in whose file the rows that all blocks share are
    as they were left. workers: who trains with this one; is_sharded: whether the blocks go round them.
    """

    def __init__(
        self, blocks: ItemBlocks, writer: Writer, background: Background, shared_from: int | None, workers: Workers,
        is_sharded: bool,
    ) -> None:  # fmt: skip
        self.blocks, self.writer, self.background = blocks, writer, background
        self.shared_from, self.workers = shared_from, workers
        self.ring = Ring(workers, blocks.num_blocks, self._read_first, self._make_block) if is_sharded else None
        self.block = -1
        self._items: Image
        self._free: list[Bytes] = []
        self._next: tuple[int, Future[Image]] | None = None
        self._writing: Future[None] | None = None

    def prefetch(self, block: int) -> None:
        """Begin to read an item block in the background, once the one before is written; of a ring it comes by itself."""
        if self.ring is None and self._next is None and block != self.block:
            self._next = block, self.background.read(self._read, block, self._writing)

    def admit(self, block: int) -> Items:
        """The item block in memory, free to change; the one before is written in the background."""
        if block != self.block and self.ring is not None:
            self._turn_ring(self.ring, block)
        elif block != self.block:
            self.prefetch(block)
            with self.background.stall():
                assert self._next is not None
                wanted, read = self._next
                assert wanted == block
                items = read.result()
            self._share_rows(items)
            if self.block >= 0:
                self._writing = self.background.write(self._write_out, self.block, self._items)
            self._items, self.block, self._next = items, block, None
        return items_in(self._items)

    def copy(self) -> Blocks:
        """Copies of the blocks that this worker commits."""
        return [(block, image_of(image.arrays, self._take_pages())) for block, image in self._own()]

    def write(self, copies: Blocks) -> None:
        """Write what was copied. Called in the background."""
        for block, image in copies:
            self._write(block, image)

    def free(self, copies: Blocks) -> None:
        """Let go of copies that are written."""
        self._free += [image.pages for _, image in copies]

    def _own(self) -> Blocks:
        """The blocks that this worker has; of a table that all workers have the first one commits its own."""
        if self.ring is not None:
            return self.ring.settle()
        return [(self.block, self._items)] if self.workers.is_first else []

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

    def _take_pages(self) -> Bytes | None:
        return self._free.pop() if self._free else None

    def _read(self, block: int, write_before: Future[None] | None) -> Image:
        if write_before is not None:  # its pages are those for this block
            write_before.result()
        pages = self._take_pages()
        if block not in self.writer.items:
            return image_of_items(self.blocks.first_items(block), self.blocks.rows(block), pages)
        image = self.writer.read_items(block, pages)
        self.background.record.bytes_read += image.num_bytes
        self.blocks.check(block, image.arrays.get("rows"), self.writer.folder)
        return image

    def _read_first(self, block: int) -> Image:
        return self._read(block, None)

    def _make_block(self, block: int, spare: Bytes | None) -> Image:
        """The image of an item block that is on its way from another worker."""
        shapes = shapes_of_items(self.blocks.num_outputs(block), self.blocks.config.vector_size, has_rows=True)
        return make_image(shapes, spare)

    def _write(self, block: int, image: Image) -> None:
        self.writer.write_items(block, image)
        self.background.record.bytes_written += image.num_bytes

    def _write_out(self, block: int, image: Image) -> None:
        self._write(block, image)
        self._free.append(image.pages)
