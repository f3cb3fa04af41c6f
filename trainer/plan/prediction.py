"""Predicts the time and disk traffic of a training; the report compares them with the measured. Pure."""

import math
from dataclasses import dataclass

from surf2vec.trainer.plan.sizes import Work


@dataclass(frozen=True)
class Rates:
    """Measured rates of this machine: tokens trained a second, bytes read from and written to the store's disk a second."""

    tokens_per_second: float
    read_bytes_per_second: float
    write_bytes_per_second: float


@dataclass(frozen=True)
class Traffic:
    """The bytes moved between memory and disk, with `num_blocks` item blocks.

    moved_bytes: read, and written, by an epoch because not all fits in memory; begun_bytes: the part that the first epoch does
    not read. block_bytes: items written by every commit; resident_bytes: users in memory, written by a commit if changed.
    """

    num_blocks: int
    moved_bytes: int
    begun_bytes: int
    block_bytes: int
    resident_bytes: int

    def committed_bytes(self, epochs: int, num_commits: float) -> float:
        """Return the bytes written by commits: a user at most once a commit, and at most once for each block of an epoch."""
        return num_commits * self.block_bytes + min(num_commits, epochs * self.num_blocks) * self.resident_bytes


@dataclass(frozen=True)
class Prediction:
    """For the complete training. If the machine's rates are unknown, seconds is None and only the last commit counts."""

    num_commits: int
    read_bytes: int
    written_bytes: int
    seconds: float | None


def predict(work: Work, traffic: Traffic, rates: Rates | None) -> Prediction:
    """Predict the time: the longer of training and moving, which overlap; commits in between; and the last commit."""
    training = moving = 0.0  # seconds of all epochs without commits, and seconds of disk work among them
    if rates:
        computing = work.num_tokens / rates.tokens_per_second
        moving_one = (
            traffic.moved_bytes / rates.read_bytes_per_second + traffic.moved_bytes / rates.write_bytes_per_second
        )
        first = moving_one - traffic.begun_bytes / rates.read_bytes_per_second
        training = max(computing, first) + (work.epochs - 1) * max(computing, moving_one)
        moving = first + (work.epochs - 1) * moving_one
    num_ends = work.epochs * len(work.users) * traffic.num_blocks  # of micro-partitions: commits happen only there
    between = min(training / work.commit_seconds if work.commit_seconds else math.inf, num_ends - 1)
    num_commits = 1 + int(between)
    committed_bytes = traffic.committed_bytes(work.epochs, num_commits)
    seconds = None
    if rates:
        hidden = training - moving  # seconds of an idle disk, in which commits are written
        committing = traffic.committed_bytes(work.epochs, between) / rates.write_bytes_per_second
        last = traffic.committed_bytes(work.epochs, 1) / rates.write_bytes_per_second
        seconds = training + max(0.0, committing - hidden) + last
    return Prediction(
        num_commits,
        work.epochs * traffic.moved_bytes - traffic.begun_bytes,
        work.epochs * traffic.moved_bytes + int(committed_bytes),
        seconds,
    )
