"""The programs of a card as numba: `width` streams in step, all of which read a step's rows before any of them moves one.

So rows are as stale as can be. Adagrad's sums are those that a step's earlier streams have raised: a card's atomic adds return
sums as recent. With a width of 1 these are the card's steps, `reference.AT_ONCE`.
"""
# mypy: no-check-untyped-defs

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from surf2vec.trainer.config import TRAIL_BIAS, TRAIL_BIASES
from surf2vec.trainer.draws import SUBSAMPLE, TILE
from surf2vec.trainer.kernels.compiled_draws import draw, draw_negative, mix
from surf2vec.trainer.kernels.compiled_trail import list_targets, scale_of
from surf2vec.trainer.kernels.model import Noise, Table
from surf2vec.trainer.kernels.signature import (
    L2_WINDOW,
    LAG_RATE,
    LEAST_LAG,
    TRAIL_RATE,
    TRAIL_TILE_USERS,
    Pass,
    backward_of,
)
from surf2vec.trainer.model.objectives import TrailTables
from surf2vec.trainer.model.rows import EPSILON, Items, Rows, TrailItems

_32 = np.uint64(32)
_EPSILON = np.float32(EPSILON)

Histories = namedtuple("Histories", "tokens starts ends keys order alphas targets num_targets")
"""Users' tokens, keys and learning rates; targets: of a user at its tokens' places; num_targets: by place of the order."""

Listing = namedtuple("Listing", "rule work noise lanes")
"""What `list_targets` reads of model.Stream, and `Listed` what it writes of model.Lanes."""

Listed = namedtuple("Listed", "targets listed seen stamp")

Settings = namedtuple("Settings", "num_lanes num_negatives window num_free handicap recency_rate l2 backward")
"""window: the trail's, 0 for the interest; recency_rate: 1 / recency; backward as in model.Rule."""

Lanes = namedtuple("Lanes", "at done own hiddens steps pulls pages factors drawn negative_steps lag_steps")
"""The lanes of streams in step. Shapes begin with the stream and the lane; drawn, negative_steps, lag_steps with the stream.

at: a user's place in the order, or -1; done: how many of its targets are; own: the item of this step, or -1; pulls: the
softmax's share that is not the target's, or -1 where nothing is learned; lag_steps has the lags of both directions.
"""


@numba.njit
def list_kept(work, keep):
    """List the tokens that subsampling keeps, each four times its position."""
    for place, user in enumerate(work.order):
        start, num = work.starts[user], 0
        for position in range(work.ends[user] - start):
            if (draw(work.keys[user], position, SUBSAMPLE, 0) >> _32) < keep[work.tokens[start + position]]:
                work.targets[start + num] = 4 * position
                num += 1
        work.num_targets[place] = num


@numba.njit
def list_trail(work, listing):
    """List the trail's targets."""
    for place, user in enumerate(work.order):
        start, num = work.starts[user], list_targets(listing, user, work.keys[user], 0)
        work.targets[start : start + num] = listing.lanes.targets[0, :num]
        work.num_targets[place] = num


@numba.njit
def make_lanes(num_streams, num_dims, rule):
    streams, lanes, lags = num_streams, rule.num_lanes, rule.window
    hiddens = np.zeros((streams, lanes, num_dims), np.float32)
    return Lanes(
        np.full((streams, lanes), -1), np.zeros((streams, lanes), np.int64), np.full((streams, lanes), -1),
        hiddens, np.zeros_like(hiddens), np.zeros((streams, lanes), np.float32),
        np.full((streams, lanes, lags), -1), np.zeros((streams, lanes, lags), np.float32),
        np.zeros((streams, rule.num_negatives), np.int64), np.zeros((streams, rule.num_negatives, num_dims), np.float32),
        np.zeros((streams, 2 * lags), np.float32),
    )  # fmt: skip


@numba.njit(fastmath=True, error_model="numpy")
def train_group(users, outputs, inputs, lags, noise, work, rule, bounds):
    """Train the streams between `bounds` of the order in step."""
    num_streams = len(bounds) - 1
    lanes = make_lanes(num_streams, outputs.vectors.shape[1], rule)
    following, step, num_left = bounds[:-1].copy(), 0, 1
    while num_left:
        num_left = 0
        for s in range(num_streams):
            following[s] = seat_users(lanes, work, s, following[s], bounds[s + 1])
            num_active = (lanes.own[s] >= 0).sum()
            if num_active:
                draw_negatives(lanes, noise, work.keys[work.order[bounds[s]]], s, step)
            for m in range(rule.num_lanes):
                if lanes.own[s, m] >= 0:
                    read_lane(lanes, users, outputs, inputs, lags, noise, work, rule, s, m)
            num_left += num_active
        for s in range(num_streams):
            move_stream(lanes, users, outputs, inputs, lags, noise, work, rule, s)
        step += 1


@numba.njit
def seat_users(lanes, work, s, following, end):
    """Give lanes whose user is done the next of the stream; returns the place of the one after."""
    for m in range(lanes.at.shape[1]):
        at, done = lanes.at[s, m], lanes.done[s, m]
        while (at < 0 or done == work.num_targets[at]) and following < end:
            at, done = following, 0
            following += 1
        lanes.at[s, m], lanes.done[s, m], lanes.own[s, m] = at, done, -1
        if at >= 0 and done < work.num_targets[at]:
            start = work.starts[work.order[at]]
            lanes.own[s, m] = work.tokens[start + (work.targets[start + done] >> 2)]
    return following


@numba.njit
def draw_negatives(lanes, noise, key, s, step):
    for k in range(lanes.drawn.shape[1]):
        lanes.drawn[s, k] = draw_negative(draw(key, step, TILE, k), noise)
    lanes.negative_steps[s] = 0
    lanes.lag_steps[s] = 0


@numba.njit(fastmath=True, error_model="numpy")
def read_inputs(lanes, inputs, lags, work, s, m):
    """The trail's hidden of a lane; returns its scale, or 0 where no lag has an item."""
    user, item, hidden = work.order[lanes.at[s, m]], lanes.own[s, m], lanes.hiddens[s, m]
    start, length = work.starts[user], work.ends[user] - work.starts[user]
    target = work.targets[start + lanes.done[s, m]]
    position, is_backward, window = target >> 2, target & 1, lanes.pages.shape[2]
    hidden[:], total = 0, np.float32(0)
    for lag in range(window):
        place, page = position + (lag + 1 if is_backward else -1 - lag), -1
        if 0 <= place < length and (lag == 0 or not target & 2) and work.tokens[start + place] != item:
            page, factor = work.tokens[start + place], lags.vectors[lag + is_backward * window, 0]
            lanes.factors[s, m, lag] = factor
            total += factor * factor
            hidden += factor * inputs.vectors[page]
        lanes.pages[s, m, lag] = page
    scale = scale_of(total)
    hidden *= scale
    hidden[len(hidden) - 1 - is_backward] = TRAIL_BIAS
    lanes.factors[s, m] *= scale
    return scale if total > 0 else np.float32(0)


@numba.njit(fastmath=True, error_model="numpy")
def read_lane(lanes, users, outputs, inputs, lags, noise, work, rule, s, m):
    """The softmax over a lane's target and the step's negatives: what its rows move by."""
    item, hidden, scale = lanes.own[s, m], lanes.hiddens[s, m], np.float32(1)
    if rule.window:
        scale = read_inputs(lanes, inputs, lags, work, s, m)
    else:
        hidden[:] = users.vectors[work.order[lanes.at[s, m]]]
    drawn, row, step = lanes.drawn[s], outputs.vectors[item], lanes.steps[s, m]
    score = np.float32((hidden * row).sum()) - noise.corrections[item] - rule.handicap
    highest, scores = score, np.zeros(len(drawn), np.float32)
    for k, other in enumerate(drawn):
        scores[k] = (hidden * outputs.vectors[other]).sum() - noise.corrections[other]
        if other == item or (rule.window and (lanes.pages[s, m] == other).any()):
            scores[k] = -np.float32(1e30)
        highest = max(highest, scores[k])
    scores[:] = np.exp(scores - highest)
    whole = scores.sum() + np.exp(score - highest)
    if scale == 0:
        scores[:] = 0
    pull = scores.sum() / whole
    step[:] = pull * row
    for k, other in enumerate(drawn):
        step -= scores[k] / whole * outputs.vectors[other]
        lanes.negative_steps[s, k] -= scores[k] / whole * hidden
    lanes.pulls[s, m] = pull if scale else -1
    is_backward = work.targets[work.starts[work.order[lanes.at[s, m]]] + lanes.done[s, m]] & 1
    for lag in range(rule.window if scale else 0):
        page = lanes.pages[s, m, lag]
        if page >= 0:
            towards = (step[: rule.num_free] * inputs.vectors[page, : rule.num_free]).sum()
            lanes.lag_steps[s, lag + is_backward * rule.window] += scale * towards


@numba.njit(fastmath=True, error_model="numpy")
def move_stream(lanes, users, outputs, inputs, lags, noise, work, rule, s):
    """Move the rows of a stream, at rates by the sums that all its lanes have raised."""
    first = -1
    for m in range(rule.num_lanes - 1, -1, -1):
        first = m if lanes.own[s, m] >= 0 else first
    if first < 0:
        return
    alpha = work.alphas[lanes.at[s, first]]
    move_own(lanes, outputs, noise, work, rule, s)
    for k, other in enumerate(lanes.drawn[s]):
        step = lanes.negative_steps[s, k]
        outputs.squares[other] += (step * step).mean()
    for k, other in enumerate(lanes.drawn[s]):
        outputs.vectors[other] += alpha / np.sqrt(outputs.squares[other] + _EPSILON) * lanes.negative_steps[s, k]
    if rule.window:
        move_inputs(lanes, inputs, noise, work, s)
        move_lags(lags, lanes.lag_steps[s], alpha)
    for m in range(rule.num_lanes):
        if lanes.own[s, m] >= 0:
            if not rule.window:
                move_user(users, work, rule, lanes.at[s, m], lanes.done[s, m], lanes.steps[s, m])
            lanes.done[s, m] += 1


@numba.njit(fastmath=True, error_model="numpy")
def move_own(lanes, outputs, noise, work, rule, s):
    """The targets' rows. The trail's L2 is not in their squares."""
    gradients_MD = np.zeros_like(lanes.hiddens[s])
    for m, item in enumerate(lanes.own[s]):
        pull, gradient = lanes.pulls[s, m], gradients_MD[m]
        if item >= 0 and pull >= 0:
            gradient[:] = pull * lanes.hiddens[s, m]
            if rule.window:
                outputs.squares[item] += (gradient * gradient).mean()
            gradient[: rule.num_free] -= noise.l2s[item] * outputs.vectors[item, : rule.num_free]
            if not rule.window:
                outputs.squares[item] += (gradient * gradient).mean()
    for m, item in enumerate(lanes.own[s]):
        if item >= 0:
            rate = work.alphas[lanes.at[s, m]] / np.sqrt(outputs.squares[item] + _EPSILON)
            outputs.vectors[item] += rate * gradients_MD[m]


@numba.njit(fastmath=True, error_model="numpy")
def move_user(users, work, rule, place, number, step_D):
    user = work.order[place]
    start, length = work.starts[user], work.ends[user] - work.starts[user]
    age = length - 1 - (work.targets[start + number] >> 2)
    row, weight = users.vectors[user], np.float32(1 / (1 + age * rule.recency_rate))
    gradient_D = weight * (step_D - np.float32(rule.l2 / math.sqrt(length)) * row)
    gradient_D[rule.num_free :] = 0
    users.squares[user] += (gradient_D * gradient_D).mean()
    row += work.alphas[place] / np.sqrt(users.squares[user] + _EPSILON) * gradient_D


@numba.njit(fastmath=True, error_model="numpy")
def move_inputs(lanes, inputs, noise, work, s):
    num_dims, window = inputs.vectors.shape[1], lanes.pages.shape[2]
    free = num_dims - TRAIL_BIASES
    for m, item in enumerate(lanes.own[s]):
        step = lanes.steps[s, m, :free]
        square = np.float32((step * step).sum() / num_dims)
        for lag in range(window if item >= 0 else 0):
            page, factor = lanes.pages[s, m, lag], lanes.factors[s, m, lag]
            if page >= 0:
                inputs.squares[page] += factor * factor * square
    for lag in range(window):
        for m, item in enumerate(lanes.own[s]):
            page, factor = lanes.pages[s, m, lag], lanes.factors[s, m, lag]
            if item >= 0 and page >= 0:
                rate = work.alphas[lanes.at[s, m]] / np.sqrt(inputs.squares[page] + _EPSILON)
                shrink = np.float32(1) - rate * np.float32(L2_WINDOW / window) * noise.l2s[page]
                row = inputs.vectors[page, :free]
                row[:] = shrink * row + rate * factor * lanes.steps[s, m, :free]


@numba.njit(fastmath=True, error_model="numpy")
def move_lags(lags, steps_L, alpha):
    for lag, step in enumerate(steps_L):
        if step != 0:
            lags.squares[lag] += step * step
            rate = np.float32(LAG_RATE) * alpha / np.sqrt(lags.squares[lag] + _EPSILON)
            lags.vectors[lag, 0] = max(np.float32(LEAST_LAG), lags.vectors[lag, 0] + rate * step)


def train_in_step(width: int, tables: tuple[Rows, ...], noise: Any, work: Pass, rule: Any, is_trail: bool) -> int:
    keys = np.array([mix(key) for key in work.hashes ^ np.uint64(work.epoch_key)], np.uint64)
    targets, num_targets = np.zeros(len(work.tokens), np.int32), np.zeros(len(work.order), np.int64)
    users = Histories(work.tokens, work.starts, work.ends, keys, work.order, work.alphas, targets, num_targets)
    if is_trail:
        users = users._replace(alphas=np.float32(TRAIL_RATE) * work.alphas)
        longest, seen = int((work.ends - work.starts).max()), np.zeros(len(noise.aliases), np.int64)
        listed = np.zeros(longest + 1, np.int32)
        list_trail(users, Listing(rule, users, noise, Listed(listed[None].copy(), listed, seen, np.zeros(1, np.int64))))
    else:
        list_kept(users, work.sampling.keep)
    for first in range(0, len(work.streams) - 1, width):
        rows = (Table(table.vectors, table.squares) for table in tables)
        train_group(*rows, noise, users, rule, work.streams[first : first + width + 1])  # type: ignore[call-arg]
    return int(num_targets.sum())


def make_kernel(width: int) -> tuple[Callable[..., int], Callable[..., int]]:
    """`train_users` and `train_trail` of `width` streams in step."""

    def train_users(users: Rows, items: Items, work: Pass) -> int:
        config, tables = work.config, work.sampling
        l2s = np.full(len(tables.corrections), config.item_l2, np.float32)
        rule = Settings(
            config.tile_users, config.negative, 0, config.num_free, np.float32(config.handicap),
            1 / work.recency if work.recency else 0.0, config.l2, 0.0,
        )  # fmt: skip
        noise = Noise(tables.thresholds, tables.aliases, tables.corrections, l2s, l2s)
        return train_in_step(width, (users, items.outputs, users, users), noise, work, rule, is_trail=False)

    def train_trail(trail: TrailItems, work: Pass, tables: TrailTables, backward: float) -> int:
        config, handicap = work.config, np.float32(math.log(work.config.negative_weight))
        rule = Settings(
            TRAIL_TILE_USERS, config.trail_negative, config.trail_window, config.trail_size, handicap,
            0.0, 0.0, 4.0 * backward_of(backward),
        )  # fmt: skip
        noise = Noise(tables.thresholds, tables.aliases, tables.corrections, tables.l2s, tables.shares)
        rows = (trail.outputs, trail.outputs, trail.inputs, trail.lags)
        return train_in_step(width, rows, noise, work, rule, is_trail=True)

    return train_users, train_trail
