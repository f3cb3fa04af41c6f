"""Which rows an item block has, and that tokens find them."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.model import objectives
from surf2vec.trainer.plan.sizes import DEALING_BYTES_PER_ITEM, MAKING_BYTES_PER_ROW
from surf2vec.trainer.store.tokens import Histories
from surf2vec.trainer.training.item_blocks import ItemBlocks


@given(st.lists(st.integers(0, 50), min_size=4, max_size=60), st.integers(2, 4), st.integers(2, 8))
def test_every_token_is_learned_in_one_block_at_the_row_of_its_item(
    counts: list[int], num_blocks: int, shared_part: int
) -> None:
    tokens = np.arange(len(counts), dtype=np.int32)[::-1]
    none, ends = np.zeros(1, np.uint64), np.array([len(counts)])
    histories = Histories(none, tokens, np.array([0, len(counts)]), ends, np.zeros(1, bool))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objectives, "SHARED_PART", shared_part)
        blocks = ItemBlocks(TrainConfig(sample=0), np.array(counts), num_blocks)
        num_shared = blocks.num_shared_rows
        assert num_shared <= len(counts) // shared_part
        num_learned = np.zeros(len(counts), dtype=int)
        shared = None
        for block in range(num_blocks):
            rows, keep = blocks.rows(block), blocks.targets(block).sampling.keep
            assert rows is not None
            assert (
                len(rows) == blocks.num_rows(block) == len(blocks.first_items(block).outputs.vectors) == len(keep) - 1
            )
            assert shared is None or (rows[:num_shared] == shared).all()
            shared = rows[:num_shared]
            own = blocks.histories(histories, block).tokens
            is_learned = keep[own] > 0
            np.testing.assert_array_equal(rows[own[is_learned]], tokens[is_learned])
            num_learned[tokens[is_learned]] += 1
    assert (num_learned == 1).all()
    assert shared is not None
    others = np.setdiff1d(np.arange(len(counts)), shared)
    assert num_shared == 0 or min(np.array(counts)[shared]) >= max(np.array(counts)[others])


def test_one_block_is_the_table() -> None:
    blocks = ItemBlocks(TrainConfig(), np.arange(100), 1)
    assert blocks.rows(0) is None
    assert blocks.num_shared_rows == 0
    assert replace(blocks, config=TrainConfig(hs=1)).num_shared_rows == 0


def block_loads(blocks: ItemBlocks) -> np.ndarray:
    """The tokens that are learned in each block in an epoch, float64[B]."""
    block_of = blocks.cut.class_blocks if blocks.cut else blocks._dealt
    return np.bincount(block_of, blocks._loads, blocks.num_blocks)


def test_blocks_have_as_many_tokens_to_learn() -> None:
    """Zipf's law, in any order; with a tree, too, whose rows are dealt about evenly as well."""
    counts = np.random.default_rng(0).permutation((10**7 / np.arange(1, 20_001)).astype(np.int64))
    for settings in ({}, {"hs": 1}):
        for num_blocks in (2, 7):
            loads = block_loads(ItemBlocks(TrainConfig(**settings), counts, num_blocks))
            assert loads.max() < 1.02 * loads.mean(), (settings, num_blocks)
    two_level = ItemBlocks(TrainConfig(hs=1, tree="two_level"), counts, 7)
    heaviest = np.sort(two_level.counts)[-142:].sum()  # its items are one subtree
    assert block_loads(two_level).max() <= heaviest


def test_the_tables_of_a_block_are_made_in_what_the_plan_counts() -> None:
    blocks = ItemBlocks(TrainConfig(), np.maximum(1, 10**6 // np.arange(1, 200_001)), 4)
    blocks.targets(0)  # items are dealt to blocks once
    tracemalloc.start()
    blocks.targets(1)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.9 < peak_bytes / (MAKING_BYTES_PER_ROW * blocks.num_rows(1)) <= 1


def test_what_is_kept_of_every_item_is_what_the_plan_counts() -> None:
    num_items = 200_000
    one = Histories(np.zeros(1, np.uint64), np.zeros(1, np.int32), np.array([0, 1]), np.ones(1, int), np.zeros(1, bool))
    tracemalloc.start()
    blocks = ItemBlocks(TrainConfig(), np.maximum(1, 10**6 // np.arange(1, num_items + 1)), 4)
    blocks.targets(0)
    blocks.histories(one, 0)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes <= DEALING_BYTES_PER_ITEM * num_items
