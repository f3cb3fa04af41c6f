"""Draws are pure functions, the same in plain Python, numpy and numba."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surf2vec.trainer import draws
from surf2vec.trainer.kernels import compiled_draws

UINT64 = st.integers(0, 2**64 - 1)


def test_mix_is_splitmix64() -> None:
    # the first outputs of SplitMix64 seeded with 1234567, as published with the generator
    published = [6457827717110365317, 3203168211198807973]
    assert [draws.mix((1234567 + draws.GAMMA * n) & draws.MASK) for n in (1, 2)] == published


@given(UINT64, st.integers(0, 2**31), st.integers(0, 15), st.integers(0, 4095))
def test_python_numpy_and_numba_draw_the_same(key: int, position: int, purpose: int, number: int) -> None:
    count = draws.counter(position, purpose, number)
    expected = draws.mix((key + draws.GAMMA * count) & draws.MASK)
    in_numpy = draws.draws(np.array([key], np.uint64), np.array([count], np.uint64))[0]
    in_numba = compiled_draws.draw(np.uint64(key), position, purpose, number)
    assert expected == int(in_numpy) == int(in_numba)


@given(st.tuples(*[st.integers(0, 2**31), st.integers(0, 15), st.integers(0, 4095)] * 2))
def test_no_two_draws_share_a_counter(two: tuple[int, ...]) -> None:
    assert (draws.counter(*two[:3]) == draws.counter(*two[3:])) == (two[:3] == two[3:])


def first_vectors(seed: int, hashes: NDArray[np.uint64]) -> NDArray[np.float32]:
    vectors = np.empty((len(hashes), 16), dtype=np.float32)
    compiled_draws.draw_vectors(draws.user_keys(seed, -1, hashes), np.float32(1 / 16), vectors)
    return vectors


def test_first_vectors_depend_on_the_user_alone_and_are_within_their_range() -> None:
    hashes = np.arange(20_000, dtype=np.uint64) * np.uint64(977)
    vectors = first_vectors(3, hashes)
    np.testing.assert_array_equal(first_vectors(3, hashes[100:101])[0], vectors[100])
    assert np.abs(vectors).max() <= 1 / 16
    assert abs(vectors.mean()) < 2e-4
    assert abs(vectors.std() - (2 / 16) / np.sqrt(12)) < 2e-4
    assert not np.array_equal(vectors, first_vectors(4, hashes))


def test_a_coordinate_of_a_first_vector_is_the_first_bits_of_its_draw() -> None:
    hashes = np.array([5, 2**64 - 1], dtype=np.uint64)
    counters = np.array([draws.counter(d, draws.INIT, 0) for d in range(16)], dtype=np.uint64)
    bits = draws.draws(draws.user_keys(3, -1, hashes)[:, None], counters[None, :])
    expected = ((bits >> np.uint64(40)).astype(np.float64) / 2**23 - 1) / 16
    np.testing.assert_array_equal(first_vectors(3, hashes), expected.astype(np.float32))
