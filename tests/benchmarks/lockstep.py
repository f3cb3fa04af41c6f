"""What users in flight cost: held-out loss and hit@20 of a GPU's launch simulated, by how many users it trains in step.

Two real logs, of each the users with at most MAX_EVENTS events (a step of the simulation takes as long for one user as for a
hundred), for all epochs and for a quarter; and a planted log of 1,200 users and 60 items, a hard case. The interest alone, as
shipped, with private negatives. A case is a number of users in flight: the engine for a GPU with the launch of
tests/lockstep.py, in which rows are as stale as can be, and without the planner's limit, which would divide the launches. In
flight are as many as the planner permits, and a whole micro-partition. Its ratio is hit@20 by that of the CPU's kernel on one
thread with the same draws, where nothing is stale; both are means of SEEDS runs. The mark is of a real log, all epochs, as many
as the planner permits, hit@20 not below by two standard errors of the difference a user.

Tiles, as shipped, are tried on the same logs as one micro-partition, so that there are enough streams: one user in 64 in flight,
as launches at once have at most where a log has eight micro-partitions or more, as by default; and all streams.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import torch

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import Kernel, pick_kernel
from surf2vec.trainer.kernels.signature import most_streams
from surf2vec.trainer.plan.in_flight import USERS_FOR_ONE_IN_FLIGHT, users_per_launch
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.training import loop
from surf2vec.trainer.training.job import Job
from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import ALL_USERS, MEMORY_BYTES, make_corpus
from tests.corpora import planted_histories, write_corpus
from tests.lockstep import held_out_hits, kernel_in_flight, make_launch, make_tile_launch

LOGS = ("wikispeedia_unfinished", "yoochoose_100k")
MAX_EVENTS = 16
PLANTED = "planted"
EPOCHS, SEEDS = (20, 5), 3
MARK = "hit@20 >= the CPU's - 2 s.e."
CONFIG = TrainConfig(parts="interest", vector_size=64, tile_users=1, threads=1)
TILES = replace(CONFIG, tile_users=TrainConfig.tile_users)


def measure_lockstep(data: Path) -> list[dict[str, Any]]:
    """A case a log and number of users in flight, beside the CPU's."""
    torch.set_num_threads(1)
    cases = []
    for log in (*LOGS, PLANTED):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if log == PLANTED:
                corpus = write_corpus(folder / "corpus", planted_histories(num_users=1200), partitions=4)
            else:
                short = take_short(data / f"{log}.parquet", folder)
                corpus = make_corpus(short, folder / "root")
                cases += measure_tiles(log, make_corpus(short, folder / "whole", partitions=1), folder / "tiles")
            cases += measure_private(log, corpus, folder)
    for case in cases:
        case["passed"] = case["mark"] == "none" or case["s.e."] >= -2
    return cases


def measure_private(log: str, corpus: Corpus, folder: Path) -> list[dict[str, Any]]:
    """Cases of users with negatives of their own: as many in flight as are permitted, and a micro-partition."""
    cases = []
    for epochs in EPOCHS[log == PLANTED :]:
        config, where = replace(CONFIG, epochs=epochs), folder / str(epochs)
        alone = train_by(corpus, [pick_kernel("cpu", config)] * SEEDS, config, where / "cpu")
        permitted = users_per_launch(config, corpus.num_users) or ALL_USERS
        for width in sorted({*((4, 16) if log == PLANTED else ()), permitted, int(corpus.users.max())}):
            kernels = [kernel_in_flight(make_launch(width, seed)) for seed in range(SEEDS)]
            told = train_by(corpus, kernels, config, where / str(width))
            has_mark = log in LOGS and epochs == EPOCHS[0] and width <= permitted
            case = f"{log}, {epochs} epochs, {width:,} in flight"
            cases.append(compare(case, corpus, width, told, alone) | ({"mark": MARK} if has_mark else {}))
    return cases


def measure_tiles(log: str, corpus: Corpus, folder: Path) -> list[dict[str, Any]]:
    """Cases of tiles, of a log that is one micro-partition: as many streams in flight as are permitted, and all."""
    cases = []
    permitted = max(1, corpus.num_users // USERS_FOR_ONE_IN_FLIGHT // TILES.tile_users)
    for epochs in EPOCHS:
        config, where = replace(TILES, epochs=epochs), folder / str(epochs)
        alone = train_by(corpus, [pick_kernel("cpu", config)] * SEEDS, config, where / "cpu")
        for num_streams in (permitted, most_streams(corpus.num_users)):
            kernels = [kernel_in_flight(make_tile_launch(num_streams))] * SEEDS
            told = train_by(corpus, kernels, config, where / str(num_streams))
            width = num_streams * TILES.tile_users
            case = f"{log}, {epochs} epochs, tiles of {num_streams} streams, {width:,} in flight"
            mark = {"mark": MARK} if epochs == EPOCHS[0] and num_streams == permitted else {}
            cases.append(compare(case, corpus, width, told, alone) | mark)
    return cases


def take_short(log: Path, folder: Path) -> Path:
    """A copy of a log with the users that have at most MAX_EVENTS events."""
    short = folder / log.name
    pl.read_parquet(log).filter(pl.len().over("user_id") <= MAX_EVENTS).write_parquet(short)
    return short


def train_by(corpus: Corpus, kernels: Sequence[Kernel], config: TrainConfig, folder: Path) -> tuple[float, np.ndarray]:
    """The held-out loss, and for each held-out user whether the item is among the first 20; means over the kernels."""
    losses, hits = [], []
    for seed, kernel in enumerate(kernels, 1):
        with (
            mock.patch.object(loop, "pick_kernel", return_value=kernel),
            mock.patch.object(loop, "users_per_launch", return_value=None),
        ):
            told = loop.train(Job(corpus.folder, folder / str(seed), replace(config, seed=seed), MEMORY_BYTES))
        losses.append(told["heldout_loss"])
        hits.append(held_out_hits(corpus, open_generation(folder / str(seed))))
    return float(np.mean(losses)), np.mean(hits, axis=0)


def compare(
    name: str, corpus: Corpus, width: int, told: tuple[float, np.ndarray], alone: tuple[float, np.ndarray]
) -> dict[str, Any]:
    """One case, without a mark."""
    (loss, hits), (loss_alone, hits_alone) = told, alone
    difference = hits - hits_alone
    errors = difference.mean() / max(difference.std() / len(difference) ** 0.5, 1e-9)
    return {
        "case": name, "ratio": float(hits.mean() / hits_alone.mean()), "mark": "none",
        "passed": True, "hit@20": float(hits.mean()),
        "of the CPU": float(hits_alone.mean()), "s.e.": float(errors), "held-out loss": loss / loss_alone - 1,
        "share in flight": width / corpus.num_users,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_benchmark("lockstep", (__doc__ or "").splitlines()[0], measure_lockstep))
