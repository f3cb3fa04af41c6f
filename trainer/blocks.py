"""The item table in blocks: which rows a block has, how they begin, and what its tokens are learned against.

With drawn items the most frequent ones are in all blocks, and the others are dealt to blocks in turn; with a tree, blocks
have subtrees, and all the rows above them. With one block all of this is the whole table.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.corpus import Histories
from trainer.curve import Targets
from trainer.objectives import Sampling, block_sampling, make_sampling, shared_items, thinning_alone
from trainer.rows import Items, begin_items
from trainer.tree_cut import Cut, cut_tree
from trainer.trees import Tree, make_tree


@dataclass(frozen=True)
class ItemBlocks:
    """counts int64[V]: how often training sees each item in an epoch."""

    config: TrainConfig
    counts: NDArray[np.int64]
    num_blocks: int

    @cached_property
    def tree(self) -> Tree | None:
        return make_tree(self.config, self.counts)

    @cached_property
    def cut(self) -> Cut | None:
        return cut_tree(self.tree, self.num_blocks) if self.tree and self.num_blocks > 1 else None

    @cached_property
    def _thinning(self) -> Sampling:
        return thinning_alone(self.counts, self.config)

    @cached_property
    def num_shared_rows(self) -> int:
        """Rows, the first ones, that every block has: of a tree those above the cut, otherwise the most frequent items."""
        if self.cut:
            return self.cut.num_shared_rows
        if self.tree or self.num_blocks == 1:
            return 0
        return shared_items(len(self.counts)) // self.num_blocks * self.num_blocks

    @cached_property
    def _numbers(self) -> NDArray[np.int32]:
        """The number of each item when the shared ones come first, int32[V]; number n is dealt to block n modulo B."""
        is_shared = np.zeros(len(self.counts), dtype=bool)
        is_shared[np.argsort(-self.counts, kind="stable")[: self.num_shared_rows]] = True
        numbers = np.empty(len(self.counts), dtype=np.int32)
        numbers[is_shared] = np.arange(self.num_shared_rows)
        numbers[~is_shared] = np.arange(self.num_shared_rows, len(self.counts))
        return numbers

    def rows(self, block: int) -> NDArray[np.uint32] | None:
        """The rows of the table that a block has: the shared ones, then its own, both ascending; None: every one."""
        if self.cut:
            return self.cut.rows(block)
        if self.num_blocks == 1:
            return None
        is_shared = self._numbers < self.num_shared_rows
        own = np.flatnonzero(~is_shared & (self._numbers % self.num_blocks == block))
        return np.concatenate((np.flatnonzero(is_shared), own)).astype(np.uint32)

    def num_rows(self, block: int) -> int:
        """The rows that a block of items has; the first block has the most."""
        return self.num_shared_rows + len(range(block, len(self.counts) - self.num_shared_rows, self.num_blocks))

    def first_items(self, block: int) -> Items:
        """The items of a block as they begin."""
        if self.cut:
            return begin_items(self.config, 0, self.cut.tree_of(block).num_rows)
        num_items = self.num_rows(block)
        return begin_items(self.config, num_items, self.tree.num_rows if self.tree else num_items)

    def targets(self, block: int) -> Targets:
        """What the tokens of a block are learned against; tokens of other items are not kept."""
        if self.cut:
            is_here = self.cut.class_blocks == block
            keep = np.where(is_here, self._thinning.keep, np.uint64(0))
            return Targets(self.config, replace(self._thinning, keep=keep), self.cut.tree_of(block), is_here)
        if self.tree:
            return Targets(self.config, self._thinning, self.tree)
        if self.num_blocks > 1:
            rows, shared = self.rows(block), (self.num_shared_rows, self.num_blocks)
            assert rows is not None
            return Targets(self.config, block_sampling(self.counts, self.config, rows, *shared), None)
        return Targets(self.config, make_sampling(self.counts, self.config), None)

    def histories(self, histories: Histories, block: int) -> Histories:
        """The same histories with tokens that are rows of the block, or one beyond its last for items of other blocks.

        Every token keeps its place, by which its draws and its weight go. With a tree tokens stay what they are.
        """
        if self.num_blocks == 1 or self.tree:
            return histories
        numbers = self._numbers[histories.tokens]
        turns, blocks = np.divmod(numbers, np.int32(self.num_blocks))
        num_shared = self.num_shared_rows
        rows = np.where(numbers < num_shared, numbers, turns + np.int32(num_shared - num_shared // self.num_blocks))
        return replace(histories, tokens=np.where(blocks == block, rows, np.int32(self.num_rows(block))))
