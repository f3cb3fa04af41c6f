"""Rows of a night after those of its base: a literal example, and what holds for any nights in a row."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.corpus.folder import ROWS_SCHEMA
from surf2vec.tasks.corpus.token_pass import continue_rows, find_changed
from surf2vec.trainer.store.tokens import Tokens


def users_of(last_days: dict[str, int]) -> pa.Table:
    """Users by id, their hashes made of it."""
    ids = sorted(last_days)
    columns = [ids, [sum(map(ord, user)) for user in ids], [last_days[user] for user in ids], [0] * len(ids)]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, ROWS_SCHEMA, strict=True)], ROWS_SCHEMA)


def test_who_left_comes_back_in_another_row() -> None:
    left, _ = continue_rows(users_of({"a": 1, "b": 9}), users_of({"b": 10}), oldest_day=5)
    assert continue_rows(left, users_of({"a": 11}), oldest_day=6)[0]["user_id"].to_pylist() == [None, "b", "a"]


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


history = st.lists(st.integers(0, 2), max_size=3)


@given(st.lists(st.tuples(history, history), max_size=12), st.lists(history, max_size=4))
def test_changed_rows_are_those_a_plain_loop_finds(
    pairs: list[tuple[list[int], list[int]]], new: list[list[int]]
) -> None:
    now = [after for _, after in pairs] + new
    found = find_changed(tokens_of([before for before, _ in pairs]), tokens_of(now))
    expected = [bool(after) and before != after for before, after in pairs] + [bool(after) for after in new]
    assert found.tolist() == expected
