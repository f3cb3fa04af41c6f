"""The simulation of a card's launch: one user at a time is the reference's arithmetic; the order of lanes counts for Adagrad."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import signature
from tests.trainer.kernels import reference
from tests.trainer.kernels.lockstep import lane_spread, make_launch, make_tile_launch, simulate
from tests.trainer.kernels.test_gpu import TOLERANCE, make_rows, make_work
from tests.trainer.training.test_device_races import one_thread

__all__ = ["one_thread"]  # a fixture
COMBINATIONS = list(itertools.product(("sampled_softmax", "negative_sampling"), ("adagrad", "sgd")))


def config_of(objective: Any, optimizer: Any) -> TrainConfig:
    return TrainConfig(
        parts="interest", vector_size=6, negative=5, objective=objective, optimizer=optimizer, sample=0.02, tile_users=1
    )


@pytest.mark.parametrize(("objective", "optimizer"), COMBINATIONS)
@pytest.mark.parametrize("update_items", [True, False])
def test_one_user_at_a_time_is_the_reference(objective: str, optimizer: str, update_items: bool) -> None:
    work = make_work(config_of(objective, optimizer), num_users=30, num_items=17, recency=2)
    work = dataclasses.replace(work, update_items=update_items)
    users, items = make_rows(work)
    expected_users, expected_items = users.copy(), items.copy()
    expected = reference.train_users(expected_users, expected_items, work)
    assert simulate(make_launch(1, None), users, items, work) == expected > 0
    for ours, theirs in ((users, expected_users), (items.outputs, expected_items.outputs)):
        np.testing.assert_allclose(ours.vectors, theirs.vectors, atol=2e-6)
        np.testing.assert_allclose(ours.squares, theirs.squares, atol=2e-6)


def test_with_items_frozen_it_does_not_matter_how_many_are_in_flight() -> None:
    work = make_work(config_of("sampled_softmax", "adagrad"), num_users=30, num_items=17)
    for update_items, is_same in ((False, True), (True, False)):
        ends = []
        for width in (1, 8, 30):
            users, items = make_rows(work)
            simulate(make_launch(width), users, items, dataclasses.replace(work, update_items=update_items))
            ends.append(users.vectors)
        assert all(np.allclose(ends[0], end, atol=1e-6) for end in ends[1:]) == is_same


@pytest.mark.parametrize(("objective", "optimizer"), COMBINATIONS)
def test_the_order_of_lanes_counts_where_a_sum_is_returned(objective: str, optimizer: str) -> None:
    """Adagrad's step needs the sum before it, so that equal negatives of one user differ; a plain sum has no order."""
    spread = lane_spread(make_work(config_of(objective, optimizer), num_users=12, num_items=7))
    assert spread > TOLERANCE if optimizer == "adagrad" else spread < 2e-6


def test_steps_in_flight_are_all_kept() -> None:
    """A card loses no step: the items' sums of squares grow by those of all users, as many as are in flight."""
    work = make_work(config_of("sampled_softmax", "adagrad"), num_users=30, num_items=17)
    users, items = make_rows(work)
    before = items.outputs.squares.copy()
    simulate(make_launch(30), users, items, work)
    assert (items.outputs.squares >= before).all()
    counts = np.bincount(work.tokens, minlength=17)
    assert (items.outputs.squares[counts > 0] > before[counts > 0]).all()
    assert torch.isfinite(torch.from_numpy(items.outputs.vectors)).all()


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_one_stream_of_tiles_at_a_time_is_the_reference(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More streams at a time are not: their items learn from rows that others move meanwhile."""
    monkeypatch.setattr(signature, "STREAM_USERS", 12)
    config = dataclasses.replace(config_of("sampled_softmax", optimizer), tile_users=4)
    work = make_work(config, num_users=60, num_items=17, recency=2)
    assert len(work.streams) > 3
    users, items = make_rows(work)
    ends, expected_users, expected_items = [], users.copy(), items.copy()
    expected = reference.train_users(expected_users, expected_items, work)
    for width in (1, 2):
        users, items = make_rows(work)
        assert simulate(make_tile_launch(width), users, items, work) == expected > 0
        ends.append((users.vectors, items.outputs.vectors))
    for alone, beside, wanted in zip(*ends, (expected_users.vectors, expected_items.outputs.vectors), strict=True):
        np.testing.assert_allclose(alone, wanted, atol=2e-6)
        assert np.abs(beside - wanted).max() > 1e-4
