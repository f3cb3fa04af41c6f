"""Predicts the time and disk traffic of a training; the report compares them with the measured. Pure.

The rate of training is that of the store's last training, if it was of the same kind. The first plan of a machine rests on
constants, which may be wrong by a factor of three; nothing but the predicted seconds depends on them.
"""

import math
from dataclasses import dataclass
from typing import Any

from surf2vec.trainer.config import TrainConfig, config_from_dict
from surf2vec.trainer.plan.sizes import Work


@dataclass(frozen=True)
class Rates:
    """Tokens trained a second, bytes read from and written to the store's disk a second, and bytes that a worker sends a second
    while all send. source: of the first, in words.
    """

    tokens_per_second: float
    read_bytes_per_second: float = 5e8
    write_bytes_per_second: float = 2e8
    network_bytes_per_second: float = 1.25e9  # 10 Gbit/s
    source: str = "assumed"


DIMENSIONS_PER_SECOND = {"cpu": 1e8, "gpu": 1e10}
"""Tokens times dimensions that are trained per second: by a CPU thread (measured with both parts and 128 dimensions: 1.9e8 with
4,600 items, 5e7 with a million), and by a GPU (an estimate)."""
UNSHARED_FACTOR = 4
"""A token of a tree, or with negatives of its own, takes so many times longer."""
LEAST_TOKENS = 1_000_000
"""A training of fewer tokens says little about the rate."""


def known_rates(last: dict[str, Any], config: TrainConfig, kernel: str, threads: int) -> Rates:
    """Return the rates for a training; last: the manifest of the store's last one, or empty."""
    if last.get("kernel") == kernel and last.get("tokens_done", 0) >= LEAST_TOKENS:
        before = config_from_dict(last["config"])
        if (before.hs, before.has_tiles) == (config.hs, config.has_tiles):
            seconds = max(last["train_seconds"] - last["stall_seconds"], 1e-3)
            num_workers = max(1, len(last["loads"]))
            rate = last["tokens_done"] / num_workers / seconds * before.vector_size / config.vector_size
            return Rates(rate, source="as in the store's last training")
    rate = DIMENSIONS_PER_SECOND[kernel] / config.vector_size * (threads if kernel == "cpu" else 1)
    return Rates(rate if config.has_tiles else rate / UNSHARED_FACTOR, source="assumed until a training has shown it")


@dataclass(frozen=True)
class Prediction:
    """For the complete training."""

    num_commits: int
    read_bytes: int
    written_bytes: int
    seconds: float


def predict(
    work: Work, num_blocks: int, moved_bytes: int, block_bytes: int, resident_bytes: int, rates: Rates
) -> Prediction:
    """Predict the time: the longer of training and of the disk's work, which overlap; and the last commit.

    moved_bytes: read, and written, by an epoch because not all fits in memory; the first epoch reads none. block_bytes: items
    written by every commit; resident_bytes: users in memory, written by a commit if changed, once for each block of an epoch.
    """

    def commit(num_commits: int) -> int:
        return num_commits * block_bytes + min(num_commits, work.epochs * num_blocks) * resident_bytes

    read_bytes, evicted_bytes = (work.epochs - 1) * moved_bytes, work.epochs * moved_bytes
    computing = work.epochs * work.num_tokens / rates.tokens_per_second
    moving = read_bytes / rates.read_bytes_per_second + evicted_bytes / rates.write_bytes_per_second
    num_ends = work.epochs * len(work.users) * num_blocks  # of micro-partitions: commits happen only there
    between = max(computing, moving) / work.commit_seconds if work.commit_seconds else math.inf
    num_commits = 1 + int(min(between, num_ends - 1))
    moving += (commit(num_commits) - commit(1)) / rates.write_bytes_per_second
    seconds = max(computing, moving) + commit(1) / rates.write_bytes_per_second
    return Prediction(num_commits, read_bytes, evicted_bytes + commit(num_commits), seconds)
