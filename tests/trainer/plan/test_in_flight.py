"""How many micro-partitions the GPU trains at once."""

import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.plan.in_flight import launches_at_once


@pytest.mark.parametrize(
    ("num_users", "num_partitions", "at_once"),
    [(1000, 1, 1), (100_000, 4, 1), (100_000, 8, 2), (100_000, 16, 4), (10**8, 1000, 4)],
)
def test_at_most_one_user_in_64_is_in_flight(num_users: int, num_partitions: int, at_once: int) -> None:
    most_users = num_users // num_partitions
    assert launches_at_once(TrainConfig(parts="interest"), num_users, most_users) == at_once
    in_flight = at_once * most_users * 32 // 512
    assert at_once == 1 or in_flight <= num_users / 64
