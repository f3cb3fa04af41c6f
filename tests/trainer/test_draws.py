"""Draws are pure functions, the same in plain Python, numpy and numba."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer import draws
from trainer.kernels import compiled

UINT64 = st.integers(0, 2**64 - 1)


def test_mix_is_splitmix64() -> None:
    # the first outputs of SplitMix64 seeded with 1234567, as published with the generator
    assert [draws.mix((1234567 + draws.GAMMA * n) & draws.MASK) for n in (1, 2)] == [
        6457827717110365317,
        3203168211198807973,
    ]


@given(UINT64, st.integers(0, 2**31), st.integers(0, 15), st.integers(0, 4095))
def test_python_numpy_and_numba_draw_the_same(key: int, position: int, purpose: int, number: int) -> None:
    count = draws.counter(position, purpose, number)
    expected = draws.mix((key + draws.GAMMA * count) & draws.MASK)
    in_numpy = draws.draws(np.array([key], np.uint64), np.array([count], np.uint64))[0]
    in_numba = compiled.draw(np.uint64(key), position, purpose, number)
    assert expected == int(in_numpy) == int(in_numba)


@given(st.tuples(*[st.integers(0, 2**31), st.integers(0, 15), st.integers(0, 4095)] * 2))
def test_no_two_draws_share_a_counter(two: tuple[int, ...]) -> None:
    assert (draws.counter(*two[:3]) == draws.counter(*two[3:])) == (two[:3] == two[3:])


def test_initial_vectors_depend_on_the_user_alone_and_are_gensims_range() -> None:
    hashes = np.arange(20_000, dtype=np.uint64) * np.uint64(977)
    vectors = draws.initial_vectors(3, hashes, 16, 1 / 16)
    np.testing.assert_array_equal(draws.initial_vectors(3, hashes[100:101], 16, 1 / 16)[0], vectors[100])
    assert np.abs(vectors).max() <= 1 / 16
    assert abs(vectors.mean()) < 2e-4
    assert abs(vectors.std() - (2 / 16) / np.sqrt(12)) < 2e-4
    assert not np.array_equal(vectors, draws.initial_vectors(4, hashes, 16, 1 / 16))
