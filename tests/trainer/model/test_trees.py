"""Trees are proper, Huffman's is optimal, rows are laid out top down, and the classes' probabilities sum to 1."""

import heapq
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.model.trees import (
    Tree,
    balanced_tree,
    huffman_tree,
    level_starts,
    log_probabilities,
    make_tree,
    path,
    tree_bytes,
)
from tests.trainer.model.tree_shapes import expected_rows, path_lengths, two_level_tree

Build = Callable[[NDArray[np.int64]], Tree]

SHAPES: dict[str, Build] = {
    "huffman": huffman_tree,
    "two levels": two_level_tree,
    "flat": lambda counts: balanced_tree(counts, max(2, len(counts))),
    "branching 2": lambda counts: balanced_tree(counts, 2),
    "branching 3": lambda counts: balanced_tree(counts, 3),
}

COUNTS = st.one_of(
    st.lists(st.integers(0, 5), min_size=1, max_size=120),  # many ties and zeros
    st.lists(st.integers(0, 10**15), min_size=1, max_size=60),
).map(lambda counts: np.array(counts, dtype=np.int64))


def zipf(num_classes: int) -> NDArray[np.int64]:
    return (10**9 / np.arange(1, num_classes + 1)).astype(np.int64) + 1


def lengths_by_heap(counts: NDArray[np.int64]) -> list[int]:
    """Huffman's code lengths by the textbook; equal weights in the order leaves before merged nodes, old before new."""
    num_classes = len(counts)
    heap = [(int(count), ix) for ix, count in enumerate(counts)]
    heapq.heapify(heap)
    parents = [0] * (2 * num_classes - 1)
    for merged in range(num_classes, 2 * num_classes - 1):
        (first_count, first), (second_count, second) = heapq.heappop(heap), heapq.heappop(heap)
        parents[first] = parents[second] = merged
        heapq.heappush(heap, (first_count + second_count, merged))
    lengths = [0] * (2 * num_classes - 1)
    for node in range(2 * num_classes - 3, -1, -1):
        lengths[node] = lengths[parents[node]] + 1
    return lengths[:num_classes]


def test_huffman_of_five_classes() -> None:
    tree = huffman_tree(np.array([5, 1, 10, 2, 3]))
    #            0 (21)           classes 1 and 3 (1 + 2) meet in node 3, with class 4 (3 + 3) in node 2,
    #        2:10      1 (11)     with class 0 (5 + 6) in node 1, with class 2 (10 + 11) in the root
    assert tree.parents.tolist() == [1, 3, 0, 3, 2, -1, 0, 1, 2]
    assert tree.slots.tolist() == [0, 0, 0, 1, 0, 0, 1, 1, 1]
    assert (tree.widths.tolist(), tree.first_rows.tolist()) == ([2, 2, 2, 2], [0, 1, 2, 3])
    assert (tree.num_rows, tree.num_classes, tree.max_depth) == (4, 5, 4)
    assert path(tree, 3) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert path_lengths(tree).tolist() == [2, 4, 1, 4, 3]
    assert expected_rows(tree, np.array([5, 1, 10, 2, 3])) == pytest.approx((10 + 4 + 10 + 8 + 9) / 21)


def test_two_levels_of_seven_classes() -> None:
    tree = two_level_tree(np.array([1, 2, 3, 4, 5, 6, 7]))
    assert tree.parents.tolist() == [3, 3, 3, 2, 2, 1, 1, -1, 0, 0, 0]
    assert tree.slots.tolist() == [2, 1, 0, 1, 0, 1, 0, 0, 0, 1, 2]
    assert tree.widths.tolist() == [3, 2, 2, 3]
    assert tree.first_rows.tolist() == [0, 3, 4, 5]  # softmax, two sigmoids, softmax
    assert (tree.num_rows, tree.max_depth) == (8, 2)
    assert path(tree, 0) == [(0, 2), (3, 2)]
    assert level_starts(tree).tolist() == [0, 1, 4]
    assert expected_rows(tree, np.array([1, 1, 0, 0, 0, 0, 2])) == (6 + 6 + 4 + 4) / 4


@pytest.mark.parametrize("shape", SHAPES)
def test_a_single_class_needs_no_choice(shape: str) -> None:
    tree = SHAPES[shape](np.array([4]))
    assert (tree.parents.tolist(), tree.slots.tolist(), tree.widths.tolist()) == ([-1], [0], [])
    assert (tree.num_rows, tree.max_depth, path(tree, 0)) == (0, 0, [])
    assert (path_lengths(tree).tolist(), expected_rows(tree, np.array([4]))) == ([0], 0)
    assert log_probabilities(tree, np.zeros((0, 3), np.float32), np.ones((2, 3), np.float32)).tolist() == [[0], [0]]


@pytest.mark.parametrize("shape", SHAPES)
@given(counts=COUNTS)
def test_trees_are_proper(shape: str, counts: NDArray[np.int64]) -> None:
    tree = SHAPES[shape](counts)
    num_classes, num_inner = len(counts), len(tree.widths)
    assert tree.num_classes == num_classes
    assert len(tree.parents) == len(tree.slots) == num_classes + num_inner
    dtypes = [array.dtype for array in (tree.parents, tree.slots, tree.first_rows, tree.widths)]
    assert dtypes == [np.int32, np.uint32, np.int32, np.int32]
    # every node but the root has one place, and the places of a parent are its slots 0, 1, ... without a gap
    places = sorted(zip(tree.parents.tolist(), tree.slots.tolist(), strict=True))
    assert places == [(-1, 0)] + [(node, slot) for node in range(num_inner) for slot in range(tree.widths[node])]
    # parents come before their children: every class is reached from the root
    assert (tree.parents[num_classes:] < np.arange(num_inner)).all()
    assert (np.diff(tree.parents[num_classes:]) >= 0).all()
    paths = [path(tree, ix) for ix in range(num_classes)]
    assert len(set(map(tuple, paths))) == num_classes
    assert [len(steps) for steps in paths] == path_lengths(tree).tolist()
    assert max(map(len, paths)) == tree.max_depth
    assert all(steps[0][0] == 0 for steps in paths if steps)


@pytest.mark.parametrize("shape", SHAPES)
@given(counts=COUNTS)
def test_rows_are_disjoint_cover_all_and_begin_with_the_upper_levels(shape: str, counts: NDArray[np.int64]) -> None:
    tree = SHAPES[shape](counts)
    owned = np.where(tree.widths > 2, tree.widths, tree.widths == 2)
    rows = [row for first, n in zip(tree.first_rows, owned, strict=True) for row in range(first, first + n)]
    assert rows == list(range(tree.num_rows))
    depths = np.zeros(len(tree.widths), dtype=int)
    for node in range(1, len(depths)):
        depths[node] = depths[tree.parents[tree.num_classes + node]] + 1
    assert level_starts(tree).tolist() == np.searchsorted(depths, np.arange(tree.max_depth + 1)).tolist()
    assert (np.diff(depths) >= 0).all()
    if counts.sum():
        touched = [sum(int(owned[node]) for node, _ in path(tree, ix)) for ix in range(len(counts))]
        assert expected_rows(tree, counts) == pytest.approx(np.average(touched, weights=counts.astype(float)))


@given(COUNTS)
@example(zipf(30_000))
@example(zipf(3000)[::-1])
@example(2 ** np.arange(62))
def test_huffman_merges_as_the_heap_does_and_fills_its_code(counts: NDArray[np.int64]) -> None:
    tree = huffman_tree(counts)
    lengths = path_lengths(tree).tolist()
    assert lengths == lengths_by_heap(counts)
    assert sum(1 << (tree.max_depth - length) for length in lengths) == 1 << tree.max_depth  # Kraft's equality
    assert (tree.widths == 2).all()
    assert tree.num_rows == len(counts) - 1


def gensim_codes(counts: NDArray[np.int64]) -> list[list[int]]:
    from gensim.models import Word2Vec

    model = Word2Vec(vector_size=1, hs=1, negative=0, min_count=1, sorted_vocab=0)
    model.build_vocab_from_freq({str(ix): int(count) for ix, count in enumerate(counts)})
    return [list(model.wv.get_vecattr(str(ix), "code")) for ix in range(len(counts))]


def test_slots_are_gensims_code_bits_where_no_two_nodes_weigh_the_same() -> None:
    counts = np.array([1, 2, 4, 9, 17, 40, 81, 100])
    tree = huffman_tree(counts)
    assert [[slot for _, slot in path(tree, ix)] for ix in range(len(counts))] == gensim_codes(counts)


@given(COUNTS, st.integers(2, 9))
def test_balanced_is_in_order_of_count_equally_deep_and_equally_wide(counts: NDArray[np.int64], branching: int) -> None:
    tree = balanced_tree(counts, branching)
    assert tree.widths.max(initial=0) <= branching
    assert set(path_lengths(tree).tolist()) == {tree.max_depth}
    assert branching**tree.max_depth >= len(counts) > branching ** (tree.max_depth - 1) * (len(counts) > 1)
    for start, end in zip(level_starts(tree)[:-1], level_starts(tree)[1:], strict=True):
        assert np.ptp(tree.widths[start:end]) <= 1
    by_place = sorted(range(len(counts)), key=lambda ix: path(tree, ix))
    assert by_place == sorted(range(len(counts)), key=lambda ix: (-counts[ix], ix))


def test_two_levels_have_the_least_width_and_cost_a_token_twice_the_root() -> None:
    for num_classes, width in ((2, 2), (4, 2), (5, 3), (9, 3), (101, 11)):
        assert two_level_tree(np.ones(num_classes, np.int64)).widths.max() == width
    counts = zipf(10_000)
    tree = two_level_tree(counts)
    assert (tree.widths == 100).all()
    assert expected_rows(tree, counts) == 200
    assert tree_bytes(tree) == 8 * (10_000 + 101) + 8 * 101


def probability(tree: Tree, class_ix: int, node_vectors: NDArray[np.float32], user: NDArray[np.float32]) -> float:
    """One class's probability, a choice at a time, as the module's docstring has it."""
    chance = 1.0
    for node, slot in path(tree, class_ix):
        first, width = int(tree.first_rows[node]), int(tree.widths[node])
        if width == 2:
            chance /= 1 + np.exp(-float(node_vectors[first] @ user) * (1 - 2 * slot))
        elif width > 2:
            weights = np.exp((node_vectors[first : first + width] @ user).astype(float))
            chance *= weights[slot] / weights.sum()
    return chance


@pytest.mark.parametrize("shape", SHAPES)
@given(counts=COUNTS, seed=st.integers(0, 2**32))
def test_probabilities_are_the_products_of_the_choices_and_sum_to_1(
    shape: str, counts: NDArray[np.int64], seed: int
) -> None:
    tree = SHAPES[shape](counts)
    rng = np.random.default_rng(seed)
    node_vectors = rng.standard_normal((tree.num_rows, 3), dtype=np.float32)
    users = rng.standard_normal((4, 3), dtype=np.float32)
    found = log_probabilities(tree, node_vectors, users)
    assert (found.shape, found.dtype) == ((4, len(counts)), np.float32)
    np.testing.assert_allclose(np.exp(found.astype(float)).sum(axis=1), 1, rtol=1e-5)
    for class_ix in {0, len(counts) // 2, len(counts) - 1}:
        expected = [probability(tree, class_ix, node_vectors, user) for user in users]
        np.testing.assert_allclose(np.exp(found[:, class_ix].astype(float)), expected, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities_stay_finite_with_long_vectors_and_do_not_depend_on_who_else_is_asked(shape: str) -> None:
    tree = SHAPES[shape](zipf(100_000 if shape == "huffman" else 3000))  # more users than are scored at once
    rng = np.random.default_rng(0)
    node_vectors = 100 * rng.standard_normal((tree.num_rows, 2), dtype=np.float32)
    users = rng.standard_normal((30, 2), dtype=np.float32)
    found = log_probabilities(tree, node_vectors, users)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.exp(found.astype(float)).sum(axis=1), 1, rtol=1e-3)
    np.testing.assert_allclose(found[-3:], log_probabilities(tree, node_vectors, users[-3:]), rtol=1e-4, atol=1e-3)


def test_no_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one class"):
        make_tree(TrainConfig(hs=1), np.array([], np.int64))


@pytest.mark.parametrize("shape", ["huffman", "two levels", "branching 3"])
def test_a_million_classes(shape: str) -> None:
    tree = SHAPES[shape](np.random.default_rng(1).permutation(zipf(10**6)))
    assert path_lengths(tree).max() == tree.max_depth
    np.testing.assert_array_equal(np.bincount(tree.parents[tree.parents >= 0]), tree.widths)
