"""Alignment: a rotation that is known is found, whatever the pieces; and it changes no dot product."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.align import find_rotation, rotate
from trainer.rows import Rows


def rotation_of(rng: np.random.Generator, dims: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(dims, dims)))[0]


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 30))
def test_a_known_rotation_is_found_from_any_pieces(seed: int, dims: int, piece: int) -> None:
    rng = np.random.default_rng(seed)
    known = rotation_of(rng, dims)
    new = rng.normal(size=(dims + 20, dims)).astype(np.float32)
    old = (new @ known * rng.uniform(0.5, 2, (len(new), 1))).astype(np.float32)  # longer or shorter: directions count
    pairs = ((new[start : start + piece], old[start : start + piece]) for start in range(0, len(new), piece))
    found = find_rotation(pairs, dims)
    np.testing.assert_allclose(found.matrix, known, atol=1e-5)
    assert found.cosine == pytest.approx(1, abs=1e-5)
    assert found.num_items == len(new)


def test_no_dot_product_and_no_state_changes() -> None:
    rng = np.random.default_rng(1)
    users, items = (Rows(rng.normal(size=(9, 8)).astype(np.float32), np.arange(9, dtype=np.float32)) for _ in range(2))
    rotation = find_rotation([(items.vectors, users.vectors)], 8)
    turned_users, turned_items = rotate(users, rotation), rotate(items, rotation)
    np.testing.assert_allclose(
        turned_users.vectors @ turned_items.vectors.T, users.vectors @ items.vectors.T, atol=1e-5
    )
    np.testing.assert_array_equal(turned_users.squares, users.squares)


def test_items_without_a_direction_count_nothing() -> None:
    new = np.array([[1, 0], [0, 0], [np.nan, 1], [0, 1]], np.float32)
    old = np.array([[0, 1], [1, 1], [1, 1], [-1, 0]], np.float32)
    found = find_rotation([(new, old)], 2)
    np.testing.assert_allclose(found.matrix, [[0, 1], [-1, 0]], atol=1e-12)
    assert found.num_items == 2


def test_without_items_nothing_is_turned() -> None:
    found = find_rotation([], 3)
    np.testing.assert_array_equal(found.matrix, np.eye(3))
    assert (found.cosine, found.num_items) == (0.0, 0)
