"""Pairs a second of the GPU's tiles as shipped: 64 dimensions of interest, 16 negatives that 32 users share, float32.

A pair is a token that trains its user. First the tile has to agree with the reference on a small log, or no speed is measured.
`of_bound` is the share of what this card's copies, measured here, permit a kernel without caches: it reads and writes the rows of
items of a pair, 8 D (1 + K / M) = 768 bytes. One million users of 25 tokens, one million items, popularity 1 / rank; no
subsampling; best of five passes after a first one. Without a GPU only the agreement is checked, in Triton's interpreter.
`tests.benchmarks.gpu_acceptance` measures everything else on a card.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.harness import make_case, run_benchmark

MARK_PAIRS_PER_SECOND = 600e6
MARK = ">= 600 M pairs/s on an H100"
MARK_WITHOUT_GPU = "no GPU: agreement only"
NUM_USERS = NUM_ITEMS = 1_000_000
COPIED_BYTES, REPEATS = 2**30, 5


def measure_gpu(_: Path) -> list[dict[str, Any]]:
    """One case; pairs a second only where there is a GPU and the tile agrees."""
    has_gpu = torch.cuda.is_available()
    if not has_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported, in the next line
    from tests.benchmarks.acceptance.copies import best_seconds
    from tests.benchmarks.acceptance.pairs import Load, measure_speed, shipped
    from tests.benchmarks.acceptance.tiles import MARKS, SHAPES, compare_tiles

    vectors, squares = compare_tiles(*next(iter(SHAPES.values())), "tf32x3")
    config, agrees = shipped(), max(vectors, squares / 2) <= MARKS["tf32x3"]
    bytes_per_pair = 8 * config.interest_size * (1 + config.negative / config.tile_users)
    case: dict[str, Any] = (
        make_case("as shipped", float(agrees), MARK if has_gpu else MARK_WITHOUT_GPU, agrees and not has_gpu)
        | {"largest_difference": max(vectors, squares), "bytes_per_pair": bytes_per_pair}
        | {"device": torch.cuda.get_device_name() if has_gpu else "Triton's interpreter"}
    )
    if has_gpu and agrees:
        speed = measure_speed(config, Load(NUM_USERS, NUM_ITEMS), REPEATS)
        source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        bandwidth = 2 * COPIED_BYTES / best_seconds(lambda: target.copy_(source))
        case |= (
            {"ratio": speed / MARK_PAIRS_PER_SECOND, "passed": speed >= MARK_PAIRS_PER_SECOND}
            | {"pairs_per_second": speed, "copy_bytes_per_second": bandwidth}
            | {"of_bound": speed * bytes_per_pair / bandwidth}
        )
    return [case]


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_gpu))
