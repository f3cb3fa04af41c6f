"""Pairs a second of the GPU kernel at 128 dimensions, 5 private negatives, float32.

A pair is a token that trains its user. First each case has to agree with the reference on a small log, or no speed is told.
`of_bound` is the share of what this card's copies, measured here, permit a kernel without caches: it reads and writes the
rows of items of a pair, 8 D (1 + K) = 6,144 bytes. The user's row moves only once a history. One million users of 25 tokens, one
million items, popularity 1 / rank; no subsampling; best of five passes after a first one. Then a training out of core
(`device_swap`). Without a GPU only the agreement is checked, in Triton's interpreter.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from surf2vec.trainer.config import TrainConfig
from tests.benchmarks.device_swap import measure_device_swap
from tests.benchmarks.harness import run_benchmark

MARK_PAIRS_PER_SECOND = 300e6
MARK = ">= 300 M pairs/s on an H200"
MARK_WITHOUT_GPU = "no GPU: agreement only"
DIMS, NEGATIVES = 128, 5
NUM_USERS = NUM_ITEMS = 1_000_000
REPEATS = 5
CASES: dict[str, dict[str, Any]] = {
    "private, negative sampling, sgd": {"objective": "negative_sampling", "optimizer": "sgd", "alpha": 0.025},
    "private, sampled softmax, adagrad": {},
}


def measure_gpu(_: Path) -> list[dict[str, Any]]:
    """A case each for the ways to learn; pairs a second only where there is a GPU and the case agrees."""
    has_gpu = torch.cuda.is_available()
    if not has_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported, in the next line
    from tests.benchmarks.acceptance.pairs import (
        Load,
        bytes_a_pair,
        measure_agreement,
        measure_bandwidth,
        measure_speed,
    )  # fmt: skip

    bandwidth = measure_bandwidth() if has_gpu else None
    cases = []
    for name, settings in CASES.items():
        config = TrainConfig(
            parts="interest",
            vector_size=DIMS,
            negative=NEGATIVES,
            sample=0,
            tile_users=1,
            **({"min_alpha": 0.001} | settings),
        )
        agreement, difference = measure_agreement(config)
        speed = measure_speed(config, Load(NUM_USERS, NUM_ITEMS), REPEATS) if has_gpu and agreement == 1 else None
        cases.append(
            {
                "case": name, "ratio": speed / MARK_PAIRS_PER_SECOND if speed else agreement,
                "mark": MARK if has_gpu else MARK_WITHOUT_GPU,
                "passed": speed >= MARK_PAIRS_PER_SECOND if speed else not has_gpu and agreement == 1,
                "agreement": agreement, "largest_difference": difference, "pairs_per_second": speed,
                "of_bound": speed * bytes_a_pair(config) / bandwidth if speed and bandwidth else None,
                "bytes_a_pair": bytes_a_pair(config), "copy_bytes_per_second": bandwidth,
                "device": torch.cuda.get_device_name() if has_gpu else "Triton's interpreter",
            }
        )  # fmt: skip
    return [*cases, measure_device_swap()] if has_gpu else cases


if __name__ == "__main__":
    sys.exit(run_benchmark("gpu", __doc__ or "", measure_gpu))
