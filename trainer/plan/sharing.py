"""How workers share users and items: pure functions of the corpus, the settings and the workers' weights.

trainer/README.md ("Several workers") explains places and the three modes in which workers share the item table: replicated,
asynchronous and sharded. With one worker a place is a micro-partition.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.errors import ConfigError

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
        ahead (alone, several blocks) or arrives from another worker (sharded), or `copies` (replicated, asynchronous).
        """
        if self.is_alone:
            return 2 if num_blocks == 1 else 3
        if self.is_sharded:
            return 2 * (num_blocks // self.num_workers) + 1
        return 2 + self.copies

    @property
    def copies(self) -> int:
        """The copies of exchanged rows that a worker has: the state at the last exchange, and changes and sums in progress."""
        if self.is_alone:
            return 0
        return 1 + 2 * (self.staleness + 1) if self.mode == "asynchronous" else 2

    def exchanged_bytes(self, table_bytes: int, shared_bytes: int) -> int:
        """Return the bytes of the rows whose changes are summed."""
        return 0 if self.is_alone else shared_bytes if self.is_sharded else table_bytes


ALONE = Sharing()


def sent_by_sum(num_bytes: int, num_workers: int) -> int:
    """Return the bytes that a worker sends when `num_bytes` are summed over all workers in a ring: each sends a share W - 1
    times to be summed, and W - 1 times to be copied (Patarasu and Yuan, JPDC 2009).
    """
    return 2 * (num_workers - 1) * num_bytes // num_workers


@dataclass(frozen=True, eq=False)
class Share:
    """A worker's part of the users. partitions: of every worker, ascending int64[P_w]; tokens int64[P]: of each partition."""

    rank: int
    partitions: tuple[NDArray[np.int64], ...]
    tokens: NDArray[np.int64]

    @property
    def num_workers(self) -> int:
        return len(self.partitions)

    @property
    def own(self) -> NDArray[np.int64]:
        """The micro-partitions of this worker, ascending."""
        return self.partitions[self.rank]

    @property
    def num_places(self) -> int:
        return min(map(len, self.partitions))

    def most_per_place(self, rank: int) -> int:
        """Return the most micro-partitions that a worker trains at a place."""
        return -(-len(self.partitions[rank]) // self.num_places)

    def places(self, order: NDArray[np.int64], rank: int | None = None) -> list[NDArray[np.int64]]:
        """Return a worker's micro-partitions at each place of an epoch; order int64[P]: of all micro-partitions."""
        own = self.partitions[self.rank if rank is None else rank]
        return np.array_split(order[np.isin(order, own)], self.num_places)

    def place_tokens(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens of each worker at each place of an epoch, int64[W, places]."""
        ranks = range(self.num_workers)
        return np.array([[self.tokens[place].sum() for place in self.places(order, rank)] for rank in ranks])


def share_users(rank: int, tokens: NDArray[np.int64], weights: Sequence[float]) -> Share:
    """Divide micro-partitions with these tokens int64[P] among workers in proportion to their weights: the heaviest first, each
    to the least loaded worker (Graham, SIAM J. Appl. Math. 1969). Raises ConfigError when there are too few.
    """
    num_workers = len(weights)
    if len(tokens) < num_workers:
        raise ConfigError(
            f"{num_workers} workers cannot share {len(tokens)} micro-partitions: start fewer workers, or more "
            "micro-partitions by `surf2vec repartition`"
        )
    shared: list[list[int]] = [[] for _ in weights]
    loads = np.zeros(num_workers)
    for num_left, partition in zip(range(len(tokens), 0, -1), np.argsort(-tokens, kind="stable").tolist(), strict=True):
        empty = [rank for rank in range(num_workers) if not shared[rank]]
        after = (loads + max(int(tokens[partition]), 1)) / np.asarray(weights)
        chosen = empty[0] if len(empty) == num_left else int(after.argmin())
        shared[chosen].append(partition)
        loads[chosen] += max(int(tokens[partition]), 1)
    return Share(rank, tuple(np.array(sorted(own), dtype=np.int64) for own in shared), tokens)


def count_exchanges(tokens: NDArray[Any], sharing: Sharing) -> NDArray[np.int64]:
    """Return the number of exchanges at each place of an epoch, int64[n]; tokens [n]: the most of any worker at the place."""
    counts = np.diff(np.floor(np.cumsum(tokens) / sharing.exchange_tokens), prepend=0).astype(np.int64)
    counts[-1] = max(counts[-1], 1)
    return counts if sharing.cuts_places else counts.clip(max=1)


def cut_users(lengths: NDArray[np.int64], before: int, place_tokens: int, num_exchanges: int) -> NDArray[np.int64]:
    """Return after how many users of a micro-partition exchanges follow, ascending int64[k]. lengths int64[n]: the users' tokens
    in order; before: tokens of the place before them. num_exchanges divide the place_tokens of the place evenly.
    """
    if num_exchanges == 0:
        return np.empty(0, dtype=np.int64)
    done = np.cumsum(lengths)
    last = before + int(done[-1]) if len(done) else before
    goals = place_tokens * np.arange(1, num_exchanges + 1) / num_exchanges
    goals[-1] = place_tokens
    cuts = goals[(goals > before) & (goals <= last)]
    return np.searchsorted(before + done, cuts, side="left") + 1


def ring_block(rank: int, turn: int, num_workers: int, num_blocks: int) -> int:
    """Return the item block of a worker at a turn. No two workers have the same one (a Latin square). Each worker passes its
    block to the previous worker, which needs it num_blocks / num_workers turns later.
    """
    return (rank * (num_blocks // num_workers) + turn) % num_blocks
