"""The item table in blocks: which rows a block has, how they begin, and what its tokens are learned against.

With drawn items block b of B has items b, b + B, b + 2 B, ...; with a tree, subtrees and the rows above them, which all
blocks share. With one block all of this is the whole table.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.corpus import Histories
from trainer.curve import Targets
from trainer.objectives import Sampling, block_sampling, make_sampling, thinning_alone
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

    @property
    def num_shared_rows(self) -> int:
        """Rows, the first ones, that every block has."""
        return self.cut.num_shared_rows if self.cut else 0

    def rows(self, block: int) -> NDArray[np.uint32] | None:
        """The rows of the table that a block has, where they are not every B-th."""
        return self.cut.rows(block) if self.cut else None

    def first_items(self, block: int) -> Items:
        """The items of a block as they begin."""
        if self.cut:
            return begin_items(self.config, 0, self.cut.tree_of(block).num_rows)
        num_items = len(range(block, len(self.counts), self.num_blocks))
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
            return Targets(self.config, block_sampling(self.counts, self.config, block, self.num_blocks), None)
        return Targets(self.config, make_sampling(self.counts, self.config), None)

    def histories(self, histories: Histories, block: int) -> Histories:
        """The same histories with tokens that are rows of the block, or one beyond its last for items of other blocks.

        Every token keeps its place, by which its draws and its weight go. With a tree tokens stay what they are.
        """
        if self.num_blocks == 1 or self.tree:
            return histories
        num_rows = len(range(block, len(self.counts), self.num_blocks))
        rows, blocks = np.divmod(histories.tokens, np.int32(self.num_blocks))
        return replace(histories, tokens=np.where(blocks == block, rows, np.int32(num_rows)))
