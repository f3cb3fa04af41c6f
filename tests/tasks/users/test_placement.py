"""Where users are: MD5 of many at once against the library, and a bytewise order."""

import hashlib

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.users.placement import hash_users, place_users, user_hash
from tests import corpora


def test_the_hash_is_the_lower_half_of_md5() -> None:
    assert user_hash("a") == 0x61267769E299C331  # 0cc175b9c0f1b6a8 31c399e269772661
    assert hash_users(pa.array(["a", None, ""])).tolist() == [user_hash("a"), user_hash(""), user_hash("")]
    assert hash_users(pa.array([], pa.string())).tolist() == []


@given(st.text(max_size=20))
def test_the_hash_is_the_one_that_places_users(user_id: str) -> None:
    assert user_hash(user_id) == corpora.user_hash(user_id)


@pytest.mark.parametrize("dtype", [pa.string(), pa.large_string()])
def test_every_length_around_the_blocks_of_md5(dtype: pa.DataType) -> None:
    texts = ["".join(chr(33 + (length * 7 + place) % 90) for place in range(length)) for length in range(200)]
    halves = [hashlib.md5(text.encode()).digest()[8:] for text in texts]
    assert hash_users(pa.array(["x", *texts], dtype).slice(1)).tolist() == [
        int.from_bytes(half, "little") for half in halves
    ]


@given(st.lists(st.text(max_size=90), max_size=8, unique=True), st.sampled_from([1, 2, 8]))
@example(["zoe", "Zoë", "日本", "", "zo"], 2)
def test_users_are_placed_by_their_hash_and_ordered_by_bytes(users: list[str], partitions: int) -> None:
    user_ids = pa.array(users, pa.string())
    hashes = hash_users(user_ids)
    assert hashes.tolist() == [user_hash(user) for user in users]
    micro_partition, order = place_users(user_ids, hashes, partitions)
    assert micro_partition.tolist() == [user_hash(user) % partitions for user in users]
    placed = sorted(users, key=lambda user: (user_hash(user) % partitions, user.encode()))
    assert [users[place] for place in order.tolist()] == placed
