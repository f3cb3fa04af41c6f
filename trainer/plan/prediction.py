"""What a training will take of time and of the disk's work, before it begins; the report shows it beside the measured. Pure."""

import math
from dataclasses import dataclass

from trainer.plan.sizes import Work


@dataclass(frozen=True)
class Rates:
    """How fast this machine is, as measured: tokens trained a second, bytes a second from and to the store's disk."""

    tokens_per_second: float
    read_bytes_per_second: float
    write_bytes_per_second: float


@dataclass(frozen=True)
class Traffic:
    """What goes between memory and disk, with so many item blocks.

    moved_bytes: what an epoch reads, and writes, because not all is in memory; begun_bytes: what of it the first epoch does not
    read. block_bytes: what every commit writes of items; resident_bytes: users in memory, written by a commit if they changed.
    """

    num_blocks: int
    moved_bytes: int
    begun_bytes: int
    block_bytes: int
    resident_bytes: int

    def committed_bytes(self, epochs: int, num_commits: float) -> float:
        """What so many commits write: a user no more than once a commit, nor more than once for each block of an epoch."""
        return num_commits * self.block_bytes + min(num_commits, epochs * self.num_blocks) * self.resident_bytes


@dataclass(frozen=True)
class Prediction:
    """Of the whole training. Where the machine's rates are not known, seconds is None and the only commit is the last."""

    num_commits: int
    read_bytes: int
    written_bytes: int
    seconds: float | None


def predict(work: Work, traffic: Traffic, rates: Rates | None) -> Prediction:
    """Training, or moving where that takes longer, for they overlap; the commits on the way; the last one, waited for."""
    training = moving = 0.0  # seconds of the epochs without commits, and for how many of them the disk works
    if rates:
        computing = work.num_tokens / rates.tokens_per_second
        moving_one = (
            traffic.moved_bytes / rates.read_bytes_per_second + traffic.moved_bytes / rates.write_bytes_per_second
        )
        first = moving_one - traffic.begun_bytes / rates.read_bytes_per_second
        training = max(computing, first) + (work.epochs - 1) * max(computing, moving_one)
        moving = first + (work.epochs - 1) * moving_one
    num_ends = work.epochs * len(work.users) * traffic.num_blocks  # of micro-partitions: a commit closes at one
    between = min(training / work.commit_seconds if work.commit_seconds else math.inf, num_ends - 1)
    num_commits = 1 + int(between)
    committed_bytes = traffic.committed_bytes(work.epochs, num_commits)
    seconds = None
    if rates:
        hidden = training - moving  # the disk is idle for so long: commits are written meanwhile
        committing = traffic.committed_bytes(work.epochs, between) / rates.write_bytes_per_second
        last = traffic.committed_bytes(work.epochs, 1) / rates.write_bytes_per_second
        seconds = training + max(0.0, committing - hidden) + last
    return Prediction(
        num_commits,
        work.epochs * traffic.moved_bytes - traffic.begun_bytes,
        work.epochs * traffic.moved_bytes + int(committed_bytes),
        seconds,
    )
