"""How many users a launch on the GPU has, and what the plan says of it."""

import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.plan.alone import Budget, plan_training
from surf2vec.trainer.plan.in_flight import LEAST_USERS, MOST_PROGRAMS, USERS_FOR_ONE_IN_FLIGHT, users_per_launch
from surf2vec.trainer.plan.sizes import Work, training_sizes

PRIVATE = TrainConfig(parts="interest", tile_users=1)


@pytest.mark.parametrize(
    ("num_users", "most"),
    [
        (10, LEAST_USERS), (64 * LEAST_USERS, LEAST_USERS), (64_000, 1000), (64 * MOST_PROGRAMS - 1, MOST_PROGRAMS - 1),
        (64 * MOST_PROGRAMS, None), (10**8, None),
    ],
)  # fmt: skip
def test_a_launch_has_one_user_in_64_until_a_card_has_no_more_in_flight(num_users: int, most: int | None) -> None:
    assert USERS_FOR_ONE_IN_FLIGHT == 64
    assert users_per_launch(PRIVATE, num_users) == most
    assert users_per_launch(TrainConfig(parts="interest"), num_users) is None, (
        "a tile's stream has 32 of hundreds in flight"
    )


@pytest.mark.parametrize(
    ("config", "num_users", "words"),
    [
        (
            PRIVATE,
            12_800,
            "at most 200 of 12,800 users, one in 64: more in flight would learn from items that others move",
        ),
        (PRIVATE, 300_000, "all users of a micro-partition: about 4,096 are in flight, less than one in 64 of 300,000"),
        (TrainConfig(parts="interest"), 12_800, "all users of a micro-partition: of a stream only 32 are in flight"),
    ],
    ids=["few", "many", "tiles"],
)
def test_the_plan_says_which_and_why(config: TrainConfig, num_users: int, words: str) -> None:
    work, sizes = Work([num_users // 4] * 4, [num_users] * 4, 1, 60.0), training_sizes(config, 1000, None)
    plan = plan_training(work, sizes, Budget(10**12, 0, 10**15, device_bytes=10**11))
    assert any(words in reason for reason in plan.reasons), plan.reasons
    assert not any("launch" in reason for reason in plan_training(work, sizes, Budget(10**12, 0, 10**15)).reasons)
