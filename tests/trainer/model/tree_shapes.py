"""What the shape of a tree means for training: how long the ways are, and how many rows a token touches."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.model.trees import Tree, level_starts, make_tree, rows_of


def two_level_tree(counts: NDArray[np.int64]) -> Tree:
    tree = make_tree(TrainConfig(hs=1, tree="two_level"), counts)
    assert tree is not None
    return tree


def path_lengths(tree: Tree) -> NDArray[np.int32]:
    """The choices on the way to each class, int32[V]."""
    depths = np.repeat(np.arange(1, tree.max_depth + 1, dtype=np.int32), np.diff(level_starts(tree)))
    return np.append(depths, np.int32(0))[tree.parents[: tree.num_classes]]  # parent -1, none, finds the last


def expected_rows(tree: Tree, counts: NDArray[np.int64]) -> float:
    """The parameter rows that a token touches on average when classes have these counts, int64[V], not all zero."""
    touched = np.append(rows_of(tree.widths), 0)  # the last is for parent -1: none
    for start, end in pairwise(level_starts(tree)):
        touched[start:end] += touched[tree.parents[tree.num_classes + start : tree.num_classes + end]]
    weights = counts.astype(np.float64)
    return float(weights @ touched[tree.parents[: tree.num_classes]] / weights.sum())
