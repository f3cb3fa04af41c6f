"""Pairs a second of the GPU kernel at 128 dimensions, 5 private negatives, float32.

A pair is a token that trains its user. First each case has to agree with the reference on a small log, or no speed is told.
`of_bound` is the share of what this card's copies, measured here, permit a kernel without caches: it reads and writes the
rows of items of a pair, 8 D (1 + K) = 6,144 bytes. The user's row moves only once a history. One million users of 25 tokens, one
million items, popularity 1 / rank; no subsampling; best of five passes after a first one. Then a training out of core
(`device_swap`). Without a GPU only the agreement is checked, in Triton's interpreter.
"""

import dataclasses
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tests.benchmarks.device_swap import measure_device_swap
from tests.benchmarks.harness import run_benchmark
from tests.lockstep import lane_spread
from tests.trainer.kernels import reference
from trainer.config import TrainConfig
from trainer.draws import epoch_key
from trainer.kernels.first_rows import begin_items, begin_users
from trainer.kernels.signature import Pass
from trainer.model.objectives import make_sampling

MARK_PAIRS_PER_SECOND = 300e6
MARK = ">= 300 M pairs/s on an H200"
MARK_WITHOUT_GPU = "no GPU: agreement only"
TOLERANCE = 2e-4  # a GPU's exp, division and root are approximate
DIMS, NEGATIVES, TOKENS_A_USER = 128, 5, 25
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
    from trainer.kernels import gpu

    bandwidth = measure_bandwidth() if has_gpu else None
    cases = []
    for name, settings in CASES.items():
        config = TrainConfig(
            vector_size=DIMS, negative=NEGATIVES, sample=0, tile_users=1, **({"min_alpha": 0.001} | settings)
        )
        agreement, difference = measure_agreement(gpu, config)
        speed = measure_speed(gpu, config) if has_gpu and agreement == 1 else None
        bytes_a_pair = 8 * DIMS * (1 + NEGATIVES)
        cases.append(
            {
                "case": name, "ratio": speed / MARK_PAIRS_PER_SECOND if speed else agreement,
                "mark": MARK if has_gpu else MARK_WITHOUT_GPU,
                "passed": speed >= MARK_PAIRS_PER_SECOND if speed else not has_gpu and agreement == 1,
                "agreement": agreement, "largest_difference": difference, "pairs_per_second": speed,
                "of_bound": speed * bytes_a_pair / bandwidth if speed and bandwidth else None,
                "bytes_a_pair": bytes_a_pair, "copy_bytes_per_second": bandwidth,
                "device": torch.cuda.get_device_name() if has_gpu else "Triton's interpreter",
            }
        )  # fmt: skip
    return [*cases, measure_device_swap()] if has_gpu else cases


def measure_agreement(gpu: ModuleType, config: TrainConfig) -> tuple[float, float]:
    """The share of all numbers within the tolerance of the reference's, and the largest difference.

    The tolerance has what the order of lanes makes, which a card does not promise.

    One user a call: users side by side read rows that others move, so that they differ by more than rounding. And as in the
    middle of a training: from sums of zero Adagrad's first step is as long for the last digit of a gradient as for a gradient.
    """
    rng = np.random.default_rng(1)
    num_users, num_items, length = 5, 30, 9
    tokens = rng.integers(0, num_items, num_users * length).astype(np.int32)
    starts = np.arange(num_users) * length
    work = Pass(
        config=config, tokens=tokens, starts=starts, ends=starts + length, order=np.arange(num_users),
        hashes=rng.integers(0, 2**64, num_users, dtype=np.uint64), alphas=np.full(num_users, config.alpha, np.float32),
        sampling=make_sampling(np.bincount(tokens, minlength=num_items), config), tree=None, recency=config.used_recency,
        epoch_key=epoch_key(1, 0),
    )  # fmt: skip
    users, items = begin_users(config, work.hashes), begin_items(config, num_items, num_items)
    items.outputs.vectors[:] = rng.normal(0, 0.1, items.outputs.vectors.shape)
    for rows in (users, items.outputs):
        rows.squares[:] = 0.01
    expected_users, expected_items = users.copy(), items.copy()
    reference.train_users(expected_users, expected_items, work)
    for i in range(num_users):
        gpu.train_users(
            users, items, dataclasses.replace(work, order=work.order[i : i + 1], alphas=work.alphas[i : i + 1])
        )
    ours = np.concatenate([part.ravel() for rows in (users, items.outputs) for part in (rows.vectors, rows.squares)])
    theirs = [
        part.ravel() for rows in (expected_users, expected_items.outputs) for part in (rows.vectors, rows.squares)
    ]
    differences = np.abs(ours - np.concatenate(theirs))
    tolerance = TOLERANCE + 2 * lane_spread(work) * torch.cuda.is_available()
    return float(np.mean(differences <= tolerance)), float(differences.max())


def measure_speed(gpu: ModuleType, config: TrainConfig) -> float:
    """Pairs a second, everything on the GPU; the best of `REPEATS` passes."""
    generator = torch.Generator("cuda").manual_seed(1)
    shares = torch.cumsum(1 / torch.arange(1, NUM_ITEMS + 1, device="cuda", dtype=torch.float64), 0)
    points = torch.rand(NUM_USERS * TOKENS_A_USER, device="cuda", dtype=torch.float64, generator=generator) * shares[-1]
    tokens = torch.searchsorted(shares, points).clamp_(max=NUM_ITEMS - 1).to(torch.int32)
    counts = torch.bincount(tokens, minlength=NUM_ITEMS).cpu().numpy()
    offsets = torch.arange(NUM_USERS + 1, device="cuda") * TOKENS_A_USER
    work = gpu.DevicePass(
        config=config, tokens=tokens, starts=offsets[:-1], ends=offsets[1:],
        hashes=torch.randint(-(2**63), 2**63 - 1, (NUM_USERS,), device="cuda", generator=generator),
        order=torch.randperm(NUM_USERS, device="cuda", generator=generator),
        alphas=torch.full((NUM_USERS,), config.alpha, device="cuda"),
        sampling=gpu.copy_sampling(make_sampling(counts, config), torch.device("cuda")),
        recency=config.used_recency, epoch_key=epoch_key(1, 0),
    )  # fmt: skip
    users, outputs = (
        gpu.DeviceRows(torch.zeros(n, DIMS, device="cuda"), torch.zeros(n, device="cuda"))
        for n in (NUM_USERS, NUM_ITEMS)
    )
    users.vectors.uniform_(-0.1, 0.1, generator=generator)
    scratch = gpu.make_scratch(len(work.hashes), len(work.tokens), torch.device("cuda"))
    speeds = []
    for _ in range(1 + REPEATS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        gpu.launch(users, outputs, work, scratch)
        num_pairs = int(scratch.num_kept[: len(work.order)].sum())  # when all is done
        speeds.append(num_pairs / (time.perf_counter() - started))
    if not (users.vectors.isfinite().all() and outputs.vectors.isfinite().all()):
        raise AssertionError("the vectors are no longer finite: a speed at which nothing is learned does not count")
    return max(speeds[1:])


def measure_bandwidth() -> float:
    """Bytes read and written a second by torch's copy of 1 GiB, the best of ten."""
    source = torch.zeros(2**28, device="cuda")
    target = torch.empty_like(source)
    seconds = []
    for _ in range(10):
        torch.cuda.synchronize()
        started = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return 2 * source.nbytes / min(seconds)


if __name__ == "__main__":
    sys.exit(run_benchmark("gpu", __doc__ or "", measure_gpu))
