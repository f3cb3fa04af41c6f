"""The order of micro-partitions and users, and the learning rates: pure functions of (seed, epoch).

All is computed from the loop's position: the number of finished places (for one worker, micro-partitions).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.draws import ORDER, counter, draws, epoch_key, user_keys


def partition_order(seed: int, epoch: int, num_partitions: int) -> NDArray[np.int64]:
    """Return the order of micro-partitions in an epoch, a permutation int64[P]."""
    key = np.array([epoch_key(seed, epoch)], dtype=np.uint64)
    counters = np.array([counter(p, ORDER, 1) for p in range(num_partitions)], dtype=np.uint64)
    return np.argsort(draws(key, counters), kind="stable")


def user_order(seed: int, epoch: int, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the order of the users of one micro-partition in an epoch, a permutation int64[n]."""
    from surf2vec.trainer.kernels.compiled_draws import draw_order, take_numbers  # numba takes half a second to import
    from surf2vec.trainer.kernels.cpu import read_only

    bits, order = np.uint64(len(hashes).bit_length()), np.empty(len(hashes), dtype=np.uint64)
    draw_order(*read_only(hashes), np.uint64(epoch_key(seed, epoch)), bits, order)
    order.sort()  # takes half the time of an argsort, so that a draw gives its lowest bits to its user's number
    if take_numbers(order, bits):
        keys = draws(user_keys(seed, epoch, hashes), np.array([counter(0, ORDER, 0)], dtype=np.uint64))
        return np.argsort(keys, kind="stable")
    return order.view(np.int64)


def learning_rates(
    alpha: float, min_alpha: float, first_token: float, lengths: NDArray[Any], total_tokens: int
) -> NDArray[np.float32]:
    """Return the learning rate of each user, float32[n], which falls linearly with the raw tokens before the user.

    first_token: tokens of all epochs before these users; lengths [n]: of the users, in their order; total_tokens: of all epochs.
    """
    from surf2vec.trainer.kernels.compiled_draws import fill_rates  # numba takes half a second to import

    rates = np.empty(len(lengths), dtype=np.float32)
    fill_rates(lengths, float(first_token), max(total_tokens, 1), alpha, alpha - min_alpha, rates)
    return rates


@dataclass(frozen=True)
class ScheduleStep:
    """The loop's work at one position: the users at a place of the epoch's order, and their tokens in one item block.

    chunk: the places whose users are in memory together; turn: the number of the block within the chunk, from 0.
    """

    epoch: int
    chunk: range
    turn: int
    block: int
    place: int


def step_at(position: int, num_places: int, chunk_places: int, num_blocks: int) -> ScheduleStep:
    """Return the step at a position: epoch by epoch, chunk by chunk, block by block, place by place.

    Blocks ascend in one chunk and descend in the next, so that either the chunk or the block changes, never both. With one block
    the places follow each other.
    """
    epoch, in_epoch = divmod(position, num_places * num_blocks)
    chunk_index = in_epoch // (chunk_places * num_blocks)
    start = chunk_index * chunk_places
    chunk = range(start, min(start + chunk_places, num_places))
    turn, offset = divmod(in_epoch - start * num_blocks, len(chunk))
    is_upward = (epoch * -(-num_places // chunk_places) + chunk_index) % 2 == 0
    return ScheduleStep(epoch, chunk, turn, turn if is_upward else num_blocks - 1 - turn, start + offset)


def tokens_before(step: ScheduleStep, offsets: NDArray[np.int64], num_blocks: int) -> float:
    """Return the raw tokens before a step in its epoch, if blocks have equal shares; offsets: those before each place."""
    start, stop, at_place = (int(offsets[place]) for place in (step.chunk.start, step.chunk.stop, step.place))
    return start + (step.turn * (stop - start) + at_place - start) / num_blocks
