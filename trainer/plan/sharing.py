"""The modes in which workers share the item table. Pure.

replicated     every worker has the full table; all changes are summed after every n tokens, and all workers wait for the sum
asynchronous   the same, but workers wait only if more than `staleness` sums are in progress
sharded        blocks circulate among the workers: each has a part at a time, and no row has two writers; each worker has a copy
               of the few rows that all blocks share, whose changes are summed as above
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EXCHANGES_PER_EPOCH = 256
"""Sums an epoch, unless `train.exchange_tokens` says otherwise. On wikispeedia, 3 seeds, hit@20 of two asynchronous workers was
.346 with 64 and .352 with 256; of one worker .352, its seeds .004 apart."""


@dataclass(frozen=True)
class Sharing:
    """mode: `alone` or one of the three; weights: the relative part of the users of each worker.

    exchange_tokens: the most tokens that a worker trains between exchanges; staleness: the sums that may be in progress while it
    trains on. cuts_places: whether workers exchange also within a place; GPUs exchange only at its end.
    """

    mode: str = "alone"
    weights: Sequence[float] = (1.0,)
    exchange_tokens: float = 0.0
    staleness: int = 0
    cuts_places: bool = True

    @property
    def num_workers(self) -> int:
        return len(self.weights)

    @property
    def is_alone(self) -> bool:
        return self.mode == "alone"

    @property
    def is_sharded(self) -> bool:
        return self.mode == "sharded"

    def block_counts(self, can_split: bool, most: int) -> Iterable[int]:
        """Return the possible numbers of item blocks, the best first."""
        if self.is_sharded:
            return range(self.num_workers, max(most, self.num_workers) + 1, self.num_workers)
        return range(1, most + 1) if self.is_alone and can_split else [1]

    def images(self, num_blocks: int) -> int:
        """Return how many item blocks a worker has in memory: its own, copies of them for a commit, and one that is read
        ahead (alone, several blocks) or arrives from another worker (sharded), or the state at the last exchange and exchanges in
        progress (replicated, asynchronous).
        """
        if self.is_alone:
            return 2 if num_blocks == 1 else 3
        if self.is_sharded:
            return 2 * (num_blocks // self.num_workers) + 1
        return 4 if self.mode == "replicated" else 3 + 2 * (self.staleness + 1)

    def exchanged_bytes(self, table_bytes: int, shared_bytes: int) -> int:
        """Return the bytes of the rows whose changes are summed."""
        return 0 if self.is_alone else shared_bytes if self.is_sharded else table_bytes


ALONE = Sharing()


def sent_by_sum(num_bytes: int, num_workers: int) -> int:
    """Return the bytes that a worker sends when `num_bytes` are summed over all workers in a ring: each sends a share W - 1
    times to be summed, and W - 1 times to be copied (Patarasu and Yuan, JPDC 2009).
    """
    return 2 * (num_workers - 1) * num_bytes // num_workers
