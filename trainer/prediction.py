"""What a training will take of time and of the disk's work, before it begins. Pure.

What is predicted stands beside what was measured in the morning's report.
"""

from dataclasses import dataclass

from trainer.sizes import Work


@dataclass(frozen=True)
class Rates:
    """How fast this machine is, as measured: tokens trained a second, bytes a second from and to the store's disk."""

    tokens_per_second: float
    read_bytes_per_second: float
    write_bytes_per_second: float


def predict_seconds(work: Work, moved_bytes: int, commit_bytes: int, rates: Rates) -> float:
    """Training, or moving where that takes longer, for they overlap; the commits on the way; the last one, waited for.

    moved_bytes: what an epoch reads from the disk, and writes to it.
    """
    training = work.num_tokens / rates.tokens_per_second
    moving = moved_bytes / rates.read_bytes_per_second + moved_bytes / rates.write_bytes_per_second
    epochs_seconds = work.epochs * max(training, moving)
    num_commits = epochs_seconds / work.commit_seconds if work.commit_seconds else work.epochs * len(work.users)
    hidden = epochs_seconds - work.epochs * moving  # the disk is idle for so long: commits are written meanwhile
    committing = num_commits * commit_bytes / rates.write_bytes_per_second
    return epochs_seconds + max(0.0, committing - hidden) + commit_bytes / rates.write_bytes_per_second
