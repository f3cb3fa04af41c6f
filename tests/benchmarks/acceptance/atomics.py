"""Rows a second that atomic adds move, uniform and by Zipf's law: the bound of any kernel that shares rows without locks."""

import sys

import numpy as np
import torch
import triton
import triton.language as tl

from tests.benchmarks.acceptance.copies import REPEATS, best_seconds
from tests.benchmarks.acceptance.report import Report, run_step

DIMS = 128
ROWS_PER_PROGRAM = 64
RUNS = REPEATS + 1


@triton.jit
def add_rows(table, rows, COUNT: tl.constexpr, D: tl.constexpr):
    """Add ones to COUNT rows of a table, one after the other."""
    d = tl.arange(0, D)
    for i in range(COUNT):
        row = tl.load(rows + tl.program_id(0) * COUNT + i).to(tl.int64)
        tl.atomic_add(table + row * D + d, tl.full((D,), 1.0, tl.float32), sem="relaxed")


@triton.jit
def add_and_wait(sums, rows, ends, COUNT: tl.constexpr):
    """Add to COUNT numbers, each by what the last one was: every add waits for the one before."""
    total = 0.0
    for i in range(COUNT):
        row = tl.load(rows + tl.program_id(0) * COUNT + i).to(tl.int64)
        total = tl.atomic_add(sums + row, 1.0 + 0.0 * total, sem="relaxed")
    tl.store(ends + tl.program_id(0), total)


def measure_atomics(report: Report) -> None:
    for num_items in [1_000, 100_000, 1_000_000] if not report.rehearses else [50]:
        for law in ("uniform", "Zipf"):
            measure_law(report, num_items, law)


def measure_law(report: Report, num_items: int, law: str) -> None:
    """Two lines: whole rows, and numbers of which each add waits for the one before."""
    from surf2vec.trainer.kernels import gpu

    device, rng = gpu.find_device(), np.random.default_rng(1)
    num_programs, count = report.size(65_536, 4), report.size(ROWS_PER_PROGRAM, 4)
    shares = np.cumsum(1 / np.arange(1, num_items + 1) if law == "Zipf" else np.ones(num_items))
    drawn = np.searchsorted(shares, rng.random(num_programs * count) * shares[-1]).clip(max=num_items - 1)
    rows = torch.from_numpy(drawn.astype(np.int32)).to(device)
    table, sums = torch.zeros(num_items, DIMS, device=device), torch.zeros(num_items, device=device)
    ends, grid = torch.empty(num_programs, device=device), (num_programs,)
    rate = len(rows) / best_seconds(lambda: add_rows[grid](table, rows, COUNT=count, D=DIMS, num_warps=1))
    is_right = bool((table == table[:, :1]).all()) and float(table[:, 0].double().sum()) == RUNS * len(rows)
    report.add(f"rows of 128 numbers, {num_items:,} items, {law}", is_right, "all adds arrived", adds_per_second=rate)
    rate = len(rows) / best_seconds(lambda: add_and_wait[grid](sums, rows, ends, COUNT=count, num_warps=1))
    is_right = float(sums.double().sum()) == RUNS * len(rows)
    report.add(f"numbers, waiting, {num_items:,} items, {law}", is_right, "all adds arrived", adds_per_second=rate)


if __name__ == "__main__":
    sys.exit(run_step(measure_atomics))
