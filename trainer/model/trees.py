"""The output trees of hierarchical softmax: a class's probability is the product of the choices on its path.

One representation for every shape, flat arrays without Python objects, so that ten million classes are built in
seconds on one core. A class is a leaf; the other nodes are the *inner nodes*, which own the parameter rows:

    children   rows   probability of child slot s, with user vector u and the node's rows θ
    2          1      σ(u·θ) for slot 0, σ(-u·θ) for slot 1
    w > 2      w      softmax over u·θ_0 ... u·θ_{w-1}
    1          0      1

Slot 0 of a node with two children thus has label 1, slot 1 label 0: the slot is the code bit of word2vec and gensim,
whose label is 1 - code. Inner nodes are numbered breadth first, root 0, and rows follow their numbers: the rows of
the upper levels come first, the nodes of a level are a range (`level_starts`), a node's inner children are neighbours.

Morin and Bengio, AISTATS 2005; Mikolov et al., "Distributed representations of words and phrases", NIPS 2013.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


@dataclass(frozen=True)
class Tree:
    """A tree of V classes and I inner nodes; node x is class x below V, and inner node x - V from there on.

    parents int32[V + I]: the inner node above node x; -1 for the root, which is the class if V is 1.
    slots uint32[V + I]: the place of x among its parent's children.
    first_rows int32[I]: the first parameter row of an inner node; without rows, the position where they would begin.
    widths int32[I]: the children of an inner node.
    """

    parents: NDArray[np.int32]
    slots: NDArray[np.uint32]
    first_rows: NDArray[np.int32]
    widths: NDArray[np.int32]
    num_rows: int

    @property
    def num_classes(self) -> int:
        return len(self.parents) - len(self.widths)

    @cached_property
    def max_depth(self) -> int:
        """The most choices on the path to a class."""
        return len(level_starts(self)) - 1

    @cached_property
    def max_path_rows(self) -> int:
        """An upper bound of the rows on a path to a class."""
        width = int(self.widths.max(initial=1))
        return self.max_depth * (width if width > 2 else 1)


def make_tree(config: TrainConfig, counts: Int64s) -> Tree | None:
    """Return the tree of a training with hierarchical softmax; None without it.

    A count of 0 (all events of the item are held out) is taken as 1, as for draws. Otherwise Huffman's tree would put all such
    items into one deep subtree, which is too large for an item block. Raises ConfigError without items.
    """
    if not config.hs:
        return None
    if len(counts) == 0:
        raise ConfigError("a tree needs at least one class, but there are no counts: give it a vocabulary")
    counts = np.maximum(counts, 1)
    if config.tree == "huffman":
        return huffman_tree(counts)
    two_levels = max(2, math.isqrt(len(counts) - 1) + 1)  # about √V groups of about √V classes
    return balanced_tree(counts, two_levels if config.tree == "two_level" else config.tree_branching)


def huffman_tree(counts: Int64s) -> Tree:
    """Return Huffman's binary tree of classes with these counts, int64[V]: no code has fewer bits a token on average.

    Of two merged nodes the lighter takes slot 0, as in gensim. Among equals, leaves come before merged nodes and older before
    newer ones, which also makes the deepest path as short as an optimal code allows.
    """
    num_classes, num_inner = len(counts), len(counts) - 1
    children = _merge_lightest(counts)
    levels = [np.empty(0, dtype=np.int32)]
    frontier = np.arange(num_inner, dtype=np.int32)[-1:]  # the last node made is the root, if any was
    while len(frontier):
        levels.append(children[frontier].ravel())
        frontier = levels[-1][levels[-1] >= num_classes] - num_classes
    nodes = np.concatenate(levels)
    nodes[nodes >= num_classes] = np.arange(num_classes + 1, num_classes + num_inner)  # renumbered breadth first
    parents = np.full(num_classes + num_inner, -1, dtype=np.int32)
    slots = np.zeros(num_classes + num_inner, dtype=np.uint32)
    parents[nodes] = np.arange(2 * num_inner, dtype=np.int32) >> 1
    slots[nodes] = np.arange(2 * num_inner, dtype=np.uint32) & 1
    return _with_rows(parents, slots, np.full(num_inner, 2, dtype=np.int32))


def _merge_lightest(counts: Int64s) -> NDArray[np.int32]:
    """Return the children of Huffman's merged nodes in the order of merging, int32[V - 1, 2]; merge m is node V + m.

    Van Leeuwen's algorithm with two ascending queues, the sorted leaves and the merged nodes as they are made; of many steps at
    once: all nodes up to `bound`, the sum of the two lightest (trainer/kernels/README.md says why, and how many rounds it takes).
    """
    num_classes = len(counts)
    leaf_order = np.argsort(counts, kind="stable").astype(np.int32)
    leaves = counts[leaf_order]
    sums = np.empty(num_classes - 1, dtype=np.int64)
    children = np.empty((num_classes - 1, 2), dtype=np.int32)
    leaf = taken = made = 0  # heads of the queues of leaves and of merged nodes, and the end of the latter
    while made < num_classes - 1:
        bound = np.sort(np.concatenate((leaves[leaf : leaf + 2], sums[taken:made][:2])))[:2].sum()
        leaf_end = leaf + np.searchsorted(leaves[leaf:], bound, side="right")
        taken_end = taken + np.searchsorted(sums[taken:made], bound, side="right")
        weights = np.concatenate((leaves[leaf:leaf_end], sums[taken:taken_end]))
        nodes = np.concatenate((leaf_order[leaf:leaf_end], np.arange(taken, taken_end, dtype=np.int32) + num_classes))
        order = np.argsort(weights, kind="stable")  # timsort merges two sorted runs; leaves stand first among equals
        pairs = order[: len(order) // 2 * 2].reshape(-1, 2)
        num_leaves = int(np.count_nonzero(pairs < leaf_end - leaf))
        leaf, taken = leaf + num_leaves, taken + pairs.size - num_leaves
        children[made : made + len(pairs)] = nodes[pairs]
        sums[made : made + len(pairs)] = weights[pairs].sum(axis=1)
        made += len(pairs)
    return children


def balanced_tree(counts: Int64s, branching: int) -> Tree:
    """Return a tree with all classes equally deep, and nodes of a level equally wide, up to one child.

    counts int64[V]; branching: the most children of a node, at least 2. Classes are sorted by falling count, ties by number.
    Level by level from the classes up, runs of neighbours get a common parent until one node is left.
    """
    num_classes, sizes = len(counts), [len(counts)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // branching))
    parents = np.full(sum(sizes), -1, dtype=np.int32)
    slots = np.zeros(sum(sizes), dtype=np.uint32)
    widths = np.empty(sum(sizes[1:]), dtype=np.int32)
    node, end = 0, len(widths)  # from the classes up, levels are ranges of inner nodes from the last down
    for size, above in pairwise(sizes):
        edges, first = np.arange(above + 1) * size // above, end - above
        widths[first:end] = np.diff(edges)
        parents[node : node + size] = np.repeat(np.arange(first, end, dtype=np.int32), widths[first:end])
        slots[node : node + size] = np.arange(size) - np.repeat(edges[:-1], widths[first:end])
        node, end = num_classes + first, first
    placed = np.argsort(-counts, kind="stable")
    parents[placed], slots[placed] = parents[:num_classes].copy(), slots[:num_classes].copy()
    return _with_rows(parents, slots, widths)


def level_starts(tree: Tree) -> Int64s:
    """Return the starts of the levels of inner nodes, int64[max_depth + 1]: level d is [starts[d], starts[d + 1]).

    In breadth-first order parents never decrease, so a level is the range of nodes with parents in the level above.
    """
    inner_parents = tree.parents[tree.num_classes :]
    starts = [0]
    while starts[-1] < len(inner_parents):
        starts.append(int(np.searchsorted(inner_parents, np.int32(starts[-1]))))
    return np.array(starts, dtype=np.int64)


def path(tree: Tree, class_ix: int) -> list[tuple[int, int]]:
    """Return the choices on the path to a class, from the root: (inner node, slot of the chosen child)."""
    steps, node = [], class_ix
    while (parent := int(tree.parents[node])) >= 0:
        steps.append((parent, int(tree.slots[node])))
        node = tree.num_classes + parent
    return steps[::-1]


def tree_bytes(tree: Tree) -> int:
    """Return the bytes of a tree's arrays, without the parameters."""
    return tree.parents.nbytes + tree.slots.nbytes + tree.first_rows.nbytes + tree.widths.nbytes


def log_probabilities(tree: Tree, node_vectors: Float32s, user_vectors: Float32s) -> Float32s:
    """Return the log-probability of every class for each user, float32[B, V], for evaluation.

    node_vectors float32[num_rows, D]; user_vectors float32[B, D]. Takes 4 * B * V bytes for the result, and in
    addition the larger of 30 * (V + I) bytes and 80 MB.
    """
    rows, starts = _child_rows(tree), level_starts(tree)
    result = np.empty((len(user_vectors), tree.num_classes), dtype=np.float32)
    step = max(1, 2**22 // len(tree.parents))  # users at once: few, so that the gathered arrays stay in the cache
    for first in range(0, len(user_vectors), step):
        users = user_vectors[first : first + step]
        logits = np.zeros((len(users), tree.num_rows + 1), dtype=np.float32)  # the last: children without a logit
        np.matmul(users, node_vectors.T, out=logits[:, :-1])
        sums = -_log_normalisers(tree, logits)
        for start, end in pairwise(starts):
            level = slice(tree.num_classes + start, tree.num_classes + end)
            sums[:, start:end] += sums[:, tree.parents[level]] + logits[:, rows[level]]
        block = result[first : first + step]
        np.take(logits, rows[: tree.num_classes], axis=1, out=block)
        block += np.take(sums, tree.parents[: tree.num_classes], axis=1)
    return result


def _log_normalisers(tree: Tree, logits: Float32s) -> Float32s:
    """Return the log of each node's sum of exponentials, float32[B, I + 1]; the last is for parent -1: 0."""
    normalisers = np.zeros((len(logits), len(tree.widths) + 1), dtype=np.float32)
    pairs, wide = np.flatnonzero(tree.widths == 2), np.flatnonzero(tree.widths > 2)
    # the second of two children has no row: its logit is 0
    normalisers[:, pairs] = np.logaddexp(logits[:, tree.first_rows[pairs]], np.float32(0))
    if len(wide):
        widths = tree.widths[wide]
        starts = np.cumsum(widths) - widths
        weights = logits[:, np.flatnonzero(np.repeat(tree.widths > 2, rows_of(tree.widths)))]
        highest = np.maximum.reduceat(weights, starts, axis=1)
        weights -= np.repeat(highest, widths, axis=1)
        np.exp(weights, out=weights)
        normalisers[:, wide] = highest + np.log(np.add.reduceat(weights, starts, axis=1))
    return normalisers


def _child_rows(tree: Tree) -> Int64s:
    """Return the row with the logit of each node as a child, int64[V + I]; num_rows if it has none."""
    widths = np.append(tree.widths, 1)[tree.parents]
    rows = np.append(tree.first_rows, 0)[tree.parents] + np.where(widths > 2, tree.slots, 0).astype(np.int64)
    rows[(widths == 1) | ((widths == 2) & (tree.slots == 1))] = tree.num_rows
    return rows


def _with_rows(parents: NDArray[np.int32], slots: NDArray[np.uint32], widths: NDArray[np.int32]) -> Tree:
    """Return the tree with its parameter rows in the order of the inner nodes."""
    rows = rows_of(widths)
    return Tree(parents, slots, (np.cumsum(rows) - rows).astype(np.int32), widths, num_rows=int(rows.sum()))


def rows_of(widths: NDArray[np.int32]) -> Int64s:
    """Return the number of parameter rows of nodes with so many children, int64[I]."""
    return np.where(widths > 2, widths, widths == 2).astype(np.int64)
