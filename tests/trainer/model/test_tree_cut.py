"""A tree that is cut: every class finds its way among the shared rows and those of its block."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.trainer.model.tree_cut import Cut, cut_depth, cut_tree, subtree_rows
from surf2vec.trainer.model.trees import Tree, balanced_tree, huffman_tree, log_probabilities, path
from tests.trainer.model.tree_shapes import two_level_tree


def path_rows(tree: Tree, class_ix: int) -> list[int]:
    """The rows on the way to a class, from the root."""
    rows = []
    for node, _ in path(tree, class_ix):
        width = int(tree.widths[node])
        first = int(tree.first_rows[node])
        rows += range(first, first + (width if width > 2 else width - 1))
    return rows


def cut_evenly(tree: Tree, num_blocks: int) -> Cut:
    return cut_tree(tree, num_blocks, np.ones(tree.num_classes))


any_tree = st.sampled_from([huffman_tree, two_level_tree, lambda counts: balanced_tree(counts, branching=3)])


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=80), st.integers(1, 5), any_tree)
def test_the_way_to_a_class_is_in_its_block(counts: list[int], num_blocks: int, make: object) -> None:
    tree: Tree = make(np.array(counts))  # type: ignore[operator]
    cut = cut_evenly(tree, num_blocks)
    for block in range(num_blocks):
        rows, local = cut.rows(block), cut.tree_of(block)
        assert local.num_rows == len(rows)
        assert rows[: cut.num_shared_rows].tolist() == list(range(cut.num_shared_rows))
        for class_ix in np.flatnonzero(cut.class_blocks == block).tolist():
            assert [int(rows[row]) for row in path_rows(local, class_ix)] == path_rows(tree, class_ix)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=200), st.integers(1, 6))
def test_every_row_is_shared_or_of_one_block(counts: list[int], num_blocks: int) -> None:
    cut = cut_evenly(huffman_tree(np.array(counts)), num_blocks)
    own = [cut.rows(block)[cut.num_shared_rows :] for block in range(num_blocks)]
    shared = np.arange(cut.num_shared_rows)
    assert sorted(np.concatenate([shared, *own]).tolist()) == list(range(cut.tree.num_rows))


@pytest.mark.parametrize("num_blocks", [2, 7])
def test_blocks_have_about_equally_many_rows(num_blocks: int) -> None:
    counts = (10**8 / np.arange(1, 200_001)).astype(np.int64)
    for tree in (huffman_tree(counts), two_level_tree(counts), balanced_tree(counts, branching=16)):
        cut = cut_evenly(tree, num_blocks)
        granule = subtree_rows(tree, cut_depth(tree)).max()
        share = (tree.num_rows - cut.num_shared_rows) / num_blocks
        assert all(len(cut.rows(block)) <= cut.num_shared_rows + share + granule for block in range(num_blocks))
        assert cut.num_shared_rows < 0.1 * tree.num_rows


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=80), st.integers(2, 5), any_tree)
def test_a_part_has_the_probabilities_of_the_whole(counts: list[int], num_blocks: int, make: object) -> None:
    tree: Tree = make(np.array(counts))  # type: ignore[operator]
    rng = np.random.default_rng(len(counts))
    rows, users = (rng.standard_normal((n, 3)).astype(np.float32) for n in (tree.num_rows, 4))
    whole, cut, found = log_probabilities(tree, rows, users), cut_evenly(tree, num_blocks), []
    for block in range(num_blocks):
        classes, part = cut.part(block)
        assert part.num_rows == len(cut.rows(block))
        if len(classes):
            ours = log_probabilities(part, rows[cut.rows(block)], users)
            np.testing.assert_allclose(ours, whole[:, classes], rtol=1e-5, atol=1e-5)
        found += classes.tolist()
    assert sorted(found) == list(range(tree.num_classes))
