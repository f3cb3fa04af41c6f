"""The loader beside `DataLoader(TensorDataset(table))` on 11 million rows of 21 float32 (925 MB, in memory), on the CPU.

Ours runs whole epochs. DataLoader would take minutes for one, so it runs its epoch's first 300,000 rows: what passes
before its first batch (shuffled, it makes a list of all row numbers there) counts once, the rest is scaled by the rows.
Batches of 4,096 rows are dropped as they come. The sides take turns; each gets the best of three. Torch has one thread on both
sides: its threads gain nothing on batches, and stall both when the machine is busy.
"""

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from surf2vec.trainer.loader import FastLoader
from tests.benchmarks.harness import make_case, run_benchmark

NUM_ROWS, WIDTH, BATCH_SIZE = 11_000_000, 21, 4096
PREFIX_ROWS = 300_000
REPEATS = 3
MARKS = {"in order": 100, "shuffled": 20}


def time_whole_epoch(loader: Iterable[list[torch.Tensor]]) -> float:
    """Seconds for every batch of an epoch."""
    started = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - started


def scale_prefix(loader: Iterable[list[torch.Tensor]]) -> float:
    """Seconds an epoch would take, from its first PREFIX_ROWS rows: the start counts once, the rest by rows."""
    started, batches, num_timed = time.perf_counter(), iter(loader), 0
    (first,) = next(batches)
    first_at = time.perf_counter()
    for (batch,) in batches:
        num_timed += len(batch)
        if len(first) + num_timed >= PREFIX_ROWS:
            break
    seconds_a_row = (time.perf_counter() - first_at) / num_timed
    return (first_at - started) + seconds_a_row * (NUM_ROWS - len(first))


def measure_loader(_: Path) -> list[dict[str, Any]]:
    """In order and shuffled, the sides in turn, the best of REPEATS each."""
    table = torch.rand(NUM_ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    torch.set_num_threads(1)
    ours, theirs = {order: [] for order in MARKS}, {order: [] for order in MARKS}
    for _repeat in range(REPEATS):
        for order in MARKS:
            arguments: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": order == "shuffled"}
            ours[order].append(time_whole_epoch(FastLoader(table, **arguments)))
            theirs[order].append(scale_prefix(DataLoader(TensorDataset(table), **arguments)))
    cases = []
    for order, mark in MARKS.items():
        seconds, dataloader_seconds = min(ours[order]), min(theirs[order])
        ratio = dataloader_seconds / seconds
        case = make_case(f"{order}, batches of {BATCH_SIZE:,}", ratio, f">= {mark:g} x", ratio >= mark)
        cases.append(case | {"ours_seconds": seconds, "dataloader_seconds": dataloader_seconds})
    return cases


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_loader, small={"NUM_ROWS": 100_000, "PREFIX_ROWS": 10_000, "REPEATS": 1}))
