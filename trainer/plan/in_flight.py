"""How many launches of the GPU kernel run at once. Pure.

Users in flight read item rows that others move meanwhile. If they are much of the log, the items learn less: with 6 % of the
users in flight hit@20 is 1.3 % lower on one of two logs, with 1.5 % not measurably (docs/gpu.md, with all epochs). A program
trains 32 users of a stream of 512, so that eight micro-partitions, as by default, keep a launch below one user in 64.

The last programs of a launch have long histories, and run alone. So that others run beside them, several micro-partitions are
trained at once, each by a launch of its own, as long as one user in 64 is in flight (docs/gpu.md).
"""

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.signature import STREAM_USERS

USERS_FOR_ONE_IN_FLIGHT = 64
MOST_AT_ONCE = 4
"""Launches that run at once, at most: more would only take memory."""


def launches_at_once(config: TrainConfig, num_users: int, most_users: int) -> int:
    """Return how many micro-partitions, of at most `most_users` of a log's users, are trained at once; at least 1."""
    in_flight = max(1, most_users * config.tile_users // STREAM_USERS)
    return min(max(num_users // USERS_FOR_ONE_IN_FLIGHT // in_flight, 1), MOST_AT_ONCE)
