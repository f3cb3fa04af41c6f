"""Halves keep the mean: what rounding cuts off comes back as the probability of rounding up."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.trainer import draws
from surf2vec.trainer.kernels.first_rows import round_to_bfloat16
from surf2vec.trainer.model.rows import Rows


def rounded(value: float, num_draws: int = 4096) -> np.ndarray:
    vectors = np.full((num_draws, 3), value, dtype=np.float32)
    halves = round_to_bfloat16(vectors, 1, 0, np.arange(num_draws, dtype=np.uint64))
    return Rows(halves, np.zeros(0, np.float32)).widened()


@given(st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False))
def test_a_number_becomes_one_of_its_two_neighbours(value: float) -> None:
    found = np.unique(rounded(value, 64))
    assert len(found) <= 2
    assert (np.abs(found - np.float32(value)) <= np.abs(np.float32(value)) * 2**-7).all()
    if len(found) == 2:
        assert found[0] < value < found[1]


def test_the_mean_is_kept() -> None:
    for value in (0.1, -0.3, 1.001, 123.4):
        found = rounded(value)
        unit = abs(value) * 2**-7
        assert abs(found.mean() - value) < 4 * unit / np.sqrt(found.size)


def test_a_bfloat16_number_stays_itself_and_draws_are_a_function_of_epoch_and_user() -> None:
    vectors = np.array([[1.0, -0.5, 0.0, 3.140625, 2.0]], dtype=np.float32)
    hashes = np.array([7], dtype=np.uint64)
    halves = round_to_bfloat16(vectors, 1, 0, hashes)
    np.testing.assert_array_equal(Rows(halves, np.zeros(0, np.float32)).widened(), vectors)
    crowd = np.random.default_rng(0).normal(size=(9000, 5)).astype(np.float32)
    names = np.arange(9000, dtype=np.uint64)
    whole = round_to_bfloat16(crowd, 1, 2, names)
    np.testing.assert_array_equal(round_to_bfloat16(crowd[8500:], 1, 2, names[8500:]), whole[8500:])
    assert not np.array_equal(round_to_bfloat16(crowd, 1, 3, names), whole)


def test_a_number_is_rounded_by_its_quarter_of_a_draw() -> None:
    vectors = np.random.default_rng(1).normal(size=(2, 6)).astype(np.float32)
    hashes = np.array([3, 2**64 - 1], dtype=np.uint64)
    counters = np.array([draws.counter(n, draws.ROUND, 0) for n in range(2)], dtype=np.uint64)
    bits = draws.draws(draws.user_keys(1, 4, hashes)[:, None], counters[None, :])
    quarters = [[(int(bits[i, d // 4]) >> 16 * (d % 4)) % 2**16 for d in range(6)] for i in range(2)]
    expected = (vectors.view(np.uint32).astype(np.uint64) + np.array(quarters, dtype=np.uint64)) >> np.uint64(16)
    np.testing.assert_array_equal(round_to_bfloat16(vectors, 1, 4, hashes), expected)
