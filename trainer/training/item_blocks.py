"""The item table in blocks: the rows of each block, their first values, and the targets of its tokens.

With drawn items all blocks share the most frequent items; the others are divided so that blocks have about equal tokens. With a
tree, blocks have subtrees, and share all rows above them. A single block is the full table.
"""

import heapq
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.first_rows import begin_items
from surf2vec.trainer.model import objectives
from surf2vec.trainer.model.objectives import RANGE_32, Sampling, keep_thresholds
from surf2vec.trainer.model.rows import Items
from surf2vec.trainer.model.tree_cut import Cut, cut_tree
from surf2vec.trainer.model.trees import Tree, make_tree
from surf2vec.trainer.store.tokens import Histories
from surf2vec.trainer.training.curve import Targets


@dataclass(frozen=True)
class ItemBlocks:
    """The blocks of an item table; counts int64[V]: how often training sees each item in an epoch."""

    config: TrainConfig
    counts: NDArray[np.int64]
    num_blocks: int

    @cached_property
    def tree(self) -> Tree | None:
        return make_tree(self.config, self.counts)

    @cached_property
    def cut(self) -> Cut | None:
        return cut_tree(self.tree, self.num_blocks, self._loads) if self.tree and self.num_blocks > 1 else None

    @property  # not kept, nor are its tables: eight bytes an item, needed once
    def _loads(self) -> NDArray[np.float64]:
        """The tokens of each item in an epoch after subsampling, float64[V]."""
        return self.counts * (self._thinning.keep / RANGE_32)

    @property
    def _thinning(self) -> Sampling:
        """The tables for a tree: only subsampling, nothing is drawn."""
        keep = keep_thresholds(self.counts, int(self.counts.sum()), self.config.sample)
        return Sampling(np.empty(0, np.uint64), np.empty(0, np.int32), keep, np.empty(0, np.float32))

    @cached_property
    def num_shared_rows(self) -> int:
        """The number of first rows that all blocks share: of a tree those above the cut, otherwise the most frequent items."""
        if self.cut:
            return self.cut.num_shared_rows
        if self.tree or self.num_blocks == 1:
            return 0
        return objectives.shared_items(len(self.counts)) // self.num_blocks * self.num_blocks

    @cached_property
    def _is_shared(self) -> NDArray[np.bool_]:
        """Whether all blocks share an item, as it is frequent, bool[V]."""
        is_shared = np.zeros(len(self.counts), dtype=bool)
        is_shared[np.argsort(-self.counts, kind="stable")[: self.num_shared_rows]] = True
        return is_shared

    @cached_property
    def _dealt(self) -> NDArray[np.int32]:
        """The block that learns the tokens of each item, int32[V]. Blocks have about equal tokens and items.

        The shared items, a multiple of the blocks, go one by one, the heaviest first, to the block with the fewest tokens so
        far. The many light ones go to blocks in ascending and descending turns. A remainder goes to the first blocks.
        """
        loads, num_blocks = self._loads, self.num_blocks
        blocks = np.empty(len(loads), dtype=np.int32)
        shared, others = np.flatnonzero(self._is_shared), np.flatnonzero(~self._is_shared)
        room = len(shared) // num_blocks
        waiting = [(0.0, 0, block) for block in range(num_blocks)]
        for item in shared[np.argsort(-loads[shared], kind="stable")].tolist():
            load, num, block = heapq.heappop(waiting)
            blocks[item] = block
            if num + 1 < room:
                heapq.heappush(waiting, (load + float(loads[item]), num + 1, block))
        turns, places = np.divmod(np.arange(len(others)), num_blocks)
        # Every second turn goes back; an unfinished last one goes to the first blocks.
        is_back = (turns % 2 == 1) & (turns < len(others) // num_blocks)
        blocks[others[np.argsort(-loads[others], kind="stable")]] = np.where(is_back, num_blocks - 1 - places, places)
        return blocks

    @cached_property
    def _places(self) -> NDArray[np.int32]:
        """The row of each item in its block, int32[V]: shared items come first, both parts ascend."""
        places = np.empty(len(self.counts), dtype=np.int32)
        for block in range(self.num_blocks):
            rows = self.rows(block)
            places[rows] = np.arange(self.num_rows(block))
        return places

    def rows(self, block: int) -> NDArray[np.uint32] | None:
        """Return a block's rows of the table: the shared ones, then its own, both ascending; None for all."""
        if self.cut:
            return self.cut.rows(block)
        if self.num_blocks == 1:
            return None
        own = np.flatnonzero(~self._is_shared & (self._dealt == block))
        return np.concatenate((np.flatnonzero(self._is_shared), own)).astype(np.uint32)

    def num_rows(self, block: int) -> int:
        """Return the number of items of a block; the first block has the most."""
        return self.num_shared_rows + len(range(block, len(self.counts) - self.num_shared_rows, self.num_blocks))

    def num_outputs(self, block: int) -> int:
        """Return the number of output rows of a block: of items, or of the tree."""
        if self.cut:
            return self.cut.num_rows(block)
        return self.tree.num_rows if self.tree else self.num_rows(block)

    def first_items(self, block: int) -> Items:
        return begin_items(self.config, 0 if self.cut else self.num_rows(block), self.num_outputs(block))

    def targets(self, block: int) -> Targets:
        """Return the targets of a block's tokens. Tokens of other blocks' items are not kept."""
        if self.cut:
            is_in_block, thinning = self.cut.class_blocks == block, self._thinning
            kept = replace(thinning, keep=np.where(is_in_block, thinning.keep, np.uint64(0)))
            return Targets(self.config, kept, self.cut.tree_of(block), is_in_block)
        if self.tree:
            return Targets(self.config, self._thinning, self.tree)
        if self.num_blocks > 1:
            rows, shared = self.rows(block), (self.num_shared_rows, self.num_blocks)
            assert rows is not None, f"block {block} of {self.num_blocks} has no rows"
            return Targets(self.config, objectives.block_sampling(self.counts, self.config, rows, *shared), None)
        return Targets(self.config, objectives.make_sampling(self.counts, self.config), None)

    def histories(self, histories: Histories, block: int) -> Histories:
        """Return the histories with tokens as rows of the block; items of other blocks become the row after its last.

        Every token keeps its position, which determines its draws and its weight. With a tree, tokens do not change.
        """
        if self.num_blocks == 1 or self.tree:
            return histories
        is_in_block = self._dealt[histories.tokens] == block
        rows = self._places[histories.tokens]
        return replace(histories, tokens=np.where(is_in_block, rows, np.int32(self.num_rows(block))))
