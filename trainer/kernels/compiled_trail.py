"""What is the trail's own in a tile, compiled: its targets, the pages that predict them, and how these move (README.md)."""
# mypy: no-check-untyped-defs

import math

import numba
import numpy as np

from surf2vec.trainer.config import TRAIL_BIASES
from surf2vec.trainer.draws import WINDOW
from surf2vec.trainer.kernels.compiled_draws import draw
from surf2vec.trainer.kernels.llvm import OPTIONS, inlined, prefer_wide_vectors, prefetch_row
from surf2vec.trainer.kernels.losses import rate_of
from surf2vec.trainer.kernels.signature import L2_WINDOW, LAG_RATE, LEAST_LAG, NEWEST_SHARE

_32, _LOW_32 = np.uint64(32), np.uint64(2**32 - 1)
_LOWEST, _HIGHEST = np.float32(-1e30), np.float32(1e30)
_LEAST_LAG, _LAG_RATE = np.float32(LEAST_LAG), np.float32(LAG_RATE)
_NEWEST_SHARE = np.uint64(NEWEST_SHARE)


@inlined
def scale_of(squares):
    """Return 1 over the fourth root of the sum of the squared weights of the pages."""
    return np.float32(1) / np.float32(math.sqrt(math.sqrt(max(squares, np.float32(1e-12)))))


@inlined
def list_targets(stream, user, key, lane):
    """List a user's targets, at random: the first event of each item, if there is a page to predict it from. Returns how many.

    An item is predicted backward with a probability of rule.backward * its share / 2**32, and from one page by NEWEST_SHARE.
    """
    rule, work, lanes, listed = stream.rule, stream.work, stream.lanes, stream.lanes.listed
    history = work.tokens[work.starts[user] : work.ends[user]]
    num, place, size = 0, 0, 1
    lanes.stamp[0] += 1
    for position in range(history.shape[0]):
        item = history[position]
        is_new = lanes.seen[item] != lanes.stamp[0]
        lanes.seen[item] = lanes.stamp[0]
        share = np.float64(stream.noise.shares[item])
        is_backward = np.float64(draw(key, position, WINDOW, 0) >> _32) < rule.backward * share
        has_context = position + 1 < history.shape[0] if is_backward else position > 0
        is_short = (draw(key, position, WINDOW, 1) >> _32) < _NEWEST_SHARE
        listed[num] = 4 * position + 2 * is_short + is_backward
        num += is_new and has_context
    while size < num:
        size *= 2
    bits = draw(key, 0, WINDOW, 2)
    factor, first = np.int64(bits >> _32) | 1, np.int64(bits & _LOW_32)
    for i in range(size):  # an odd factor makes each number below the power of two once
        number = (factor * i + first) & (size - 1)
        if number < num:
            lanes.targets[lane, place] = listed[number]
            place += 1
    return num


@inlined
def look_at_context(stream, lane, item):
    """Sum the input vectors of the pages before a lane's target, or after it if it is predicted backward, into its hidden.

    Pages that are the target itself are left out. The sum is divided by the fourth root of the sum of the squared weights.
    """
    prefer_wide_vectors()
    rule, tile, work, inputs, lanes = stream.rule, stream.tile, stream.work, stream.inputs.vectors, stream.lanes
    user, target = lanes.users[lane], lanes.targets[lane, lanes.next[lane]]
    history, is_backward, position = work.tokens[work.starts[user] : work.ends[user]], target & 1, target >> 2
    num, squares, step = 0, np.float32(0), 1 if is_backward else -1
    for lag in range(1 if target & 2 else rule.window):
        place = position + step * (lag + 1)
        if place < 0 or place >= history.shape[0]:
            break
        number = lag + is_backward * rule.window
        weight = stream.lags.vectors[number, 0]
        tile.context[lane, num], tile.lags[lane, num], tile.factors[lane, num] = history[place], number, weight
        is_other = history[place] != item
        num += is_other
        squares += weight * weight * np.float32(is_other)
    scale, num_dims = scale_of(squares), inputs.shape[1]
    for d in range(num_dims):
        tile.hiddens[lane, d] = np.float32(0)
    for i in range(num):
        tile.factors[lane, i] *= scale
        factor, page = tile.factors[lane, i], tile.context[lane, i]
        for d in range(num_dims):
            tile.hiddens[lane, d] += factor * inputs[page, d]
    tile.hiddens[lane, num_dims - 1 - is_backward] = rule.bias
    tile.lengths[lane], tile.scales[lane] = num, scale
    tile.item_l2[lane] = stream.noise.l2s[item] if num else np.float32(0)


@inlined
def leave_out(stream, num_lanes):
    """Give scores that make no step to negatives that are pages of a lane's context, and to lanes without context."""
    tile = stream.tile
    for lane in range(num_lanes):
        for i in range(tile.lengths[lane]):
            number = tile.last_of[tile.context[lane, i]]
            while number > 0:
                tile.scores[number - 1, lane] = _LOWEST
                number = tile.same[number - 1]
        if tile.lengths[lane] == 0:  # all pages around it are the target itself
            tile.own_scores[lane] = _HIGHEST


@inlined
def move_inputs(stream, num_lanes):
    """Move the input rows of the pages that were looked at, and sum up the steps of the lag weights."""
    prefer_wide_vectors()
    tile, l2s, inputs, input_squares = stream.tile, stream.noise.l2s, stream.inputs.vectors, stream.inputs.squares
    num_dims, num_free = inputs.shape[1], inputs.shape[1] - TRAIL_BIASES
    share = np.float32(L2_WINDOW / stream.rule.window)
    for lane in range(num_lanes):
        square = np.float32(0)
        for d in range(num_free):
            square += tile.steps[lane, d] * tile.steps[lane, d]
        for i in range(tile.lengths[lane]):
            row, factor, towards = np.int64(tile.context[lane, i]), tile.factors[lane, i], np.float32(0)
            for d in range(num_free):
                towards += tile.steps[lane, d] * inputs[row, d]
            tile.lag_steps[tile.lags[lane, i]] += towards * tile.scales[lane]
            rate = rate_of(input_squares, row, factor * factor * square, num_dims, tile.alpha[lane], True)
            shrink, grow = np.float32(1) - rate * share * l2s[row], rate * factor
            for d in range(num_free):
                inputs[row, d] = shrink * inputs[row, d] + grow * tile.steps[lane, d]


@inlined
def move_lags(stream):
    """Move the weights of the lags by the sum of the tile's steps, once a step: threads share these few numbers."""
    lags, lag_steps = stream.lags, stream.tile.lag_steps
    for lag in range(lag_steps.shape[0]):
        step = lag_steps[lag]
        if step != 0:
            rate = rate_of(lags.squares, lag, step * step, 1, _LAG_RATE * stream.tile.alpha[0], True)
            lags.vectors[lag, 0] = max(_LEAST_LAG, lags.vectors[lag, 0] + rate * step)
        lag_steps[lag] = np.float32(0)


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
