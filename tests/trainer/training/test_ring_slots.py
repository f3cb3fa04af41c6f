"""Blocks that go round the workers: everyone trains each once a round, and what they changed stays."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.plan.sharing import ring_block
from surf2vec.trainer.store.images import Image, make_image
from surf2vec.trainer.store.layout import shapes_of_items
from surf2vec.trainer.training.slots import RingSlots
from surf2vec.trainer.workers.group import Workers
from tests.trainer.workers.thread_group import Threads


class Blocks(RingSlots):
    """A block begins at zero."""

    def _read(self, block: int, write_before: Any = None) -> Image:
        image = make_image(shapes_of_items(self.blocks.num_outputs(block), 2, has_rows=True))
        image.arrays["outputs"][:] = 0
        return image


@pytest.mark.parametrize(("num_workers", "held"), [(2, 1), (2, 2), (3, 1), (3, 2)])
def test_every_worker_has_every_block_once_a_round(num_workers: int, held: int) -> None:
    num_blocks, rounds = num_workers * held, 3
    blocks = SimpleNamespace(
        num_blocks=num_blocks,
        num_shared_rows=0,
        config=TrainConfig(parts="interest", vector_size=2),
        num_outputs=lambda block: 1 + block,  # a block is larger the higher its number
    )

    def work(workers: Workers) -> tuple[dict[int, np.ndarray], int]:
        ring = Blocks(blocks, None, None, None, workers)
        for turn in range(rounds * num_blocks):
            items = ring.admit(ring_block(workers.rank, turn, num_workers, num_blocks))
            items.outputs.vectors[:, workers.rank % 2] += 1
        return {block: image.arrays["outputs"].copy() for block, image in ring.copy()}, ring.passed_bytes

    told = Threads(num_workers).run(work)
    ended = {block: rows for held_blocks, _ in told for block, rows in held_blocks.items()}
    assert sorted(ended) == list(range(num_blocks))
    for block, rows in ended.items():
        assert rows.shape == (1 + block, 2)
        assert (rows.sum(axis=1) == rounds * num_workers).all()
    assert all(passed > 0 for _, passed in told)
