"""Pairs a second of the kernel alone, all data on the card. A pair is a token that trains its user."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import epoch_key, mix_array
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import make_sampling, make_trail_tables
from surf2vec.trainer.model.rows import Rows, TrailItems
from tests.benchmarks.acceptance.copies import best_seconds
from tests.benchmarks.acceptance.report import Report

TOKENS_PER_USER = 25


@dataclass(frozen=True)
class Load:
    """What is trained."""

    users: int
    items: int


def shipped(report: Report | None = None, part: str = "interest") -> TrainConfig:
    """The shipped settings of a part, beside the other; tiny in a rehearsal. Nothing is subsampled, each target counts."""
    both = TrainConfig(sample=0)
    if report is not None and report.rehearses:
        both = replace(both, vector_size=32, negative=3, trail_negative=3)
    return both if part == "trail" else replace(both, parts="interest", vector_size=both.interest_size)


def measure_speed(config: TrainConfig, load: Load, repeats: int) -> float:
    """Pairs a second, everything on the card; the best of some passes after a first one.

    Raises AssertionError if the vectors are no longer finite: a speed at which nothing is learned does not count.
    """
    from surf2vec.trainer.kernels import gpu

    device = gpu.find_device()
    work = make_pass(config, *draw_tokens(load.users, load.items), load.items)
    on_device = gpu.on_device(work, device, streams=work.streams)
    users, outputs = (
        gpu.DeviceRecord(
            vectors=torch.zeros(n, config.interest_size, device=device), squares=torch.zeros(n, device=device)
        )
        for n in (load.users, load.items)
    )
    users.vectors.uniform_(-0.1, 0.1)
    scratch = gpu.make_scratch(len(work.hashes), len(work.tokens), device)
    seconds = best_seconds(lambda: gpu.launch(users, outputs, on_device, scratch), repeats)
    if not (users.vectors.isfinite().all() and outputs.vectors.isfinite().all()):
        raise AssertionError("the vectors are no longer finite")
    return len(work.tokens) / seconds


def measure_trail_speed(config: TrainConfig, load: Load, repeats: int) -> tuple[float, float]:
    """Targets a second, and tokens of their histories; as `measure_speed`. The trail alone."""
    from surf2vec.trainer.kernels import gpu

    device, rng = gpu.find_device(), np.random.default_rng(3)
    work = make_pass(config, *draw_tokens(load.users, load.items), load.items)
    sizes = (load.items, config.trail_size)
    rows = [Rows(rng.normal(0, 0.1, sizes).astype(np.float32), np.full(load.items, 1e-3, np.float32)) for _ in range(2)]
    lags = Rows(
        np.full((2 * config.trail_window, 1), 0.5, np.float32), np.full(2 * config.trail_window, 1e-3, np.float32)
    )
    tables = make_trail_tables(np.bincount(work.tokens, minlength=load.items), config)
    trail = gpu.on_device(TrailItems(*rows, lags), device, **vars(tables))
    on_device = gpu.on_device(work, device, streams=work.streams)
    scratch = gpu.make_scratch(len(work.hashes), len(work.tokens), device)
    seconds = best_seconds(lambda: gpu.launch_trail(trail, on_device, scratch, config.trail_backward), repeats)
    if not all(
        tensor.isfinite().all() for one in (trail.outputs, trail.inputs, trail.lags) for tensor in vars(one).values()
    ):
        raise AssertionError("the trail's values are no longer finite")
    return float(scratch.num_targets.sum()) / seconds, len(work.tokens) / seconds


@lru_cache(maxsize=4)
def draw_tokens(num_users: int, num_items: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and tokens: popularity 1 / rank, 25 tokens a user."""
    rng, num_tokens = np.random.default_rng(1), num_users * TOKENS_PER_USER
    offsets = np.arange(num_users + 1, dtype=np.int64) * TOKENS_PER_USER
    shares = np.cumsum(1 / np.arange(1, num_items + 1))
    drawn = np.searchsorted(shares, rng.random(num_tokens) * shares[-1])
    return offsets, np.minimum(drawn, num_items - 1).astype(np.int32)


def make_pass(config: TrainConfig, offsets: np.ndarray, tokens: np.ndarray, num_items: int) -> Pass:
    """A pass over all these users, in an order drawn at random."""
    num_users = len(offsets) - 1
    return Pass(
        config=config, tokens=tokens, starts=offsets[:-1], ends=offsets[1:],
        hashes=mix_array(np.arange(num_users, dtype=np.uint64)), order=np.random.default_rng(2).permutation(num_users),
        alphas=np.full(num_users, config.alpha, np.float32),
        sampling=make_sampling(np.bincount(tokens, minlength=num_items), config), tree=None,
        recency=config.used_recency, epoch_key=epoch_key(1, 0),
    )  # fmt: skip
