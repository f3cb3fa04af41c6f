"""The shipped programs, tile and trail, beside their references; and whether the same launch gives the same bits."""

import dataclasses
import sys
from copy import deepcopy
from typing import Any
from unittest import mock

import numpy as np

from tests.benchmarks.acceptance.report import Report, run_step

SHAPES: dict[str, tuple[dict[str, int], int, int]] = {
    "64 dimensions, 16 shared by 32, as shipped": ({"vector_size": 64, "negative": 16, "tile_users": 32}, 40, 50),
    "6 dimensions, 3 shared by 5, seven items": ({"vector_size": 6, "negative": 3, "tile_users": 5}, 9, 7),
    "128 dimensions, 16 shared by 32": ({"vector_size": 128, "negative": 16, "tile_users": 32}, 20, 100),
}
"""Settings, users and items."""
MARKS = {"tf32x3": 3e-4, "tf32": 4e-3}
"""By gpu.PRECISION: tf32x3 has the digits of float32, so that a difference is a fault; tf32 cuts factors to 11 bits."""
APART_MARK, TRAIL_MARKS = 5e-3, {"tf32x3": 5e-3, "tf32": 5e-2}
"""Equal rows of the trail move in the card's order."""


def check_programs(report: Report) -> None:
    for name, (settings, num_users, num_items) in list(SHAPES.items())[: report.size(len(SHAPES), 1)]:
        for precision, mark in MARKS.items():
            line = f"{name}, {precision}"
            with report.attempt(line):
                vectors, squares = compare_tiles(settings, num_users, num_items, precision)
                passed = vectors <= mark and squares <= 2 * mark
                report.add(line, passed, f"mark: {mark}", vectors=vectors, squares=squares)
    with report.attempt("the same bits three times"):
        repeat_stream(report)
    for backward in (0.0, 0.4):
        line = f"the trail where no lane meets another, backward {backward}"
        with report.attempt(line):
            worst = compare_trail_apart(backward)
            report.add(line, worst <= APART_MARK, f"beside the CPU; mark: {APART_MARK}", worst=worst)
    for precision, mark in TRAIL_MARKS.items():
        line = f"the trail as shipped, {precision}"
        with report.attempt(line):
            worst = compare_trail(precision)
            report.add(line, worst <= mark, f"mark: {mark}", worst=worst)


def compare_tiles(
    settings: dict[str, Any], num_users: int, num_items: int, precision: str = "tf32"
) -> tuple[float, float]:
    """Train a small log by the GPU's tiles and by the reference. Returns the largest differences of vectors and of sums.

    Differences of sums are shares of 1 + the sum. Raises AssertionError if they keep other tokens.
    """
    from surf2vec.trainer.config import TrainConfig
    from tests.trainer.kernels import reference
    from tests.trainer.kernels.test_gpu import gpu, make_rows, make_work

    work = make_work(TrainConfig(**{"parts": "interest", "sample": 0, **settings}), num_users, num_items, recency=3)
    users, items = make_rows(work)
    wanted_users, wanted_items = deepcopy(users), deepcopy(items)
    with mock.patch.object(reference, "AT_ONCE", True):
        num_wanted = reference.train_users(wanted_users, wanted_items, work)
    with set_precision(gpu, precision):
        num_kept = gpu.train_users(users, items, work)
    if num_kept != num_wanted:
        raise AssertionError(f"{num_kept} tokens were kept, not {num_wanted}")
    pairs = ((users, wanted_users), (items.outputs, wanted_items.outputs))
    vectors = max(float(np.abs(found.vectors - wanted.vectors).max()) for found, wanted in pairs)
    return vectors, max(largest_share(found.squares, wanted.squares) for found, wanted in pairs)


def largest_share(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference as a share of 1 + the wanted value."""
    return float((np.abs(found - wanted) / (1 + np.abs(wanted))).max())


class set_precision:  # noqa: N801
    """Let products of matrices have this precision in a `with`."""

    def __init__(self, gpu: Any, precision: str) -> None:
        self.gpu, self.precision, self.before = gpu, precision, gpu.PRECISION

    def __enter__(self) -> None:
        self.gpu.PRECISION = self.precision

    def __exit__(self, *_: object) -> None:
        self.gpu.PRECISION = self.before


def repeat_stream(report: Report) -> None:
    """One stream in which no row is twice in a step, three times: its steps have one order, so that other bits are a race."""
    from surf2vec.trainer.config import TrainConfig
    from tests.trainer.kernels.test_gpu import gpu, make_rows, make_work

    num_items = report.size(200_000, 500)
    work = make_work(TrainConfig(parts="interest", sample=0, vector_size=64), report.size(500, 40), num_items)
    tokens = np.random.default_rng(3).permutation(num_items)[: len(work.tokens)].astype(np.int32)
    work, ends = dataclasses.replace(work, tokens=tokens), []
    for _ in range(3):
        users, items = make_rows(work)
        gpu.train_users(users, items, work)
        ends.append((users.vectors, items.outputs.vectors))
    same = sum(all(map(np.array_equal, end, ends[0])) for end in ends)
    report.add(
        "the same bits three times", same == len(ends), "one stream, no row twice in a step: other bits are a race",
        same=same, streams=len(work.streams) - 1,
    )  # fmt: skip


def compare_trail_apart(backward: float) -> float:
    """The largest difference of the GPU's trail from the CPU's where all lanes have pages of their own."""
    from surf2vec.trainer.kernels.cpu import train_trail
    from tests.trainer.kernels.test_gpu_trail import apart, arrays, gpu

    trail, tables, work = apart(37)
    wanted = deepcopy(trail)
    train_trail(wanted, work, tables, backward)
    gpu.train_trail(trail, work, tables, backward)
    return max(map(largest_share, arrays(trail), arrays(wanted)))


def compare_trail(precision: str) -> float:
    """The largest difference of the GPU's trail, as shipped, from its reference."""
    from tests.trainer.kernels import reference, reference_trail
    from tests.trainer.kernels.test_gpu_trail import arrays, gpu, make_case

    trail, tables, work = make_case(40, vector_size=64, trail_negative=64)
    wanted = deepcopy(trail)
    with mock.patch.object(reference, "AT_ONCE", True):
        reference_trail.train_trail(wanted, work, tables, 0.5)
    with set_precision(gpu, precision):
        gpu.train_trail(trail, work, tables, 0.5)
    return max(map(largest_share, arrays(trail), arrays(wanted)))


if __name__ == "__main__":
    sys.exit(run_step(check_programs))
