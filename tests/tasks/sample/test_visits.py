"""Who visits what and when: interests that can be told afterwards, and days that look like browsing."""

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.sample.lines import write_ids
from tasks.sample.logs import TOPICS, interests_of, interests_of_user_ids
from tasks.sample.visits import draw_visits, keys_of, make_part
from tasks.sample.world import make_world

SEED = 7


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50), st.integers(0, 2**63 - 1))
def test_interests_are_one_to_three_distinct_topics(numbers: list[int], seed: int) -> None:
    interests = interests_of(np.array(numbers), seed)
    assert interests.shape == (len(numbers), 3)
    for row in interests.tolist():
        kept = [topic for topic in row if topic >= 0]
        assert row == kept + [-1] * (3 - len(kept))
        assert 1 <= len(kept) == len(set(kept))
        assert max(kept) < len(TOPICS)


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50, unique=True), st.integers(0, 2**63 - 1))
def test_interests_can_be_told_from_ids(numbers: list[int], seed: int) -> None:
    ids = write_ids(keys_of(np.array(numbers), seed)).to_pylist()
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{16}", user_id) for user_id in ids)
    np.testing.assert_array_equal(interests_of_user_ids(ids, seed), interests_of(np.array(numbers), seed))


def test_interests_do_not_depend_on_the_number_of_users() -> None:
    np.testing.assert_array_equal(interests_of(np.arange(1_000), 3)[:10], interests_of(np.arange(10), 3))
    shares = np.bincount(interests_of(np.arange(50_000), 3)[:, 0], minlength=len(TOPICS)) / 50_000
    assert shares.min() > 0.02
    assert shares.max() < 0.15


@settings(max_examples=25)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(24, 400), st.integers(0, 2**63 - 1), st.data())
def test_any_day_of_any_part_is_sound(users: int, days: int, items: int, seed: int, data: st.DataObject) -> None:
    world = make_world(items)
    num_parts = data.draw(st.integers(1, min(users, 5)))
    part = make_part(data.draw(st.integers(0, num_parts - 1)), num_parts, users, days, seed)
    visits = draw_visits(part, world, data.draw(st.integers(0, days - 1)))
    assert (np.diff(visits.second) >= 0).all()
    assert ((visits.second >= 0) & (visits.second < 86_400)).all()
    assert ((visits.item >= 0) & (visits.item < items)).all()
    assert (world.section_start[visits.section] <= visits.item).all()
    assert (visits.item < world.section_start[visits.section + 1]).all()
    assert np.isin(visits.key, part.keys).all()


def test_pages_follow_zipf() -> None:
    world = make_world(20_000)
    part = make_part(0, 1, 40_000, 4, SEED)
    visits = [draw_visits(part, world, day) for day in range(4)]
    items = np.concatenate([v.item[~v.is_bot & (v.broken == 0)] for v in visits])
    counts = np.sort(np.bincount(items, minlength=world.num_items))[::-1]
    ranks = np.unique(np.geomspace(1, 5_000, 40).astype(int))
    slope, level = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)
    residuals = np.log(counts[ranks - 1]) - (slope * np.log(ranks) + level)
    assert -1.2 < slope < -0.5  # logs of web pages have 0.6 to 0.9
    assert np.abs(residuals).max() < 0.8
    assert counts[: world.num_items // 10].sum() > 0.4 * counts.sum()


def test_new_users_and_new_pages_come_every_day() -> None:
    world = make_world(2_000)
    part = make_part(0, 1, 5_000, 6, SEED)
    seen_users: set[int] = set()
    seen_items: set[int] = set()
    for day in range(6):
        visits = draw_visits(part, world, day)
        people = ~visits.is_bot
        users, items = set(visits.key[people].tolist()), set(visits.item[people].tolist())
        assert users - seen_users
        assert items - seen_items
        seen_users |= users
        seen_items |= items
    assert len(seen_users) == 5_000
