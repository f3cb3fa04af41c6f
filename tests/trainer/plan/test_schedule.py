"""Orders are permutations, and the learning rate falls as planned."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.trainer.draws import ORDER, counter, draws, mix_array, user_keys
from surf2vec.trainer.plan.schedule import learning_rates, partition_order, step_at, tokens_before, user_order

SEED = st.integers(0, 2**63 - 1)
EPOCH = st.integers(0, 1000)


@given(SEED, EPOCH, st.integers(1, 200))
def test_partition_order_is_a_permutation(seed: int, epoch: int, num_partitions: int) -> None:
    assert sorted(partition_order(seed, epoch, num_partitions)) == list(range(num_partitions))


@given(SEED, EPOCH, st.lists(st.integers(0, 2**64 - 1), max_size=200))
def test_user_order_is_a_permutation(seed: int, epoch: int, hashes: list[int]) -> None:
    assert sorted(user_order(seed, epoch, np.array(hashes, np.uint64))) == list(range(len(hashes)))


def test_users_of_one_hash_stay_in_order() -> None:
    hashes = np.arange(1000, dtype=np.uint64) % 10
    order = user_order(1, 0, hashes)
    for users in np.split(order, 10):
        assert len(set(hashes[users])) == 1
        assert users.tolist() == sorted(users)


def test_orders_differ_between_epochs_and_seeds() -> None:
    orders = [partition_order(seed, epoch, 64).tolist() for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 6), st.integers(0, 3))
def test_an_epoch_meets_every_user_in_every_block_once(
    num_partitions: int, chunk_partitions: int, num_blocks: int, epoch: int
) -> None:
    length = num_partitions * num_blocks
    steps = [
        step_at(position, num_partitions, chunk_partitions, num_blocks)
        for position in range(epoch * length, (epoch + 1) * length)
    ]
    assert {step.epoch for step in steps} == {epoch}
    assert sorted((step.place, step.block) for step in steps) == [
        (place, block) for place in range(num_partitions) for block in range(num_blocks)
    ]
    assert all(step.place in step.chunk for step in steps)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 6))
def test_either_the_chunk_or_the_block_changes_at_a_step(
    num_partitions: int, chunk_partitions: int, num_blocks: int
) -> None:
    steps = [step_at(p, num_partitions, chunk_partitions, num_blocks) for p in range(3 * num_partitions * num_blocks)]
    for one, next_one in pairwise(steps):
        is_other_chunk = (one.epoch, one.chunk) != (next_one.epoch, next_one.chunk)
        assert not (is_other_chunk and one.block != next_one.block)


@given(st.integers(1, 20), st.integers(1, 20))
def test_with_one_block_the_order_does_not_hang_on_chunks(num_partitions: int, chunk_partitions: int) -> None:
    steps = [step_at(position, num_partitions, chunk_partitions, 1) for position in range(2 * num_partitions)]
    assert [(step.epoch, step.place) for step in steps] == [(e, p) for e in range(2) for p in range(num_partitions)]
    offsets = np.arange(num_partitions + 1) * 10
    assert [tokens_before(step, offsets, 1) for step in steps] == [10 * step.place for step in steps]


def test_orders_are_those_that_stores_in_use_go_on_with() -> None:
    """A store that was written by an earlier version goes on in the order that it began."""
    hashes = np.arange(8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert partition_order(1, 0, 8).tolist() == [0, 2, 7, 5, 6, 4, 3, 1]
    assert partition_order(1, 1, 8).tolist() == [5, 1, 3, 7, 2, 6, 0, 4]
    assert user_order(1, 0, hashes).tolist() == [6, 5, 0, 1, 7, 3, 4, 2]
    assert user_order(7, 3, hashes).tolist() == [2, 4, 5, 7, 6, 1, 3, 0]


def test_blocks_ascend_in_one_chunk_and_descend_in_the_next() -> None:
    """Five places in chunks of two, three blocks: three chunks an epoch, so the second epoch begins downward."""
    blocks = [step_at(position, 5, 2, 3).block for position in range(30)]
    second = [2, 2, 1, 1, 0, 0, 0, 0, 1, 1, 2, 2, 2, 1, 0]
    assert blocks == [0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0, 0, 1, 2, *second]


def test_the_learning_rate_falls_to_its_least() -> None:
    lengths = np.array([40, 60, 1])
    np.testing.assert_allclose(learning_rates(0.5, 0.1, 0, lengths, 100), [0.5, 0.34, 0.1], rtol=1e-6)
    assert learning_rates(0.5, 0.1, 0, np.array([1]), 0).tolist() == [0.5]


@given(SEED, EPOCH, st.integers(1, 3000))
def test_users_are_in_the_order_of_their_draws(seed: int, epoch: int, num_users: int) -> None:
    hashes = mix_array(np.arange(num_users, dtype=np.uint64))
    keys = draws(user_keys(seed, epoch, hashes), np.array([counter(0, ORDER, 0)], dtype=np.uint64))
    np.testing.assert_array_equal(user_order(seed, epoch, hashes), np.argsort(keys, kind="stable"))
