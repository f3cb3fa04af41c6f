"""Pairs a second of the shipped tile and targets a second of the trail; the tile by items, and by users trained at once."""

import sys

from surf2vec.trainer.kernels.signature import most_streams
from tests.benchmarks.acceptance.pairs import Load, measure_speed, measure_trail_speed, shipped
from tests.benchmarks.acceptance.report import Report, run_step

MILLION = 1_000_000


def measure_speeds(report: Report) -> None:
    num_users, num_items, repeats = report.size(MILLION, 3), report.size(MILLION, 40), report.size(3, 1)
    config, load = shipped(report), Load(num_users, num_items)
    name = f"tile as shipped, {num_users:,} users, {num_items:,} items"
    report.add(name, True, "predicted: 600 to 900 M on an H100", pairs_per_second=measure_speed(config, load, repeats))
    targets, tokens = measure_trail_speed(shipped(report, "trail"), load, repeats)
    report.add("trail as shipped", True, targets_per_second=targets, tokens_per_second=tokens)
    if report.rehearses:
        return
    for num_items in (1_000, 50_000):
        speed = measure_speed(config, Load(MILLION, num_items), repeats)
        report.add(f"tile, {num_items:,} items", True, pairs_per_second=speed)
    for num_users in (50_000, 150_000):
        speed = measure_speed(config, Load(num_users, MILLION), repeats)
        streams = most_streams(num_users)
        report.add(f"tile, {num_users:,} users at once", True, pairs_per_second=speed, streams=streams)


if __name__ == "__main__":
    sys.exit(run_step(measure_speeds))
