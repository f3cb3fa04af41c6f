"""Pairs a second of the kernel alone, all data on the card, by what it depends on; each as a share of its bound.

A pair is a token that trains its user. The bound is the speed of a kernel without caches: it reads and writes the rows of items
of a pair, 8 D (1 + K) bytes with private negatives, 8 D (1 + K / M) in tiles of M users, at this card's speed of copies.
"""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import epoch_key, mix_array
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import make_sampling, make_trail_tables
from surf2vec.trainer.model.rows import Items, Rows, TrailItems
from tests.benchmarks.acceptance.copies import best_seconds, synchronize
from tests.benchmarks.acceptance.report import Report, device_name, run_step
from tests.lockstep import lane_spread, make_launch, middle_rows, simulate
from tests.trainer.kernels import reference

TOLERANCE = 2e-4  # a GPU's exp, division and root are approximate
DIMS, NEGATIVES, TOKENS_A_USER = 128, 5, 25
REPEATS_OF_A_PASS = 3
PRIVATE, SHIPPED = "1 M users, 1 M items, 5 negatives", "1 M users, 1 M items, as shipped: 64 numbers, tiles"
H200_MARKS = {PRIVATE: 300e6, SHIPPED: 600e6}
SGD = {"objective": "negative_sampling", "optimizer": "sgd", "alpha": 0.025, "min_alpha": 0.001}
LENGTHS = ("equal", "lognormal", "heavy")


@dataclass(frozen=True)
class Load:
    """What is trained; launch: users of a launch, None: all; warps: of a program, None: as the kernel chooses."""

    users: int
    items: int
    lengths: str = "equal"
    launch: int | None = None
    warps: int | None = None


def config_of(tile: int = 1, **settings: Any) -> TrainConfig:
    """Settings of a measurement; tile: users that share negatives."""
    values: dict[str, Any] = {"vector_size": DIMS, "negative": NEGATIVES, "sample": 0, "tile_users": tile}
    return TrainConfig(parts="interest", **(values | settings))


def measure_pairs(report: Report) -> None:
    """Lines by one thing at a time, beside 5 private negatives, sampled softmax, Adagrad, 100,000 items, equal lengths."""
    copied = measure_bandwidth(report.size(2**28, 2**16))
    base = Load(report.size(200_000, 2), report.size(100_000, 40))
    shipped = TrainConfig(parts="interest", vector_size=TrainConfig().interest_size, sample=0)
    cases = [
        (name, config, Load(1_000_000, 1_000_000)) for name, config in ((PRIVATE, config_of()), (SHIPPED, shipped))
    ]
    cases += [(f"{k} negatives", config_of(negative=k), base) for k in (5, 10, 16, 20)]
    cases += [(f"tile of {m}, 16 negatives", config_of(tile=m, negative=16), base) for m in (8, 32)]
    cases += [("negative sampling, sgd", config_of(**SGD), base)]
    cases += [(f"{n:,} items", config_of(), dataclasses.replace(base, items=n)) for n in (1_000, 1_000_000)]
    cases += [(f"{name} lengths", config_of(), dataclasses.replace(base, lengths=name)) for name in LENGTHS[1:]]
    cases += [(f"{w} warps", config_of(), dataclasses.replace(base, warps=w)) for w in (1, 2, 4)]
    cases += [
        (f"launches of {n:,} users", config_of(), dataclasses.replace(base, launch=n)) for n in (64, 1_000, 10_000)
    ]
    for name, config, load in cases[1:4] + cases[6:7] if report.rehearses else cases:
        if report.rehearses:
            load = dataclasses.replace(load, users=base.users, items=base.items)
            config = dataclasses.replace(config, vector_size=16, negative=3)
        speed, bound = measure_speed(config, load, report.size(REPEATS_OF_A_PASS, 1)), copied / bytes_a_pair(config)
        mark = H200_MARKS.get(name) if "H200" in device_name() else None
        passed = speed >= mark if mark else speed > 0
        why = f"mark: {mark:.0f} on an H200" if mark else ""
        report.add(name, passed, why, pairs_per_second=speed, of_bound=speed / bound, bytes_a_pair=bytes_a_pair(config))
        if name == SHIPPED:
            measure_trail(report)


def measure_trail(report: Report) -> None:
    """Targets a second of the path as shipped: 64 numbers, 64 negatives that 32 users share, the last five pages."""
    config = TrainConfig(trail_every=1)
    if report.rehearses:
        config = dataclasses.replace(config, vector_size=32, trail_negative=3)
    load = Load(report.size(1_000_000, 2), report.size(1_000_000, 40))
    targets, tokens = measure_trail_speed(config, load, report.size(REPEATS_OF_A_PASS, 1))
    name = f"the path, {load.users:,} users, {load.items:,} items, as shipped"
    report.add(name, targets > 0, targets_per_second=targets, tokens_per_second=tokens)


def measure_trail_speed(config: TrainConfig, load: Load, repeats: int) -> tuple[float, float]:
    """Targets a second, and tokens of their histories; as `measure_speed`. trail_every is 1, so that each target counts."""
    from surf2vec.trainer.kernels import gpu

    device, rng = gpu.find_device(), np.random.default_rng(3)
    work = make_pass(config, *draw_tokens(load.users, load.items, load.lengths), load.items)
    sizes = (load.items, config.trail_size)
    rows = [Rows(rng.normal(0, 0.1, sizes).astype(np.float32), np.full(load.items, 1e-3, np.float32)) for _ in range(2)]
    lags = Rows(
        np.full((2 * config.trail_window, 1), 0.5, np.float32), np.full(2 * config.trail_window, 1e-3, np.float32)
    )
    tables = make_trail_tables(np.bincount(work.tokens, minlength=load.items), config)
    path, on_device = (
        gpu.copy_trail(TrailItems(*rows, lags), tables, device),
        gpu.copy_pass(work, gpu.copy_sampling(work.sampling, device)),
    )
    scratch, seconds = gpu.make_scratch(len(work.hashes), len(work.tokens), device), []
    for _ in range(1 + repeats):
        synchronize()
        started = time.perf_counter()
        gpu.launch_trail(path, on_device, scratch, config.trail_backward, 0)
        synchronize()
        seconds.append(time.perf_counter() - started)
    if not all(
        tensor.isfinite().all() for one in (path.outputs, path.inputs, path.lags) for tensor in vars(one).values()
    ):
        raise AssertionError("the path's numbers are no longer finite")
    best = min(seconds[1:])
    return float(scratch.num_kept.sum()) / best, len(work.tokens) / best


def bytes_a_pair(config: TrainConfig) -> float:
    """Bytes of rows of items that a pair reads and writes."""
    lanes = config.tile_users if config.has_tiles else 1
    return 8 * config.interest_size * (1 + config.negative / lanes)


@lru_cache(maxsize=4)
def draw_tokens(num_users: int, num_items: int, lengths: str) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and tokens: popularity 1 / rank; 25 tokens a user in the mean, all equal, log-normal, or a tail by a power law."""
    rng = np.random.default_rng(1)
    if lengths == "equal":
        each = np.full(num_users, TOKENS_A_USER)
    elif lengths == "lognormal":
        each = np.maximum(1, rng.lognormal(np.log(TOKENS_A_USER) - 0.5, 1.0, num_users)).astype(np.int64)
    else:
        each = np.minimum(20_000, (rng.pareto(1.5, num_users) + 1) * 8.5).astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(each))).astype(np.int64)
    shares = np.cumsum(1 / np.arange(1, num_items + 1))
    drawn = np.searchsorted(shares, rng.random(int(offsets[-1])) * shares[-1])
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


def measure_speed(config: TrainConfig, load: Load, repeats: int = REPEATS_OF_A_PASS) -> float:
    """Pairs a second, everything on the card; the best of some passes after a first one.

    Raises AssertionError if the vectors are no longer finite: a speed at which nothing is learned does not count.
    """
    from surf2vec.trainer.kernels import gpu

    device = gpu.find_device()
    work = make_pass(config, *draw_tokens(load.users, load.items, load.lengths), load.items)
    on_device = gpu.copy_pass(work, gpu.copy_sampling(work.sampling, device))
    users, outputs = (
        gpu.DeviceRows(torch.zeros(n, config.interest_size, device=device), torch.zeros(n, device=device))
        for n in (load.users, load.items)
    )
    users.vectors.uniform_(-0.1, 0.1)
    scratch, speeds = gpu.make_scratch(len(work.hashes), len(work.tokens), device), []
    with taking_warps(gpu, load.warps):
        for _ in range(1 + repeats):
            synchronize()
            started = time.perf_counter()
            for part in split_pass(on_device, load.launch):
                gpu.launch(users, outputs, part, scratch)
            synchronize()
            speeds.append(len(work.tokens) / (time.perf_counter() - started))
    if not (users.vectors.isfinite().all() and outputs.vectors.isfinite().all()):
        raise AssertionError("the vectors are no longer finite")
    return max(speeds[1:])


def split_pass(work: Any, num_users: int | None) -> Iterator[Any]:
    """The pass in parts of so many users, in order; None: whole."""
    if num_users is None:
        yield work
        return
    for start in range(0, len(work.order), num_users):
        part = slice(start, start + num_users)
        yield dataclasses.replace(work, order=work.order[part], alphas=work.alphas[part])


@contextlib.contextmanager
def taking_warps(gpu: Any, num_warps: int | None) -> Iterator[None]:
    """Let the programs have so many warps."""
    chosen = gpu.num_warps
    if num_warps is not None:
        gpu.num_warps = lambda *_: num_warps
    try:
        yield
    finally:
        gpu.num_warps = chosen


def measure_bandwidth(num_numbers: int = 2**28) -> float:
    """Bytes read and written a second by torch's copies of float32 numbers, by default 1 GiB; the best of some."""
    from surf2vec.trainer.kernels import gpu

    source = torch.zeros(num_numbers, device=gpu.find_device())
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_seconds(lambda: target.copy_(source))


def train_alone(users: Rows, items: Items, work: Pass) -> int:
    """The reference's arithmetic with private negatives (tests/trainer/kernels/test_lockstep.py), which needs no numba."""
    return simulate(make_launch(1, None), users, items, work)


def measure_agreement(config: TrainConfig, num_users: int = 5) -> tuple[float, float]:
    """The share of all numbers within the tolerance of the reference's, and the largest difference.

    One user a call: users side by side read rows that others move, so that they differ by more than rounding. And as in the
    middle of a training: from sums of zero Adagrad's first step is as long for the last digit of a gradient as for a gradient.
    The tolerance on a card has what the order of lanes makes, which it does not promise.
    """
    from surf2vec.trainer.kernels import gpu

    rng, num_items, length = np.random.default_rng(1), 30, 9
    tokens = rng.integers(0, num_items, num_users * length).astype(np.int32)
    work = make_pass(config, np.arange(num_users + 1) * length, tokens, num_items)
    users, items = middle_rows(work)
    expected_users, expected_items = users.copy(), items.copy()
    expect = reference.train_users if config.has_tiles else train_alone
    for one in range(num_users):
        step = dataclasses.replace(work, order=work.order[one : one + 1], alphas=work.alphas[one : one + 1])
        gpu.train_users(users, items, step)
        expect(expected_users, expected_items, step)
    pairs = ((users, expected_users), (items.outputs, expected_items.outputs))
    differences = np.concatenate(
        [
            np.abs(getattr(ours, name) - getattr(theirs, name)).ravel()
            for ours, theirs in pairs
            for name in ("vectors", "squares")
        ]
    )
    tolerance = TOLERANCE + 2 * lane_spread(work) * torch.cuda.is_available()
    return float(np.mean(differences <= tolerance)), float(differences.max())


if __name__ == "__main__":
    sys.exit(run_step(measure_pairs))
