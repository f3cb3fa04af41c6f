"""Which micro-partition and which user comes when, and at which learning rate: pure functions of (seed, epoch).

The loop's position is one integer, the number of micro-partitions done; all else is derived from it here.
"""

import numpy as np
from numpy.typing import NDArray

from trainer.draws import ORDER, counter, draws, epoch_key, user_keys


def partition_order(seed: int, epoch: int, num_partitions: int) -> NDArray[np.int64]:
    """The order of micro-partitions in an epoch, a permutation int64[P]."""
    key = np.array([epoch_key(seed, epoch)], dtype=np.uint64)
    counters = np.array([counter(p, ORDER, 1) for p in range(num_partitions)], dtype=np.uint64)
    return np.argsort(draws(key, counters), kind="stable")


def user_order(seed: int, epoch: int, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The order of the users of one micro-partition in an epoch, a permutation int64[n]."""
    keys = draws(user_keys(seed, epoch, hashes), np.array([counter(0, ORDER, 0)], dtype=np.uint64))
    return np.argsort(keys, kind="stable")


def partition_offsets(order: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Raw tokens that come before each place of an epoch's order, int64[P + 1]; `tokens[p]` is micro-partition p's."""
    return np.concatenate(([0], np.cumsum(tokens[order]))).astype(np.int64)


def learning_rates(
    alpha: float, min_alpha: float, first_token: int, lengths: NDArray[np.int64], total_tokens: int
) -> NDArray[np.float32]:
    """The learning rate of each user, float32[n]: falls linearly with the raw tokens before the user.

    `first_token` counts the tokens before the first of these users over all epochs, `lengths` int64[n] are the users'
    tokens in their order, `total_tokens` those of all planned epochs.
    """
    before = first_token + np.cumsum(lengths) - lengths
    return (alpha - (alpha - min_alpha) * (before / max(total_tokens, 1))).astype(np.float32)


def chunk_at(index: int, chunk_partitions: int, num_partitions: int) -> range:
    """The places of the epoch's order that make up the chunk with place `index`."""
    start = index - index % chunk_partitions
    return range(start, min(start + chunk_partitions, num_partitions))
