"""Orders are permutations, and the learning rate falls as planned."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.schedule import chunk_at, learning_rates, partition_offsets, partition_order, user_order

SEED = st.integers(0, 2**63 - 1)
EPOCH = st.integers(0, 1000)


@given(SEED, EPOCH, st.integers(1, 200))
def test_partition_order_is_a_permutation(seed: int, epoch: int, num_partitions: int) -> None:
    assert sorted(partition_order(seed, epoch, num_partitions)) == list(range(num_partitions))


@given(SEED, EPOCH, st.lists(st.integers(0, 2**64 - 1), max_size=200))
def test_user_order_is_a_permutation(seed: int, epoch: int, hashes: list[int]) -> None:
    assert sorted(user_order(seed, epoch, np.array(hashes, np.uint64))) == list(range(len(hashes)))


def test_orders_differ_between_epochs_and_seeds() -> None:
    orders = [partition_order(seed, epoch, 64).tolist() for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_partition_offsets() -> None:
    offsets = partition_offsets(np.array([2, 0, 1]), np.array([10, 20, 30]))
    assert offsets.tolist() == [0, 30, 40, 60]


def test_learning_rate_falls_linearly_over_all_epochs() -> None:
    lengths = np.array([10, 30, 10])
    first = learning_rates(0.1, 0.0, 0, lengths, 100)
    second = learning_rates(0.1, 0.0, 50, lengths, 100)
    np.testing.assert_allclose(np.concatenate([first, second]), [0.1, 0.09, 0.06, 0.05, 0.04, 0.01], rtol=1e-6)


@given(st.integers(1, 50), st.integers(1, 100))
def test_chunks_cover_the_order_without_overlap(chunk_partitions: int, num_partitions: int) -> None:
    places = [
        i
        for start in range(0, num_partitions, chunk_partitions)
        for i in chunk_at(start, chunk_partitions, num_partitions)
    ]
    assert places == list(range(num_partitions))
    for i in places:
        assert i in chunk_at(i, chunk_partitions, num_partitions)
