"""The attacks find what is there to be found, and nothing where there is nothing: on vectors drawn by a seed."""

import dataclasses

import numpy as np
import pytest

from surf2vec.tasks.release.trail_sums import TrailSums
from tests.hostile.attacks import (
    Release,
    auc,
    link_users,
    rebuild_pages,
    score_by_loss,
    score_by_nearest_interest,
    score_by_nearest_trail,
)

NUM_USERS, NUM_ITEMS, SIZE = 80, 60, 8
URLS = [f"/{row}" for row in range(NUM_ITEMS)]


@pytest.fixture(scope="module")
def histories() -> list[list[str]]:
    rng = np.random.default_rng(1)
    return [[f"/{row}" for row in rng.choice(NUM_ITEMS, 4, replace=False)] for _ in range(2 * NUM_USERS)]


@pytest.fixture(scope="module")
def release(histories: list[list[str]]) -> Release:
    """The first half of the users, with the path of their pages and the mean of their items for the interest."""
    rng = np.random.default_rng(2)
    items = rng.normal(size=(NUM_ITEMS, 2 * SIZE)).astype(np.float32)
    inputs = np.concatenate([rng.normal(size=(NUM_ITEMS, SIZE)), np.zeros((1, SIZE))]).astype(np.float32)
    lags, bias = np.array([1, 0.6, 0.3], np.float32), np.full(SIZE, 0.1, np.float32)
    sums = TrailSums(inputs, lags, bias, np.float32(0.5), slice(SIZE, 2 * SIZE), 2 * SIZE)
    parts, counts = {"interest": slice(0, SIZE), "trail": slice(SIZE, 2 * SIZE)}, np.ones(NUM_ITEMS, np.int64)
    made = Release([], np.zeros((0, 2 * SIZE), np.float32), URLS, items, counts, parts, sums)
    interests = [items[made.find_items(one), :SIZE].mean(axis=0) for one in histories[:NUM_USERS]]
    users = np.concatenate([np.stack(interests), made.sum_trails(histories[:NUM_USERS])], axis=1)
    names = [f"u{row}" for row in range(NUM_USERS)]
    return dataclasses.replace(made, names=names, users=users.astype(np.float32))


def test_last_pages_are_rebuilt_from_a_trail(release: Release, histories: list[list[str]]) -> None:
    for vector, history in zip(release.users[:20], histories, strict=False):
        found = rebuild_pages(release, vector[release.trail])
        assert [URLS[row] for row in found] == history[::-1][:3]


def test_members_are_nearer_than_others(release: Release, histories: list[list[str]]) -> None:
    members, others = histories[:NUM_USERS], histories[NUM_USERS:]
    for score in (score_by_nearest_trail, score_by_nearest_interest):
        mid, low, high = auc(score(release, members), score(release, others))
        assert low <= mid <= high
        assert mid > 0.9
    assert auc(score_by_nearest_trail(release, others), score_by_nearest_trail(release, others))[0] == 0.5
    assert np.all(score_by_loss(release, members) < 0)


def test_users_are_linked_through_a_rotation(release: Release) -> None:
    rng = np.random.default_rng(3)
    turn, _ = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))
    order = rng.permutation(NUM_USERS)
    both = np.kron(np.eye(2), turn).astype(np.float32)
    sums = dataclasses.replace(release.trail_sums, inputs=release.trail_sums.inputs @ turn.astype(np.float32))
    users = release.users[order] @ both
    other = dataclasses.replace(release, users=users, items=release.items @ both, sums=sums)
    assert (order[link_users(release, other)] == np.arange(NUM_USERS)).all()
