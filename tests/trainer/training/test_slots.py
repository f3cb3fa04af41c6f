"""The memory of item blocks: what is freed is used again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store import images
from surf2vec.trainer.store.writer import Writer
from surf2vec.trainer.system.memory import PAGE_BYTES
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.training.record import Record
from surf2vec.trainer.training.slots import Background, ItemSlots
from surf2vec.trainer.workers.group import Workers


@pytest.mark.parametrize("first", [0, 1, 2])
def test_blocks_of_unequal_size_take_the_memory_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """The first block has a row more than the others, and therefore a page: the other's pages would not suffice for it."""
    config = TrainConfig(parts="interest", vector_size=PAGE_BYTES // 4)
    blocks = ItemBlocks(config, np.arange(100, 107), 3)
    assert [blocks.num_rows(block) for block in range(3)] == [3, 2, 2]
    made: list[int] = []

    def count(num_bytes: int) -> Any:
        made.append(num_bytes)
        return make_pages(num_bytes)

    make_pages = images.make_pages
    monkeypatch.setattr(images, "make_pages", count)
    background = Background(Record())
    slots = ItemSlots(blocks, Writer(tmp_path, 1), background, None, Workers())
    epochs = ([0, 1, 2, 2, 1, 0] * 3)[first:]
    for block, following in zip(epochs, [*epochs[1:], 1], strict=True):
        slots.admit(block)
        slots.prefetch(following)
    background.close()
    assert len(made) == 2
