"""The small matrix products of a tile, against numpy's; AVX2 in a process of its own, where LLVM may use nothing wider."""

import os
from typing import Any

import numba
import numpy as np
import pytest

from surf2vec.trainer.kernels.llvm import OPTIONS, prefer_wide_vectors
from surf2vec.trainer.kernels.losses import pull_by_softmax
from surf2vec.trainer.kernels.tiles import (
    ROW_BLOCK,
    padded,
    pull_negatives,
    pull_users,
    score_tile,
    scratch_rows,
    turn_rows,
)
from tests.servers.python import run_python

SIZES = [(32, 32, 128), (32, 32, 64), (1, 1, 16), (5, 3, 48), (16, 16, 80), (17, 33, 112), (32, 10, 19), (40, 64, 256)]


@numba.njit(**OPTIONS)
def run_tile(
    users: Any, across: Any, negatives: Any, scores: Any, softmax: Any, user_steps: Any, negative_steps: Any,
    num_negatives: int, num_lanes: int,
) -> None:  # fmt: skip
    """A tile's step; scores: as scored; softmax: its other arguments, the first of them the pulls."""
    prefer_wide_vectors()
    pulls, rows, corrections, own_rows, own_scores, totals = softmax
    turn_rows(users, across, num_lanes)
    score_tile(negatives, across, scores, num_lanes)
    for k in range(scores.shape[0]):
        for m in range(scores.shape[1]):
            pulls[k, m] = scores[k, m]
    pull_by_softmax(pulls, rows, corrections, own_rows, own_scores, totals, num_negatives)
    pull_users(pulls, negatives, user_steps, num_lanes)
    pull_negatives(pulls, users, negative_steps, num_lanes)


def filled(rng: np.random.Generator, num: int, size: int, multiple: int) -> np.ndarray:
    rows = scratch_rows(padded(num, multiple), padded(size))
    rows[:num, :size] = rng.normal(0, 0.3, (num, size))
    return rows


@pytest.mark.parametrize(("num_lanes", "num_negatives", "size"), SIZES)
def test_a_tile_is_four_matrix_products_and_a_softmax(num_lanes: int, num_negatives: int, size: int) -> None:
    rng = np.random.default_rng(num_lanes)
    users, negatives = filled(rng, num_lanes, size, 16), filled(rng, num_negatives, size, ROW_BLOCK)
    (width, length), high = users.shape, len(negatives)
    across, scores, pulls = scratch_rows(length, width), scratch_rows(high, width), scratch_rows(high, width)
    user_steps, negative_steps = scratch_rows(width, length), scratch_rows(high, length)
    rows, own_rows = (rng.integers(0, 9, num).astype(np.uint32) for num in (high, width))
    corrections, own_scores = (rng.normal(size=(1, num)).astype(np.float32)[0] for num in (high, width))
    own = own_scores[:num_lanes].astype(np.float64)
    softmax = (pulls, rows, corrections, own_rows, own_scores, scratch_rows(1, width)[0])
    run_tile(users, across, negatives, scores, softmax, user_steps, negative_steps, num_negatives, num_lanes)

    exact = negatives[:num_negatives].astype(np.float64) @ users[:num_lanes].T
    np.testing.assert_array_equal(across[:, :num_lanes], users[:num_lanes].T)
    np.testing.assert_allclose(scores[:num_negatives, :num_lanes], exact, atol=2e-5)
    exact -= corrections[:num_negatives, None]
    exact[rows[:num_negatives, None] == own_rows[:num_lanes]] = -np.inf
    high_score = np.maximum(exact.max(axis=0), own)
    powers = np.exp(exact - high_score)
    whole = powers.sum(axis=0) + np.exp(own - high_score)
    found = pulls[:num_negatives, :num_lanes]
    np.testing.assert_allclose(found, -powers / whole, atol=1e-6, rtol=1e-4)
    np.testing.assert_allclose(own_scores[:num_lanes], powers.sum(axis=0) / whole, atol=1e-6, rtol=1e-4)
    np.testing.assert_allclose(user_steps[:num_lanes], found.T @ negatives[:num_negatives], atol=2e-5)
    np.testing.assert_allclose(negative_steps[:num_negatives], found @ users[:num_lanes], atol=2e-5)


def test_scores_far_out_stay_finite() -> None:
    """A tile in which all negatives are the token itself, and one in which a score is beyond exp's range."""
    pulls, rows, own_rows = scratch_rows(8, 16), np.zeros(8, np.uint32), np.zeros(16, np.uint32)
    pulls[0] = 1e4
    own_rows[1:] = 1
    own_scores, none = np.full(16, -1e4, np.float32), np.zeros(8, np.float32)
    normalize = numba.njit(lambda a, b, c, d, e, f: pull_by_softmax(a, b, c, d, e, f, 8))
    normalize(pulls, rows, none, own_rows, own_scores, np.zeros(16, np.float32))
    np.testing.assert_allclose(own_scores, [0.0] + [1.0] * 15, atol=1e-6)
    assert (pulls[:, 0] == 0).all()
    np.testing.assert_allclose(pulls[:, 1:].sum(axis=0), -1, atol=1e-6)


def test_machines_without_avx_512_do_the_same() -> None:
    if os.environ.get("NUMBA_CPU_NAME"):
        pytest.skip("this is that machine")
    machine = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma"}
    run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, **machine)
