"""What users in flight cost: held-out loss and hit@20 of a GPU's launch simulated, by how many users it trains in step.

Two real logs, of each the users with at most MAX_EVENTS events (a step of the simulation takes as long for one user as for a
hundred). The interest alone, as shipped, with private negatives. A case is a number of users in flight: the engine for a GPU with
the launch of tests/lockstep.py, in which rows are as stale as they can be. Its ratio is hit@20 by that of the CPU's kernel on one
thread with the same draws, where nothing is stale. A planted log of 60 items is beside them. Passed, where the planner permits as
many in flight: not below the CPU by two standard errors of the difference a user.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import torch

from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import ALL_USERS, MEMORY_BYTES, make_corpus
from tests.corpora import planted_histories, write_corpus
from tests.lockstep import held_out_hits, kernel_in_flight
from trainer.config import TrainConfig
from trainer.kernels import Kernel, pick_kernel
from trainer.plan.in_flight import users_a_launch
from trainer.store.generation import open_generation
from trainer.store.tokens import Corpus
from trainer.training import loop
from trainer.training.job import Job

LOGS = ("wikispeedia_unfinished", "yoochoose_100k")
MAX_EVENTS = 16
PLANTED = "planted"
WIDTHS = (64, 256, 1024, 4096)
MARK = "hit@20 >= the CPU's - 2 s.e."
CONFIG = TrainConfig(parts="interest", vector_size=64, tile_users=1, threads=1)


def measure_lockstep(data: Path) -> list[dict[str, Any]]:
    """A case a log and number of users in flight, beside the CPU's."""
    torch.set_num_threads(1)
    cases = []
    for log in (*LOGS, PLANTED):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if log == PLANTED:
                corpus = write_corpus(folder / "corpus", planted_histories(num_users=4000), partitions=8)
            else:
                corpus = make_corpus(take_short(data / f"{log}.parquet", folder), folder / "root")
            permitted, largest = users_a_launch(CONFIG, corpus.num_users) or ALL_USERS, int(corpus.users.max())
            alone = train_by(corpus, pick_kernel("cpu", CONFIG), folder / "cpu")
            for width in sorted({*(width for width in (permitted, *WIDTHS) if width < largest), largest}):
                told = train_by(corpus, kernel_in_flight(width), folder / str(width))
                cases.append(compare(f"{log}, {width:,} in flight", corpus, (width, permitted), told, alone))
    return cases


def take_short(log: Path, folder: Path) -> Path:
    """A copy of a log with the users that have at most MAX_EVENTS events."""
    short = folder / log.name
    pl.read_parquet(log).filter(pl.len().over("user_id") <= MAX_EVENTS).write_parquet(short)
    return short


def train_by(corpus: Corpus, kernel: Kernel, folder: Path) -> tuple[float, np.ndarray]:
    """The held-out loss, and for each held-out user whether the item is among the first 20."""
    with mock.patch.object(loop, "pick_kernel", return_value=kernel):
        told = loop.train(Job(corpus.folder, folder, CONFIG, MEMORY_BYTES))
    return told["heldout_loss"], held_out_hits(corpus, open_generation(folder))


def compare(
    name: str, corpus: Corpus, widths: tuple[int, int], told: tuple[float, np.ndarray], alone: tuple[float, np.ndarray]
) -> dict[str, Any]:
    """One case; widths: users in flight, and how many the planner permits."""
    (loss, hits), (loss_alone, hits_alone), (width, permitted) = told, alone, widths
    difference = hits.astype(float) - hits_alone
    errors = difference.mean() / max(difference.std() / len(difference) ** 0.5, 1e-9)
    return {
        "case": name, "ratio": hits.mean() / hits_alone.mean(), "mark": MARK if width <= permitted else "none",
        "passed": bool(errors >= -2) or width > permitted, "hit@20": hits.mean(), "of the CPU": hits_alone.mean(), "s.e.": errors,
        "held-out loss": loss / loss_alone - 1, "users": corpus.num_users, "share in flight": width / corpus.num_users,
        "in flight an item": width / corpus.num_items,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_benchmark("lockstep", (__doc__ or "").splitlines()[0], measure_lockstep))
