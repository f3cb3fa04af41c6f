"""Who trains what, and when, with several workers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.plan.schedule import partition_order
from surf2vec.trainer.plan.sharing import Sharing, count_exchanges, cut_users, ring_block, share_users

token_counts = st.lists(st.integers(0, 1000), min_size=1, max_size=64).map(np.array)


@given(token_counts, st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 5))
def test_every_micro_partition_is_trained_once_an_epoch_by_its_worker(
    tokens: np.ndarray, weights: list[int], epoch: int
) -> None:
    if len(tokens) < len(weights):
        with pytest.raises(ConfigError, match=f"{len(weights)} workers cannot share {len(tokens)} micro-partitions"):
            share_users(0, tokens, weights)
        return
    share, order = share_users(0, tokens, weights), partition_order(1, epoch, len(tokens))
    assert sorted(np.concatenate(share.partitions).tolist()) == list(range(len(tokens)))
    assert min(map(len, share.partitions)) == share.num_places > 0
    for rank, own in enumerate(share.partitions):
        places = share.places(order, rank)
        assert len(places) == share.num_places
        assert np.concatenate(places).tolist() == [p for p in order.tolist() if p in own]
        assert max(map(len, places)) == share.most_per_place(rank)
        assert share.place_tokens(order)[rank].sum() == tokens[own].sum()


def test_the_only_worker_has_a_micro_partition_a_place() -> None:
    order = np.array([2, 0, 1])
    share = share_users(0, np.array([5, 5, 5]), [1.0])
    assert [here.tolist() for here in share.places(order)] == [[2], [0], [1]]


def test_tokens_are_shared_evenly_or_by_weight() -> None:
    tokens = np.random.default_rng(0).integers(900, 1100, 512)
    even = share_users(0, tokens, [1, 1, 1, 1])
    loads = [tokens[own].sum() for own in even.partitions]
    assert max(loads) < 1.002 * np.mean(loads)
    uneven = share_users(1, tokens, [2, 1])
    assert tokens[uneven.own].sum() == pytest.approx(tokens.sum() / 3, rel=0.005)
    assert uneven.most_per_place(uneven.rank) == 1
    assert uneven.most_per_place(0) == 2


@given(st.lists(st.lists(st.integers(0, 30), max_size=20), min_size=1, max_size=4), st.integers(1, 12))
def test_exchanges_divide_a_place_evenly_whoever_has_what(users: list[list[int]], num_exchanges: int) -> None:
    """users: the tokens of each, by micro-partition of a place."""
    total, before, found = sum(map(sum, users)), 0, 0
    for lengths in map(np.array, users):
        cuts = cut_users(lengths.astype(np.int64), before, total, num_exchanges)
        assert (np.diff(cuts) >= 0).all()
        done = before + np.cumsum(lengths)
        for cut in cuts.tolist():
            found += 1
            wanted = total * found / num_exchanges
            assert done[cut - 1] >= wanted  # no earlier than at this user
            assert done[cut - 1] - lengths[cut - 1] < wanted
        before += int(lengths.sum())
    assert found == (num_exchanges if total else 0)


def test_the_workers_exchange_as_often_as_tokens_went_by() -> None:
    """However many places there are; and at the end of an epoch, so that all have the same then."""

    def count(tokens: list[float], exchange_tokens: float, cuts_places: bool = True) -> list[int]:
        sharing = Sharing("replicated", (1, 1), exchange_tokens, cuts_places=cuts_places)
        return count_exchanges(np.array(tokens), sharing).tolist()

    assert count([100, 250, 0, 40], 100) == [1, 2, 0, 1]
    assert count([100, 250, 0, 40], 100, cuts_places=False) == [1, 1, 0, 1]
    assert count([10] * 8, 40) == [0, 0, 0, 1, 0, 0, 0, 1]
    assert count([10, 10, 10], 1000) == [0, 0, 1]
    assert sum(count([10] * 8192, 8192 * 10 / 64)) == 64


def test_cuts_come_after_users() -> None:
    assert cut_users(np.array([10, 10, 10, 10]), 0, 40, 2).tolist() == [2, 4]
    assert cut_users(np.array([10, 10]), 0, 40, 2).tolist() == [2]
    assert cut_users(np.array([10, 10]), 20, 40, 2).tolist() == [2]
    assert cut_users(np.array([10, 10]), 0, 20, 0).tolist() == []


@given(st.integers(1, 6), st.integers(1, 4))
def test_blocks_go_round_in_a_latin_square(num_workers: int, held: int) -> None:
    num_blocks = num_workers * held
    for rank in range(num_workers):
        assert {ring_block(rank, turn, num_workers, num_blocks) for turn in range(num_blocks)} == set(range(num_blocks))
    for turn in range(2 * num_blocks):
        now = [ring_block(rank, turn, num_workers, num_blocks) for rank in range(num_workers)]
        assert len(set(now)) == num_workers, "two workers have the same block"
        for rank, block in enumerate(now):  # it is passed to the worker before, who needs it `held` turns later
            assert ring_block((rank - 1) % num_workers, turn + held, num_workers, num_blocks) == block
