"""Strings as numbers, sorts of numbers, and the order of users."""

import duckdb
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from surf2vec.tasks.events.events_files import number_strings, place_users
from surf2vec.tasks.release.release_reader import user_hash

STRINGS = st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=20)


def test_strings_are_numbered_as_they_first_appear() -> None:
    codes, distinct = number_strings(pa.chunked_array([["b", "a", "b", None], ["c", "a", "", None]]))
    assert codes.tolist() == [0, 1, 0, 2, 3, 1, 4, 2]
    assert distinct.to_pylist() == ["b", "a", None, "c", ""]


@given(st.lists(STRINGS, max_size=4), st.sampled_from([pa.string(), pa.large_string()]))
def test_numbers_stand_for_their_strings(columns: list[list[str | None]], dtype: pa.DataType) -> None:
    codes, distinct = number_strings(pa.chunked_array([pa.array(column, dtype) for column in columns], dtype))
    found = distinct.to_pylist()
    assert len(set(found)) == len(found)
    assert [found[code] for code in codes] == [text for column in columns for text in column]


def test_the_hash_is_the_lower_half_of_md5() -> None:
    assert user_hash("a") == 0x61267769E299C331  # 0cc175b9c0f1b6a8 31c399e269772661


@given(st.lists(st.text(max_size=90), max_size=8, unique=True), st.sampled_from([1, 2, 8]))
@example(["zoe", "Zoë", "日本", "", "zo"], 2)
def test_users_are_placed_by_their_hash_and_ordered_by_bytes(users: list[str], partitions: int) -> None:
    with duckdb.connect() as con:
        placed = place_users(con, pa.array(users, pa.large_string()), partitions).to_pylist()
    assert [users[row["user_code"]] for row in placed] == [row["user_id"] for row in placed]
    in_order = sorted(users, key=lambda user: (user_hash(user) % partitions, user.encode()))
    expected = [(user, user_hash(user), user_hash(user) % partitions) for user in in_order]
    assert [(row["user_id"], row["user_hash"], row["micro_partition"]) for row in placed] == expected


def test_nobody_is_placed_as_an_empty_id() -> None:
    with duckdb.connect() as con:
        [row] = place_users(con, pa.array([None], pa.string()), 8).to_pylist()
    assert (row["user_id"], row["user_hash"]) == (None, user_hash(""))
