"""Pairs a second of the tile and targets a second of the trail by warps, registers a thread and precision.

A program that spills may still be faster: more of them share a multiprocessor.
"""

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.benchmarks.acceptance.pairs import Load, measure_speed, measure_trail_speed, shipped
from tests.benchmarks.acceptance.report import Report, run_step
from tests.benchmarks.acceptance.tiles import set_precision

TILE_OPTIONS: tuple[dict[str, int], ...] = (
    {}, {"maxnreg": 200}, {"num_warps": 4}, {"num_warps": 4, "maxnreg": 168}, {"num_warps": 4, "maxnreg": 128}, {"num_warps": 1},
)  # fmt: skip
TRAIL_OPTIONS: tuple[dict[str, int], ...] = ({}, {"maxnreg": 168}, {"num_warps": 2})
PRECISIONS = ("tf32x3", "bf16x3")  # the interpreter knows no bf16x3


class Tuned:
    """A Triton kernel that is launched with these options instead of those that the launch says."""

    def __init__(self, kernel: Any, options: dict[str, int]) -> None:
        self.kernel, self.options = kernel, options

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return lambda *arrays, **named: self.kernel[grid](*arrays, **(named | self.options))


def compare_options(report: Report) -> None:
    from surf2vec.trainer.kernels import gpu

    load, repeats = Load(report.size(1_000_000, 2), report.size(1_000_000, 40)), report.size(2, 1)
    tile, trail = shipped(report), shipped(report, "trail")

    def add(name: str, measure: Callable[[], float]) -> None:
        with report.attempt(name):
            report.add(name, True, per_second=measure())

    for options in TILE_OPTIONS[: report.size(len(TILE_OPTIONS), 2)]:
        with mock.patch.object(gpu, "train_stream", Tuned(gpu.train_stream, options)):
            add(f"tile, {options or 'as shipped'}", lambda: measure_speed(tile, load, repeats))
    for precision in PRECISIONS[: report.size(len(PRECISIONS), 1)]:
        with set_precision(gpu, precision):
            add(f"tile, {precision}", lambda: measure_speed(tile, load, repeats))
    for options in TRAIL_OPTIONS[: report.size(len(TRAIL_OPTIONS), 1)]:
        with mock.patch.object(gpu, "train_stream", Tuned(gpu.train_stream, options)):
            add(f"trail, {options or 'as shipped'}", lambda: measure_trail_speed(trail, load, repeats)[0])


if __name__ == "__main__":
    sys.exit(run_step(compare_options))
