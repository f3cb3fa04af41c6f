"""How many users one launch of the GPU kernel trains, and how many launches run at once. Pure.

Users in flight read item rows that others move meanwhile. If they are much of the log, the items learn less: with 13 % of the
users in step hit@20 is 1.2 % lower on one of two logs, with 1.6 % not measurably (docs/gpu.md, with all epochs). So
a launch has at most one user in 64 of the log. A card runs at most about 4,000 programs, so that larger logs need no limit. In
tiles a program trains 32 users of a stream of 512, so that eight micro-partitions, as by default, keep it below that.

The last programs of a launch have long histories, and run alone. So that others run beside them, several micro-partitions are
trained at once, each by a launch of its own, as long as one user in 64 is in flight (docs/gpu.md).
"""

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.signature import STREAM_USERS

USERS_FOR_ONE_IN_FLIGHT = 64
LEAST_USERS = 64
MOST_PROGRAMS = 4096
"""Programs in flight on the largest cards: of one warp each, limited by their registers."""


def users_per_launch(config: TrainConfig, num_users: int) -> int | None:
    """Return the most users of a launch for a log of `num_users` users; None: no limit."""
    most = max(LEAST_USERS, num_users // USERS_FOR_ONE_IN_FLIGHT)
    return None if config.has_tiles or most >= MOST_PROGRAMS else most


MOST_AT_ONCE = 4
"""Launches that run at once, at most: more would only take memory."""


def launches_at_once(config: TrainConfig, num_users: int, most_users: int) -> int:
    """Return how many micro-partitions, of at most `most_users` of a log's users, are trained at once; at least 1."""
    if users_per_launch(config, num_users) is not None:
        return 1
    if not config.has_tiles:  # a card has no more programs in flight, however many launches they are from
        return MOST_AT_ONCE
    in_flight = max(1, most_users * config.tile_users // STREAM_USERS)
    return min(max(num_users // USERS_FOR_ONE_IN_FLIGHT // in_flight, 1), MOST_AT_ONCE)


def explain_in_flight(config: TrainConfig, num_users: int) -> str:
    """Return the limit in words, with its reason."""
    most = users_per_launch(config, num_users)
    if most is not None:
        return (
            f"a launch on the GPU has at most {most:,} of {num_users:,} users, one in {USERS_FOR_ONE_IN_FLIGHT}: more in flight "
            "would learn from items that others move meanwhile"
        )
    if config.has_tiles:
        return f"a launch on the GPU has all users of a micro-partition: of a stream only {config.tile_users} are in flight"
    return (
        f"a launch on the GPU has all users of a micro-partition: about {MOST_PROGRAMS:,} are in flight, less than one in "
        f"{USERS_FOR_ONE_IN_FLIGHT} of {num_users:,}"
    )
