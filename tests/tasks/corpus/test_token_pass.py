"""Rows of a night after those of its base: a literal example, and what holds for any nights in a row."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.corpus.cleaning import UNDATED
from surf2vec.tasks.corpus.folder import USERS_SCHEMA
from surf2vec.tasks.corpus.token_pass import continue_rows, find_changed, find_known
from surf2vec.trainer.store.tokens import Tokens


def users_of(last_days: dict[str, int]) -> pa.Table:
    """Users by id, their hashes made of it."""
    ids = sorted(last_days)
    columns = [ids, [sum(map(ord, user)) for user in ids], [last_days[user] for user in ids]]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, USERS_SCHEMA, strict=True)], USERS_SCHEMA)


def test_users_stay_where_they_are_leave_when_they_are_too_old_and_come_last() -> None:
    base = users_of({"b": 10, "c": 3, "d": 7, "u": UNDATED})
    users, source = continue_rows(base, users_of({"a": 12, "b": 11, "e": 12}), oldest_day=5)
    assert users.to_pylist() == [
        {"user_id": "b", "hash": 98, "last_day": 11},
        {"user_id": None, "hash": 0, "last_day": 0},
        {"user_id": "d", "hash": 100, "last_day": 7},
        {"user_id": "u", "hash": 117, "last_day": UNDATED},
        {"user_id": "a", "hash": 97, "last_day": 12},
        {"user_id": "e", "hash": 101, "last_day": 12},
    ]
    assert source.tolist() == [1, -1, -1, -1, 0, 2]


def test_who_left_comes_back_in_another_row() -> None:
    left, _ = continue_rows(users_of({"a": 1, "b": 9}), users_of({"b": 10}), oldest_day=5)
    assert continue_rows(left, users_of({"a": 11}), oldest_day=6)[0]["user_id"].to_pylist() == [None, "b", "a"]


def test_the_newest_event_ever_seen_counts_also_when_this_window_is_older() -> None:
    base = users_of({"a": 9, "b": UNDATED, "c": 4})
    users, _ = continue_rows(base, users_of({"a": 7, "b": 3, "c": UNDATED}), oldest_day=8)
    assert users["last_day"].to_pylist() == [9, 3, 4]


nights = st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.just(0), max_size=8), min_size=1, max_size=8)


@given(nights, st.integers(1, 4))
def test_over_any_nights_nobody_moves_doubles_or_is_lost(nights: list[dict[str, int]], retain_days: int) -> None:
    users = users_of({})
    seen: dict[str, int] = {}
    for day, visitors in enumerate(nights):
        before = users["user_id"].to_pylist()
        window = users_of(dict.fromkeys(visitors, day))
        users, sources = continue_rows(users, window, day - retain_days)
        ids = users["user_id"].to_pylist()
        seen |= dict.fromkeys(visitors, day)
        assert all(now in (then, None) for then, now in zip(before, ids[: len(before)], strict=True))
        there = [user for user in ids if user is not None]
        assert sorted(there) == sorted(user for user, last in seen.items() if last >= day - retain_days)
        of_window = np.array([*window["user_id"].to_pylist(), None])
        assert all(of_window[source] == user for source, user in zip(sources, ids, strict=True) if source >= 0)
        assert (sources >= 0).sum() == len(visitors)


def tokens_of(histories: list[list[int]]) -> Tokens:
    offsets = np.cumsum([0, *map(len, histories)])
    return Tokens(offsets, np.array([token for history in histories for token in history], dtype=np.int32))


def test_row_minus_one_has_no_tokens() -> None:
    taken = tokens_of([[1, 2], [3]]).take(np.array([1, -1, 0, -1]))
    assert (taken.offsets.tolist(), taken.tokens.tolist()) == ([0, 1, 1, 3, 3], [3, 1, 2])
    assert tokens_of([]).take(np.array([-1])).offsets.tolist() == [0, 0]


def test_items_are_known_that_the_base_has_in_their_row() -> None:
    base = tokens_of([[1, 2], [], [3, 3]])
    rows, items = np.array([0, 0, 1, 2, 3, 9]), np.array([2, 3, 2, 3, 3, 1], dtype=np.int32)
    assert find_known(base, rows, items).tolist() == [True, False, False, True, False, False]


def test_rows_to_train_have_other_tokens_than_before() -> None:
    base = tokens_of([[1, 2], [3], [], [4, 5], [6]])
    now = tokens_of([[1, 2], [3, 3], [7], [5, 4], [], [8], []])
    assert find_changed(base, now).tolist() == [False, True, True, True, False, True, False]


history = st.lists(st.integers(0, 2), max_size=3)


@given(st.lists(st.tuples(history, history), max_size=12), st.lists(history, max_size=4))
def test_changed_rows_are_those_a_plain_loop_finds(
    pairs: list[tuple[list[int], list[int]]], new: list[list[int]]
) -> None:
    now = [after for _, after in pairs] + new
    found = find_changed(tokens_of([before for before, _ in pairs]), tokens_of(now))
    expected = [bool(after) and before != after for before, after in pairs] + [bool(after) for after in new]
    assert found.tolist() == expected
