"""A tree cut below its top levels, for hierarchical softmax whose rows do not fit in memory.

The rows of the upper levels are the first ones and are shared by all item blocks; below the cut whole subtrees belong to
blocks, in runs of neighbours with about equally many rows. A block's classes are those whose way ends in its subtrees, so
training a token needs the shared rows and one block's.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trainer.trees import Tree, level_starts, rows_of

MIN_SUBTREES = 1024


@dataclass(frozen=True)
class Cut:
    """blocks int32[I]: the block of each inner node; -1 above the cut, whose rows are the first `num_shared_rows`."""

    tree: Tree
    num_blocks: int
    num_shared_rows: int
    blocks: NDArray[np.int32]

    @cached_property
    def class_blocks(self) -> NDArray[np.int32]:
        """The block of each class, int32[V]; classes that hang above the cut are dealt in turn."""
        num_classes = self.tree.num_classes
        found = np.append(self.blocks, np.int32(-1))[self.tree.parents[:num_classes]]  # parent -1, none, finds the last
        return np.where(found >= 0, found, np.arange(num_classes, dtype=np.int32) % self.num_blocks)

    def rows(self, block: int) -> NDArray[np.uint32]:
        """The rows of the tree that are in memory with a block, uint32[R]: the shared ones first."""
        is_own = np.repeat(self.blocks == block, rows_of(self.tree.widths))
        own = np.flatnonzero(is_own).astype(np.uint32)
        return np.concatenate((np.arange(self.num_shared_rows, dtype=np.uint32), own))

    def tree_of(self, block: int) -> Tree:
        """The same tree with the places of its rows among `rows(block)`; those of other blocks are not to be touched."""
        num_rows = np.where(self.blocks == block, rows_of(self.tree.widths), 0)
        places = self.num_shared_rows + np.cumsum(num_rows) - num_rows
        first_rows = np.where(self.blocks < 0, self.tree.first_rows, places).astype(np.int32)
        return replace(self.tree, first_rows=first_rows, num_rows=self.num_shared_rows + int(num_rows.sum()))

    def part(self, block: int) -> tuple[NDArray[np.int64], Tree]:
        """The classes of a block, ascending, and a tree of them alone, over `rows(block)`: their probabilities are the same.

        Nodes above the cut keep all their rows, so that they sum up over the other blocks, too.
        """
        tree, classes = self.tree, np.flatnonzero(self.class_blocks == block)
        nodes = np.flatnonzero((self.blocks < 0) | (self.blocks == block))
        numbers = np.full(len(self.blocks) + 1, -1, dtype=np.int32)  # the last is for parent -1: none
        numbers[nodes] = np.arange(len(nodes), dtype=np.int32)
        kept = np.concatenate((classes, tree.num_classes + nodes))
        num_rows = rows_of(tree.widths[nodes])
        first_rows = (np.cumsum(num_rows) - num_rows).astype(np.int32)
        parents = numbers[tree.parents[kept]]
        return classes, Tree(parents, tree.slots[kept], first_rows, tree.widths[nodes], int(num_rows.sum()))


def cut_tree(tree: Tree, num_blocks: int) -> Cut:
    """Deal the subtrees below the cut to blocks."""
    starts, depth = level_starts(tree), cut_depth(tree)
    sizes = subtree_rows(tree, depth)
    blocks = np.full(len(tree.widths), -1, dtype=np.int32)
    before = np.cumsum(sizes) - sizes
    blocks[starts[depth] : starts[depth] + len(sizes)] = before * num_blocks // max(1, int(sizes.sum()))
    for start, end in pairwise(starts[depth + 1 :]):
        blocks[start:end] = blocks[tree.parents[tree.num_classes + start : tree.num_classes + end]]
    return Cut(tree, num_blocks, shared_rows(tree), blocks)


def cut_depth(tree: Tree) -> int:
    """The level whose nodes are the roots of the subtrees: the first that has MIN_SUBTREES, or else the widest."""
    widths = np.diff(level_starts(tree))
    wide = np.flatnonzero(widths >= MIN_SUBTREES)
    return int(wide[0] if len(wide) else widths.argmax()) if len(widths) else 0


def shared_rows(tree: Tree) -> int:
    """The rows above the cut."""
    starts, depth = level_starts(tree), cut_depth(tree)
    return int(tree.first_rows[starts[depth]]) if starts[depth] < len(tree.first_rows) else tree.num_rows


def subtree_rows(tree: Tree, depth: int) -> NDArray[np.int64]:
    """The rows of the subtree under each node of a level, int64[n]."""
    starts = level_starts(tree)
    sizes = rows_of(tree.widths)
    for level in range(len(starts) - 2, depth, -1):
        start, end = starts[level], starts[level + 1]
        parents = tree.parents[tree.num_classes + start : tree.num_classes + end]
        sizes += np.bincount(parents, weights=sizes[start:end], minlength=len(sizes)).astype(np.int64)
    return sizes[starts[depth] : starts[depth + 1]] if depth + 1 < len(starts) else sizes[:0]
