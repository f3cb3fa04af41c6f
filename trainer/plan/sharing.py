"""How workers that train together share the item table: three ways, each named for what it is. Pure.

replicated     every worker has all of it; what each changed is added up after every n tokens, and all wait for the sum
asynchronous   the same, but nobody waits, unless more than `staleness` sums are under way
sharded        blocks of it go round the workers: each has a part at a time, and no row has two writers; of the few rows that
               all blocks share, each worker has a copy, whose changes are added up as above
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EXCHANGES_AN_EPOCH = 256
"""Sums an epoch, unless `train.exchange_tokens` says otherwise. On wikispeedia, 3 seeds, hit@20 of two asynchronous workers was
.346 with 64 and .352 with 256; of one worker .352, its seeds .004 apart."""


@dataclass(frozen=True)
class Sharing:
    """mode: `alone` or one of the three; weights: what part of the users each worker has, relative to the others'.

    exchange_tokens: after how many of its tokens, at most, a worker gives what it changed; staleness: how many sums may be under
    way when it goes on. cuts_places: whether they exchange within a place, too, and not only at its end, as GPUs do.
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
        """The numbers of item blocks that are possible, the best first."""
        if self.is_sharded:
            return range(self.num_workers, max(most, self.num_workers) + 1, self.num_workers)
        return range(1, most + 1) if self.is_alone and can_split else [1]

    def images(self, num_blocks: int) -> int:
        """How many item blocks a worker's memory holds: those it has, copies of them while a commit is written, and one that is
        read ahead (alone, several blocks) or on its way from another worker (sharded), or the blocks as of the last exchange and
        what is under way (replicated, asynchronous).
        """
        if self.is_alone:
            return 2 if num_blocks == 1 else 3
        if self.is_sharded:
            return 2 * (num_blocks // self.num_workers) + 1
        return 4 if self.mode == "replicated" else 3 + 2 * (self.staleness + 1)

    def exchanged_bytes(self, table_bytes: int, shared_bytes: int) -> int:
        """The rows whose changes are added up."""
        return 0 if self.is_alone else shared_bytes if self.is_sharded else table_bytes


ALONE = Sharing()


def sent_by_sum(num_bytes: int, num_workers: int) -> int:
    """Bytes that a worker sends when so many are added up over all workers in a ring: each passes on its share W - 1 times
    to be added to, and W - 1 times to be copied (Patarasu and Yuan, JPDC 2009).
    """
    return 2 * (num_workers - 1) * num_bytes // num_workers
