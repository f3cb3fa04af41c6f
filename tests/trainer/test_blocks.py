"""Which rows an item block has, and that tokens find them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer import objectives
from trainer.blocks import ItemBlocks
from trainer.config import TrainConfig
from trainer.corpus import Histories


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
