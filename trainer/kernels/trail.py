"""The kernel of the trail, for CPUs: causal PV-DM without a vector of the user. README.md has the formulas.

An item is predicted by the weighted sum of the pages just before it. Nothing is trained for a user, whose trail is that sum
after the last page. Users are trained in tiles: a step scores one target of each of TRAIL_TILE_USERS users against the same drawn
items. A stream is a run of users of the order that a tile is filled from, so that threads share no tile.
"""

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import cpu
from surf2vec.trainer.kernels.compiled_trail import (
    Lanes,
    Tile,
    TrailArrays,
    TrailNoise,
    TrailRule,
    sum_pages,
    train_streams,
)
from surf2vec.trainer.kernels.llvm import LINE_NUMBERS
from surf2vec.trainer.kernels.signature import TRAIL_BIAS, TRAIL_TILE_USERS, Pass, backward_of
from surf2vec.trainer.kernels.tiles import ROW_BLOCK, padded, scratch_rows
from surf2vec.trainer.model.objectives import TrailTables
from surf2vec.trainer.model.rows import TrailItems

_kept = threading.local()


def train_trail(trail: TrailItems, work: Pass, tables: TrailTables, backward: float, epoch: int) -> int:
    """Train the targets of the users `work.order` whose turn it is in an epoch, in place. Returns the number of targets.

    backward: the share of targets that are predicted from the pages after them.
    """
    config, every = work.config, min(work.config.trail_every, work.config.epochs)
    rule = TrailRule(
        window=config.trail_window, every=every, turn=epoch % every, backward=4.0 * backward_of(backward),
        bias=np.float32(TRAIL_BIAS), handicap=np.float32(math.log(config.negative_weight)),
    )  # fmt: skip
    noise = cpu.read_only(tables.thresholds, tables.aliases, tables.corrections, tables.l2s, tables.shares)
    histories = cpu.read_only(work.tokens, work.starts, work.ends, work.hashes, work.order, work.alphas)
    taken = np.zeros(LINE_NUMBERS, dtype=np.int64)
    arrays = (array for rows in (trail.outputs, trail.inputs, trail.lags) for array in (rows.vectors, rows.squares))
    shared = (TrailArrays(*arrays), TrailNoise(*noise), rule, histories, np.uint64(work.epoch_key), work.streams, taken)
    sizes = (config, int((work.ends - work.starts).max(initial=0)), len(tables.aliases))
    return cpu.run_threads(lambda _: int(train_streams(*shared, *_own_scratch(*sizes))), cpu.used_threads(config))


def trail_vectors(
    trail: TrailItems, tokens: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64], window: int,
    skipped: NDArray[np.int32] | None = None,
) -> NDArray[np.float32]:  # fmt: skip
    """Return the trails of histories tokens[starts[i] : ends[i]], float32[n, D]. skipped int32[n]: pages to leave out."""
    vectors = np.empty((len(starts), trail.inputs.vectors.shape[1]), dtype=np.float32)
    skipped = np.full(len(starts), -1, dtype=np.int32) if skipped is None else skipped
    inputs, lags, *histories = cpu.read_only(trail.inputs.vectors, trail.lags.vectors, tokens, starts, ends, skipped)
    sum_pages(inputs, lags, window, np.float32(TRAIL_BIAS), *histories, vectors)
    return vectors


def _own_scratch(config: TrainConfig, longest: int, num_items: int) -> tuple[Any, ...]:
    """Return the calling thread's lanes, tile, and stamps of items and users. It keeps them, as visits may be short."""
    sizes = (config.trail_size, config.trail_negative, config.trail_window, num_items)
    scratch: tuple[Any, ...] | None = getattr(_kept, "scratch", None)
    if scratch is None or _kept.sizes != sizes or longest >= scratch[0].targets.shape[1]:
        stamps = np.zeros(num_items, np.int64), np.zeros(1, np.int64)
        scratch = (_make_lanes(longest), _make_tile(config, num_items), *stamps)
        _kept.sizes, _kept.scratch = sizes, scratch
    return scratch


def _make_lanes(longest: int) -> Lanes:
    users, num_targets, first = (np.zeros(TRAIL_TILE_USERS, dtype=np.int64) for _ in range(3))
    targets = np.zeros((TRAIL_TILE_USERS, longest + 1), dtype=np.int64)
    return Lanes(users, num_targets, first, targets, np.zeros(TRAIL_TILE_USERS, dtype=np.float32))


def _make_tile(config: TrainConfig, num_items: int) -> Tile:
    num_negatives, window, lanes = config.trail_negative, config.trail_window, TRAIL_TILE_USERS
    width, rows = padded(config.trail_size), padded(num_negatives, ROW_BLOCK)
    shapes = {
        "hiddens": (lanes, width), "across": (width, lanes), "steps": (lanes, width), "negatives": (rows, width),
        "negative_steps": (rows, width), "scores": (rows, lanes), "scales": (1, lanes), "pulls": (1, lanes), "totals": (1, lanes),
    }  # fmt: skip
    numbers = {name: scratch_rows(*shape) for name, shape in shapes.items()}
    numbers |= {name: numbers[name][0] for name in ("scales", "pulls", "totals")}
    unsigned = {name: np.zeros(size, np.uint32) for name, size in (("rows", rows), ("items", lanes))}
    signed = {name: np.zeros(size, np.int32) for name, size in (("same", rows), ("last_of", num_items))}
    return Tile(
        **numbers, **unsigned, **signed, corrections=np.zeros(num_negatives, np.float32),
        context=np.zeros((lanes, window), np.uint32), lags=np.zeros((lanes, window), np.int64),
        factors=np.zeros((lanes, window), np.float32), lengths=np.zeros(lanes, np.int64),
        lag_steps=np.zeros(2 * window, np.float32),
    )  # fmt: skip
