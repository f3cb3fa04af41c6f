"""The rules that follow a user's events in order, on literal arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.corpus.cleaning import find_first_visits, find_held_out, find_key_max
from surf2vec.trainer.store.tokens import Tokens
from tests.data.corpora import held_out_position


def make_histories(*tokens: list[int]) -> Tokens:
    offsets = np.cumsum([0, *(len(history) for history in tokens)])
    return Tokens(offsets.astype(np.int64), np.array([t for history in tokens for t in history], dtype=np.int32))


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
