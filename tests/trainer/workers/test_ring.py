"""Blocks that go round the workers: everyone trains each once a round, and what they changed stays."""

import numpy as np
import pytest

from tests.together import Threads
from trainer.store.images import Image, make_image
from trainer.system.pages import Bytes
from trainer.workers.group import Workers
from trainer.workers.ring import Ring


def make_block(block: int, spare: Bytes | None) -> Image:
    """A block is larger the higher its number."""
    return make_image({"outputs": (np.float32, (1 + block, 2))}, spare)


def read_block(block: int) -> Image:
    image = make_block(block, None)
    image.arrays["outputs"][:] = 0
    return image


@pytest.mark.parametrize(("num_workers", "held"), [(2, 1), (2, 2), (3, 1), (3, 2)])
def test_every_worker_has_every_block_once_a_round(num_workers: int, held: int) -> None:
    num_blocks, rounds = num_workers * held, 3

    def work(workers: Workers) -> tuple[list[int], dict[int, np.ndarray], int]:
        ring = Ring(workers, num_blocks, read_block, make_block)
        first = [(workers.rank * held + ahead) % num_blocks for ahead in range(held)]
        block, image = first[0], ring.begin(first)
        seen = []
        for _ in range(rounds * num_blocks):
            seen.append(block)
            image.arrays["outputs"][:, workers.rank % 2] += 1
            block, image = ring.turn()
        return seen, {block: image.arrays["outputs"].copy() for block, image in ring.settle()}, ring.passed_bytes

    told = Threads(num_workers).run(work)
    for seen, *_ in told:
        assert all(sorted(seen[n : n + num_blocks]) == list(range(num_blocks)) for n in range(0, len(seen), num_blocks))
    ended = {block: rows for _, held_blocks, _ in told for block, rows in held_blocks.items()}
    assert sorted(ended) == list(range(num_blocks))
    for block, rows in ended.items():
        assert rows.shape == (1 + block, 2)
        assert (rows.sum(axis=1) == rounds * num_workers).all()
    assert all(passed > 0 for *_, passed in told)
