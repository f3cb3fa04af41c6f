"""A tree cut below its top levels, for hierarchical softmax whose rows do not fit in memory.

All item blocks share the rows of the upper levels, which come first. Each subtree below the cut belongs to one block. Blocks have
about equal rows and tokens. So training a token needs only the shared rows and those of one block.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.model.trees import Tree, level_starts, rows_of

MIN_SUBTREES = 1024


@dataclass(frozen=True)
class Cut:
    """blocks int32[I]: the block of each inner node; -1 above the cut, whose rows are the first `num_shared_rows`.

    class_blocks int32[V]: the block of each class.
    """

    tree: Tree
    num_blocks: int
    num_shared_rows: int
    blocks: NDArray[np.int32]
    class_blocks: NDArray[np.int32]

    def num_rows(self, block: int) -> int:
        """Return how many rows of the tree are in memory with a block."""
        return self.num_shared_rows + int(rows_of(self.tree.widths)[self.blocks == block].sum())

    def rows(self, block: int) -> NDArray[np.uint32]:
        """Return the rows of the tree that are in memory with a block, uint32[R], the shared ones first."""
        is_own = np.repeat(self.blocks == block, rows_of(self.tree.widths))
        own = np.flatnonzero(is_own).astype(np.uint32)
        return np.concatenate((np.arange(self.num_shared_rows, dtype=np.uint32), own))

    def tree_of(self, block: int) -> Tree:
        """Return the tree with its row numbers in `rows(block)`. Rows of other blocks must not be used."""
        num_rows = np.where(self.blocks == block, rows_of(self.tree.widths), 0)
        places = self.num_shared_rows + np.cumsum(num_rows) - num_rows
        first_rows = np.where(self.blocks < 0, self.tree.first_rows, places).astype(np.int32)
        return replace(self.tree, first_rows=first_rows, num_rows=self.num_shared_rows + int(num_rows.sum()))

    def part(self, block: int) -> tuple[NDArray[np.int64], Tree]:
        """Return the classes of a block, ascending, and a tree of only these, over `rows(block)`, with the same probabilities.

        Nodes above the cut keep all their rows, so that their sums include the other blocks.
        """
        tree, classes = self.tree, np.flatnonzero(self.class_blocks == block)
        nodes = np.flatnonzero((self.blocks < 0) | (self.blocks == block))
        numbers = np.full(len(self.blocks) + 1, -1, dtype=np.int32)  # the last is for parent -1 (none)
        numbers[nodes] = np.arange(len(nodes), dtype=np.int32)
        kept = np.concatenate((classes, tree.num_classes + nodes))
        num_rows = rows_of(tree.widths[nodes])
        first_rows = (np.cumsum(num_rows) - num_rows).astype(np.int32)
        parents = numbers[tree.parents[kept]]
        return classes, Tree(parents, tree.slots[kept], first_rows, tree.widths[nodes], int(num_rows.sum()))


def cut_tree(tree: Tree, num_blocks: int, loads: NDArray[np.float64]) -> Cut:
    """Assign classes with parents above the cut, and the subtrees below it, to blocks. loads float64[V]: tokens of a class."""
    starts, depth = level_starts(tree), cut_depth(tree)
    class_parents = tree.parents[: tree.num_classes]
    has_parent = class_parents >= 0
    class_sums = np.bincount(class_parents[has_parent], loads[has_parent], minlength=len(tree.widths))
    sizes, tokens = subtree_rows(tree, depth), _subtree_sums(tree, depth, class_sums)
    blocks = np.full(len(tree.widths), -1, dtype=np.int32)
    is_hanging = class_parents < starts[depth]
    hanging = np.flatnonzero(is_hanging)
    class_blocks, dealt = np.empty(tree.num_classes, dtype=np.int32), np.zeros(num_blocks)
    class_blocks[hanging] = _deal(loads[hanging], np.zeros(len(hanging)), dealt)
    blocks[starts[depth] : starts[depth] + len(sizes)] = _deal(tokens, sizes, dealt)
    for start, end in pairwise(starts[depth + 1 :]):
        blocks[start:end] = blocks[tree.parents[tree.num_classes + start : tree.num_classes + end]]
    class_blocks[~is_hanging] = blocks[class_parents[~is_hanging]]
    return Cut(tree, num_blocks, shared_rows(tree), blocks, class_blocks)


def _deal(loads: NDArray[np.float64], sizes: NDArray[Any], dealt: NDArray[np.float64]) -> NDArray[np.int32]:
    """Return a block for each part, int32[n]: the heaviest first, to the least loaded block with room for its rows.

    dealt float64[B]: the load of each block, updated in place. A block has room for an equal share and the largest part.
    """
    found = np.empty(len(loads), dtype=np.int32)
    room = np.full(len(dealt), -(-int(sizes.sum()) // len(dealt)) + int(sizes.max(initial=0)))
    for i in np.argsort(-loads, kind="stable").tolist():
        block = int(np.where(room >= sizes[i], dealt, np.inf).argmin())
        found[i] = block
        dealt[block] += loads[i]
        room[block] -= int(sizes[i])
    return found


def cut_depth(tree: Tree) -> int:
    """Return the level of the subtrees' roots: the first with MIN_SUBTREES nodes, otherwise the widest."""
    widths = np.diff(level_starts(tree))
    wide = np.flatnonzero(widths >= MIN_SUBTREES)
    return int(wide[0] if len(wide) else widths.argmax()) if len(widths) else 0


def shared_rows(tree: Tree) -> int:
    """Return the number of rows above the cut."""
    starts, depth = level_starts(tree), cut_depth(tree)
    return int(tree.first_rows[starts[depth]]) if starts[depth] < len(tree.first_rows) else tree.num_rows


def subtree_rows(tree: Tree, depth: int) -> NDArray[np.int64]:
    """Return the number of rows of the subtree under each node of a level, int64[n]."""
    return _subtree_sums(tree, depth, rows_of(tree.widths)).astype(np.int64)


def _subtree_sums(tree: Tree, depth: int, values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of inner nodes' values [I] over the subtree under each node of a level, float64[n]."""
    starts = level_starts(tree)
    sums = values.astype(np.float64)
    for level in range(len(starts) - 2, depth, -1):
        start, end = starts[level], starts[level + 1]
        parents = tree.parents[tree.num_classes + start : tree.num_classes + end]
        sums += np.bincount(parents, weights=sums[start:end], minlength=len(sums))
    return sums[starts[depth] : starts[depth + 1]] if depth + 1 < len(starts) else sums[:0]
