"""The rules that follow a user's events in order, on literal arrays."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.corpus.cleaning import (
    UNDATED,
    count_items,
    drop_bots,
    drop_repeats,
    find_first_visits,
    find_held_out,
    find_key_max,
    find_last_days,
    keep_in_vocabulary,
    keep_newest,
)
from surf2vec.trainer.store.tokens import Tokens
from tests.data.corpora import held_out_position


def make_events(*rows: tuple[int, int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, dict.fromkeys(("user", "day", "item"), pl.Int32), orient="row")


def users_of(events: pl.DataFrame) -> list[int]:
    return events["user"].unique().sort().to_list()


def make_histories(*tokens: list[int]) -> Tokens:
    offsets = np.cumsum([0, *(len(history) for history in tokens)])
    return Tokens(offsets.astype(np.int64), np.array([t for history in tokens for t in history], dtype=np.int32))


def test_a_user_over_the_limit_of_one_day_is_a_bot() -> None:
    events = make_events((0, 7, 1), (0, 7, 2), (0, 8, 3), (1, 7, 1), (1, 7, 2), (1, 7, 3), (2, 9, 1))
    assert users_of(drop_bots(events, 2)) == [0, 2]
    assert users_of(drop_bots(events, 3)) == [0, 1, 2]


def test_undated_events_make_no_bot_and_do_not_cut_a_day_in_two() -> None:
    events = make_events((0, UNDATED, 1), (0, UNDATED, 1), (1, 3, 1), (1, UNDATED, 1), (1, 3, 1))
    assert users_of(drop_bots(events, 1)) == [0]
    assert users_of(drop_bots(make_events((0, UNDATED, 1), (0, UNDATED, 1)), 1)) == [0]


def test_the_last_day_is_the_newest_that_has_one() -> None:
    events = make_events((0, 3, 1), (0, 7, 1), (2, UNDATED, 1), (3, 5, 1), (3, UNDATED, 1))
    assert find_last_days(events, 5).tolist() == [7, UNDATED, UNDATED, 5, UNDATED]
    assert find_last_days(events.clear(), 2).tolist() == [UNDATED, UNDATED]


def test_repeats_are_of_the_same_user_and_item_in_a_row() -> None:
    events = make_events((0, 1, 5), (0, 2, 5), (0, 2, 6), (0, 2, 5), (1, 2, 5), (1, 2, 5))
    assert drop_repeats(events).rows() == [(0, 1, 5), (0, 2, 6), (0, 2, 5), (1, 2, 5)]
    assert drop_repeats(events.clear()).rows() == []


def test_users_of_an_item_are_counted_once() -> None:
    events = make_events((0, 1, 2), (0, 1, 2), (0, 1, 70_000), (1, 1, 2), (1, 1, 4_464))  # 70,000 - 65,536 = 4,464
    num_events, num_users = count_items(events, 70_001)
    assert {item: num_users[item] for item in np.flatnonzero(num_users)} == {2: 2, 4_464: 1, 70_000: 1}
    assert (num_events[2], num_events.sum(), len(num_events)) == (3, 5, 70_001)


def test_no_events_have_no_first_visits() -> None:
    assert find_first_visits(np.empty(0, np.int32), np.empty(0, np.int32)).tolist() == []


def test_items_outside_of_the_vocabulary_leave_their_users() -> None:
    known = keep_in_vocabulary(np.array([3, 0, 2]), np.array([-1, 4, 5, 6, -1], dtype=np.int32))
    assert known.offsets.tolist() == [0, 2, 2, 3]
    assert known.tokens.tolist() == [4, 5, 6]


def test_the_newest_events_of_the_kept_users_stay() -> None:
    kept = keep_newest(make_histories([1, 2, 3], [4], [], [5, 6]), np.array([True, False, False, True]), 2)
    assert kept.offsets.tolist() == [0, 2, 2, 2, 4]
    assert kept.tokens.tolist() == [2, 3, 5, 6]


def test_nobody_is_left_of_nobody() -> None:
    kept = keep_newest(make_histories([1], [2]), np.array([False, False]), 5)
    assert (kept.offsets.tolist(), kept.tokens.tolist()) == ([0, 0, 0], [])
    assert find_held_out(make_histories()).tolist() == []


@pytest.mark.parametrize(
    ("history", "place"), [([3], -1), ([3, 3, 3], -1), ([3, 4], 1), ([3, 4, 3, 4], 1), ([1, 2, 1, 9, 2], 3)]
)
def test_the_newest_event_whose_item_is_new_is_held_out(history: list[int], place: int) -> None:
    assert find_held_out(make_histories([7, 8], history)).tolist() == [1, place]


@given(st.lists(st.lists(st.integers(0, 200_000) | st.integers(0, 3), min_size=1, max_size=9), max_size=6))
def test_first_visits_and_held_out_are_those_of_plain_python(histories: list[list[int]]) -> None:
    made = make_histories(*histories)
    user = np.repeat(np.arange(len(histories)), [len(history) for history in histories])
    expected = [item not in history[:place] for history in histories for place, item in enumerate(history)]
    assert find_first_visits(user, made.tokens).tolist() == expected
    assert find_held_out(made).tolist() == [held_out_position(history) for history in histories]


@pytest.mark.parametrize(
    ("keys", "max_users", "expected"),
    [
        ([], 3, (2**64 - 1, 0)),
        ([], 0, (-1, 0)),
        ([5], 0, (-1, 0)),
        ([5, 7, 2**64 - 1], 3, (2**64 - 1, 3)),
        ([5, 7, 9], 2, (7, 2)),
        ([5, 7, 7], 2, (5, 1)),  # two users share the last key: rather one too few than one too many
        ([7, 7], 1, (-1, 0)),
    ],
)
def test_held_out_users_are_never_more_than_asked(keys: list[int], max_users: int, expected: tuple[int, int]) -> None:
    assert find_key_max(np.array(keys, dtype=np.uint64), max_users) == expected
