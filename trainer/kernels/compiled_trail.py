"""The compiled part of the trail kernel: tiles of users that walk their targets in step (trainer/kernels/trail.py)."""
# mypy: no-check-untyped-defs

import math
from collections import namedtuple

import numba
import numpy as np

from surf2vec.trainer.config import TRAIL_BIASES
from surf2vec.trainer.draws import TILE, WINDOW
from surf2vec.trainer.kernels.compiled_draws import draw, draw_negative, mix
from surf2vec.trainer.kernels.llvm import OPTIONS, inlined, prefer_wide_vectors, prefetch_row, take
from surf2vec.trainer.kernels.predictions import rate_of
from surf2vec.trainer.kernels.signature import LAG_RATE, LEAST_LAG
from surf2vec.trainer.kernels.tiles import normalize_tile, pull_negatives, pull_users, score_tile, turn_rows

_32 = np.uint64(32)
_LOWEST = np.float32(-1e30)
_LEAST_LAG, _LAG_RATE = np.float32(LEAST_LAG), np.float32(LAG_RATE)

TrailRule = namedtuple("TrailRule", "window every turn backward bias handicap")
"""The settings as numbers. Every target is trained once in `every` epochs, in this one those whose turn it is; backward float64:
the share of rare items that are predicted from the pages after them, of 2**32; handicap float32: log of the negatives' weight.
"""

TrailNoise = namedtuple("TrailNoise", "thresholds aliases corrections l2s shares")
"""The tables of surf2vec.trainer.model.objectives.TrailTables."""

TrailArrays = namedtuple("TrailArrays", "outputs output_squares inputs input_squares lags lag_squares")
"""The arrays of surf2vec.trainer.model.rows.TrailItems."""

Lanes = namedtuple("Lanes", "users num_targets next targets alphas")
"""The users of a tile. users, num_targets, next int64[M]; targets int64[M, L]: twice a position, plus one if it is predicted
backward; alphas float32[M].
"""

Tile = namedtuple(
    "Tile",
    "hiddens across steps negatives negative_steps scores rows corrections same last_of context lags factors lengths scales "
    "items pulls totals lag_steps",
)
"""The arrays of one step of a tile: M lanes, K negatives, D numbers, W lags, padded as trainer/kernels/tiles.py needs them.

hiddens, steps float32[M, D], across float32[D, M]; the negatives: negatives, negative_steps float32[K, D], scores float32[K, M],
rows uint32[K], corrections float32[K]; last_of int32[V]: one more than the last negative that is an item, 0 if none is, and
same int32[K]: the one before it that is the same item; the pages a lane looks at: context uint32[M, W], lags int64[M, W],
factors float32[M, W], lengths int64[M]; scales float32[M]; the targets: items uint32[M], pulls, totals
float32[M]; lag_steps float32[2 W].
"""


@inlined
def scale_of(squares):
    """Return 1 over the fourth root of the sum of the squared weights of the pages."""
    return np.float32(1) / np.float32(math.sqrt(math.sqrt(max(squares, np.float32(1e-12)))))


@inlined
def list_targets(history, key, turn, rule, shares, seen, stamp, targets):
    """List a user's targets: the first event of each item, if there is a page to predict it from. Returns how many.

    turn: of the user's first position; its targets take turns by position.
    shares float32[V]: an item is predicted backward with a probability of rule.backward * its share / 2**32.
    seen int64[V]: the last stamp at which each item was met.
    """
    num = 0
    for position in range(history.shape[0]):
        item = history[position]
        is_new = seen[item] != stamp
        seen[item] = stamp
        is_backward = np.float64(draw(key, position, WINDOW, 0) >> _32) < rule.backward * np.float64(shares[item])
        has_context = position + 1 < history.shape[0] if is_backward else position > 0
        targets[num] = 2 * position + is_backward
        num += is_new and has_context and (position + turn) % rule.every == 0
    return num


@inlined
def look_at_context(trail, tile, lane, history, target, rule):
    """Sum the input vectors of the pages before a target, or after it if it is predicted backward, into the lane's hidden.

    Pages that are the target itself are left out. The sum is divided by the fourth root of the sum of the squared weights.
    """
    prefer_wide_vectors()
    is_backward, position = target & 1, target >> 1
    item, num, squares = history[position], 0, np.float32(0)
    step = 1 if is_backward else -1
    for lag in range(rule.window):
        place = position + step * (lag + 1)
        if place < 0 or place >= history.shape[0]:
            break
        number = lag + is_backward * rule.window
        weight = trail.lags[number, 0]
        tile.context[lane, num], tile.lags[lane, num], tile.factors[lane, num] = history[place], number, weight
        is_other = history[place] != item
        num += is_other
        squares += weight * weight * np.float32(is_other)
    scale = scale_of(squares)
    num_dims = trail.inputs.shape[1]
    for d in range(num_dims):
        tile.hiddens[lane, d] = np.float32(0)
    for i in range(num):
        tile.factors[lane, i] *= scale
        factor, page = tile.factors[lane, i], tile.context[lane, i]
        for d in range(num_dims):
            tile.hiddens[lane, d] += factor * trail.inputs[page, d]
    tile.hiddens[lane, num_dims - 1 - is_backward] = rule.bias
    tile.lengths[lane], tile.scales[lane], tile.items[lane] = num, scale, item


@inlined
def draw_negatives(trail, tile, noise, key, step):
    """Draw the negatives of a step, and copy their rows."""
    prefer_wide_vectors()
    for k in range(tile.corrections.shape[0]):
        row = draw_negative(draw(key, step, TILE, k), noise)
        tile.rows[k], tile.corrections[k] = row, noise.corrections[row]
        tile.same[k], tile.last_of[row] = tile.last_of[row], k + 1
        for d in range(trail.outputs.shape[1]):
            tile.negatives[k, d] = trail.outputs[row, d]


@inlined
def leave_out_context(tile, lane):
    """Give negatives that are pages of the lane's context a score that makes no step."""
    for i in range(tile.lengths[lane]):
        number = tile.last_of[tile.context[lane, i]]
        while number > 0:
            tile.scores[number - 1, lane] = _LOWEST
            number = tile.same[number - 1]


@inlined
def predict(trail, tile, noise, rule, num_lanes):
    """Score each lane's target and the negatives, and make the steps of hiddens and negatives, by the rows as they are."""
    prefer_wide_vectors()
    num_dims = trail.outputs.shape[1]
    for lane in range(num_lanes):
        item, score = tile.items[lane], np.float32(0)
        for d in range(num_dims):
            score += tile.hiddens[lane, d] * trail.outputs[item, d]
        tile.pulls[lane] = score - noise.corrections[item] - rule.handicap
    turn_rows(tile.hiddens, tile.across, num_lanes)
    score_tile(tile.negatives, tile.across, tile.scores, num_lanes)
    for lane in range(num_lanes):
        leave_out_context(tile, lane)
    num_negatives = tile.corrections.shape[0]
    normalize_tile(tile.scores, tile.rows, tile.corrections, tile.items, tile.pulls, tile.totals, num_negatives)
    for lane in range(num_lanes):
        if tile.lengths[lane] == 0:  # all pages around it are the target itself
            tile.pulls[lane] = np.float32(0)
            for k in range(num_negatives):
                tile.scores[k, lane] = np.float32(0)
    pull_users(tile.scores, tile.negatives, tile.steps, num_lanes)
    pull_negatives(tile.scores, tile.hiddens, tile.negative_steps, num_lanes)
    for lane in range(num_lanes):
        pull, item = tile.pulls[lane], tile.items[lane]
        for d in range(num_dims):
            tile.steps[lane, d] += pull * trail.outputs[item, d]


@inlined
def move_outputs(trail, tile, l2s, alphas, num_lanes):
    """Move the rows of the negatives, then those of the targets, which L2 pulls towards zero."""
    prefer_wide_vectors()
    num_dims = trail.outputs.shape[1]
    for k in range(tile.corrections.shape[0]):
        row, square = np.int64(tile.rows[k]), np.float32(0)
        tile.last_of[row] = 0
        for d in range(num_dims):
            square += tile.negative_steps[k, d] * tile.negative_steps[k, d]
        rate = rate_of(trail.output_squares, row, square, num_dims, alphas[0], True)
        for d in range(num_dims):
            trail.outputs[row, d] += rate * tile.negative_steps[k, d]
    for lane in range(num_lanes):
        row, pull, square = np.int64(tile.items[lane]), tile.pulls[lane], np.float32(0)
        if tile.lengths[lane] > 0:
            for d in range(num_dims):
                square += tile.hiddens[lane, d] * tile.hiddens[lane, d]
            rate = rate_of(trail.output_squares, row, pull * pull * square, num_dims, alphas[lane], True)
            shrink, grow = np.float32(1) - rate * l2s[row], rate * pull
            for d in range(num_dims):
                trail.outputs[row, d] = shrink * trail.outputs[row, d] + grow * tile.hiddens[lane, d]


@inlined
def move_inputs(trail, tile, l2s, alphas, num_lanes):
    """Move the input rows of the pages that were looked at, and sum up the steps of the lag weights."""
    prefer_wide_vectors()
    num_dims, num_free = trail.outputs.shape[1], trail.outputs.shape[1] - TRAIL_BIASES
    for lane in range(num_lanes):
        square = np.float32(0)
        for d in range(num_free):
            square += tile.steps[lane, d] * tile.steps[lane, d]
        for i in range(tile.lengths[lane]):
            row, factor, towards = np.int64(tile.context[lane, i]), tile.factors[lane, i], np.float32(0)
            for d in range(num_free):
                towards += tile.steps[lane, d] * trail.inputs[row, d]
            tile.lag_steps[tile.lags[lane, i]] += towards * tile.scales[lane]
            rate = rate_of(trail.input_squares, row, factor * factor * square, num_dims, alphas[lane], True)
            shrink, grow = np.float32(1) - rate * l2s[row], rate * factor
            for d in range(num_free):
                trail.inputs[row, d] = shrink * trail.inputs[row, d] + grow * tile.steps[lane, d]


@inlined
def move_lags(trail, tile, alpha):
    """Move the weights of the lags by the sum of the tile's steps, once a step: threads share these few numbers."""
    for lag in range(tile.lag_steps.shape[0]):
        step = tile.lag_steps[lag]
        if step != 0:
            rate = rate_of(trail.lag_squares, lag, step * step, 1, _LAG_RATE * alpha, True)
            trail.lags[lag, 0] = max(_LEAST_LAG, trail.lags[lag, 0] + rate * step)
        tile.lag_steps[lag] = np.float32(0)


@inlined
def fill_lanes(lanes, histories, rule, shares, epoch_key, seen, stamp, num_lanes, first, last):
    """Give free lanes the next users of the stream that have targets. Returns how many lanes are filled, and the next user."""
    tokens, starts, ends, hashes, order, user_alphas = histories
    place = first
    while num_lanes < lanes.users.shape[0] and place < last:
        user = order[place]
        stamp[0] += 1
        key = mix(hashes[user] ^ epoch_key)
        history = tokens[starts[user] : ends[user]]
        turn = rule.turn + np.int64(hashes[user] % np.uint64(rule.every))
        num = list_targets(history, key, turn, rule, shares, seen, stamp[0], lanes.targets[num_lanes])
        lanes.users[num_lanes], lanes.num_targets[num_lanes], lanes.next[num_lanes] = user, num, 0
        lanes.alphas[num_lanes] = user_alphas[place]
        num_lanes += num > 0
        place += 1
    return num_lanes, place


@inlined
def leave_lanes(lanes, num_lanes):
    """Advance all lanes to their next target. The last lane takes the place of one that has ended. Returns how many are left."""
    lane = 0
    while lane < num_lanes:
        lanes.next[lane] += 1
        if lanes.next[lane] < lanes.num_targets[lane]:
            lane += 1
            continue
        num_lanes -= 1
        if lane < num_lanes:
            lanes.users[lane], lanes.num_targets[lane] = lanes.users[num_lanes], lanes.num_targets[num_lanes]
            lanes.next[lane], lanes.alphas[lane] = lanes.next[num_lanes], lanes.alphas[num_lanes]
            for i in range(lanes.next[num_lanes], lanes.num_targets[num_lanes]):
                lanes.targets[lane, i] = lanes.targets[num_lanes, i]
    return num_lanes


@inlined
def train_stream(trail, noise, rule, histories, epoch_key, first, last, lanes, tile, seen, stamp):
    """Train the users from `first` to `last` of the order, as many at once as there are lanes. Returns the number of targets."""
    tokens, starts, ends, hashes, order, _ = histories
    key = mix(hashes[order[first]] ^ epoch_key)
    num_lanes, step, num_targets, place = 0, 0, 0, first
    while True:
        num_lanes, place = fill_lanes(
            lanes, histories, rule, noise.shares, epoch_key, seen, stamp, num_lanes, place, last
        )
        if num_lanes == 0:
            return num_targets
        draw_negatives(trail, tile, noise, key, step)
        for lane in range(num_lanes):
            user = lanes.users[lane]
            target = lanes.targets[lane, lanes.next[lane]]
            look_at_context(trail, tile, lane, tokens[starts[user] : ends[user]], target, rule)
        predict(trail, tile, noise, rule, num_lanes)
        move_outputs(trail, tile, noise.l2s, lanes.alphas, num_lanes)
        move_inputs(trail, tile, noise.l2s, lanes.alphas, num_lanes)
        move_lags(trail, tile, lanes.alphas[0])
        num_targets += num_lanes
        step += 1
        num_lanes = leave_lanes(lanes, num_lanes)


@numba.njit(nogil=True, cache=True, **OPTIONS)
def train_streams(trail, noise, rule, histories, epoch_key, streams, taken, lanes, tile, seen, stamp):
    """Train streams of the order, the users from streams[i] to streams[i + 1]. Returns the number of targets.

    The threads take one stream after the other. taken int64[1 or more]: how many are taken, zero at first.
    """
    num_targets, i = 0, take(taken, 1)
    while i + 1 < streams.shape[0]:
        own = (streams[i], streams[i + 1], lanes, tile, seen, stamp)
        num_targets += train_stream(trail, noise, rule, histories, epoch_key, *own)
        i = take(taken, 1)
    return num_targets


@numba.njit(nogil=True, cache=True, **OPTIONS)
def sum_pages(inputs, lags, window, bias, tokens, starts, ends, skipped, vectors):
    """Fill vectors float32[n, D] with the trails of histories tokens[starts[i] : ends[i]], without pages that are skipped[i]."""
    prefer_wide_vectors()
    num_dims = vectors.shape[1]
    for i in range(starts.shape[0]):
        if i + 1 < starts.shape[0]:
            for place in range(max(starts[i + 1], ends[i + 1] - window), ends[i + 1]):
                prefetch_row(inputs, tokens[place])
        squares = np.float32(0)
        for d in range(num_dims):
            vectors[i, d] = np.float32(0)
        for lag in range(min(window, ends[i] - starts[i])):
            page = tokens[ends[i] - 1 - lag]
            if page != skipped[i]:
                weight = lags[lag, 0]
                squares += weight * weight
                for d in range(num_dims):
                    vectors[i, d] += weight * inputs[page, d]
        scale = scale_of(squares)
        for d in range(num_dims):
            vectors[i, d] *= scale
        vectors[i, num_dims - 1] = bias
