"""The loader beside `DataLoader(TensorDataset(table))` on 11 million rows of 21 float32 (925 MB, in memory), on the CPU.

Ours runs whole epochs. DataLoader would take minutes for one, so it runs its epoch's first 300,000 rows: what passes
before its first batch (shuffled, it makes a list of all row numbers there) counts once, the rest is scaled by the rows.
"Nothing" yields batches and drops them; "sum" also adds up each batch, for both sides. The sides take turns; each gets the
best of three. Torch has one thread on both sides: its threads gain nothing on batches, and stall both when the machine is
busy. GB/s are bytes of the table a second, next to a plain copy of the whole table with all of torch's threads; a sum only
reads, the copy also writes.
"""

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from surf2vec.trainer.loader import FastLoader
from tests.benchmarks.harness import make_case, run_benchmark

NUM_ROWS, WIDTH = 11_000_000, 21
PREFIX_ROWS = 300_000
REPEATS = 3

Consume = Callable[[torch.Tensor], object]


@dataclass(frozen=True)
class Case:
    """One way to go over the table, and the mark that is set for it, if any."""

    shuffle: bool
    batch_size: int
    does_sum: bool = False
    mark: float | None = None

    @property
    def name(self) -> str:
        order = "shuffled" if self.shuffle else "in order"
        return f"{order}, batches of {self.batch_size:,}, {'sum' if self.does_sum else 'nothing'}"

    @property
    def consume(self) -> Consume:
        return torch.sum if self.does_sum else torch.Tensor.size


CASES = (
    Case(shuffle=False, batch_size=4096, mark=100),
    Case(shuffle=False, batch_size=4096, does_sum=True),
    Case(shuffle=False, batch_size=256),
    Case(shuffle=False, batch_size=65536),
    Case(shuffle=True, batch_size=4096, mark=20),
    Case(shuffle=True, batch_size=4096, does_sum=True),
    Case(shuffle=True, batch_size=256),
    Case(shuffle=True, batch_size=65536),
)


def time_whole_epoch(loader: Iterable[list[torch.Tensor]], consume: Consume) -> float:
    """Seconds for every batch of an epoch."""
    started = time.perf_counter()
    for (batch,) in loader:
        consume(batch)
    return time.perf_counter() - started


def scale_prefix(loader: Iterable[list[torch.Tensor]], consume: Consume) -> float:
    """Seconds an epoch would take, from its first PREFIX_ROWS rows: the start counts once, the rest by rows."""
    started, batches, num_timed = time.perf_counter(), iter(loader), 0
    (first,) = next(batches)
    consume(first)
    first_at = time.perf_counter()
    for (batch,) in batches:
        consume(batch)
        num_timed += len(batch)
        if len(first) + num_timed >= PREFIX_ROWS:
            break
    seconds_a_row = (time.perf_counter() - first_at) / num_timed
    return (first_at - started) + seconds_a_row * (NUM_ROWS - len(first))


def time_copy(table: torch.Tensor, target: torch.Tensor, num_threads: int) -> float:
    """Seconds for one copy of the table by torch; leaves torch with one thread."""
    torch.set_num_threads(num_threads)
    started = time.perf_counter()
    target.copy_(table)
    seconds = time.perf_counter() - started
    torch.set_num_threads(1)
    return seconds


def measure_loader(_: Path) -> list[dict[str, Any]]:
    """Every case against DataLoader, and the copy, in turn; the best of REPEATS each."""
    table = torch.rand(NUM_ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    target = torch.ones_like(table)  # written once before the clock runs: its pages are there
    num_threads = torch.get_num_threads()
    ours, theirs, copies = {case: [] for case in CASES}, {case: [] for case in CASES}, []
    for _repeat in range(REPEATS):
        copies.append(time_copy(table, target, num_threads))
        for case in CASES:
            arguments: dict[str, Any] = {"batch_size": case.batch_size, "shuffle": case.shuffle}
            ours[case].append(time_whole_epoch(FastLoader(table, **arguments), case.consume))
            theirs[case].append(scale_prefix(DataLoader(TensorDataset(table), **arguments), case.consume))
    show = partial(show_case, num_bytes=table.nbytes, copy_seconds=min(copies))
    return [show(case, min(ours[case]), min(theirs[case])) for case in CASES]


def show_case(case: Case, ours: float, theirs: float, num_bytes: int, copy_seconds: float) -> dict[str, Any]:
    """The figures of one case. In order without a sum no byte is read, so that there is no bandwidth to state."""
    ratio = theirs / ours
    moves_bytes = case.shuffle or case.does_sum
    return (
        make_case(
            case.name, ratio, f">= {case.mark:g} x" if case.mark else "none", case.mark is None or ratio >= case.mark
        )
        | {"ours_seconds": ours, "dataloader_seconds": theirs}
        | {"ours_gb_per_second": num_bytes / ours / 1e9 if moves_bytes else None}
        | {"copy_gb_per_second": num_bytes / copy_seconds / 1e9}
        | {"share_of_copy": copy_seconds / ours if moves_bytes else None}
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_loader, small={"NUM_ROWS": 100_000, "PREFIX_ROWS": 10_000, "REPEATS": 1}))
