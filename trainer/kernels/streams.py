"""PV-DBOW with sampled softmax in tiles, compiled: the lanes of a tile walk their users' tokens in step and share negatives.

A stream is a run of users of the order. A lane whose user ends takes the stream's next one. At a step every lane has one token;
the negatives are drawn anew, by a key of the stream's first user and the number of the step. So a stream does not depend on how
users are divided among threads, but for item rows, which these share without locks. README.md has the formulas.
"""
# mypy: no-check-untyped-defs

import math

import numba
import numpy as np

from surf2vec.trainer.draws import SUBSAMPLE, TILE
from surf2vec.trainer.kernels.compiled_draws import draw, draw_negative, mix
from surf2vec.trainer.kernels.llvm import (
    LINE_NUMBERS,
    OPTIONS,
    inlined,
    prefer_wide_vectors,
    prefetch_second,
    take,
    written_out,
)
from surf2vec.trainer.kernels.model import Stream
from surf2vec.trainer.kernels.predictions import rate_of
from surf2vec.trainer.kernels.tiles import normalize_tile, pull_negatives, pull_users, score_tile, turn_rows
from surf2vec.trainer.model.rows import EPSILON

_32 = np.uint64(32)
_EPSILON = np.float32(EPSILON)


@inlined
def fetch_item(stream, row):
    """Ask for an item's row, and its other numbers, a step ahead; into the second cache, as the first holds the tile."""
    outputs = stream.outputs
    fetch_row(outputs.vectors, row)
    prefetch_second(outputs.squares, np.int64(row))
    prefetch_second(stream.noise.corrections, np.int64(row))


@inlined
def fetch_row(vectors, row):
    start = np.int64(row) * vectors.shape[1]
    for place in range(start, start + vectors.shape[1], LINE_NUMBERS):
        prefetch_second(vectors, place)


@inlined
def next_kept(stream, lane, position):
    """Return the first position from `position` on that is kept, and ask for the token's row; the length if there is none."""
    work, user, key = stream.work, stream.tile.user[lane], stream.tile.key[lane]
    start, length = work.starts[user], work.ends[user] - work.starts[user]
    while position < length:
        token = work.tokens[start + position]
        if (draw(key, position, SUBSAMPLE, 0) >> _32) < work.keep[token]:
            fetch_item(stream, token)
            return position
        position += 1
    return position


@inlined
def prefetch_users(stream, place, last):
    """Prefetch for the users that lanes take soon: the row and first tokens of the next, the offsets of the one after it."""
    work = stream.work
    if place + 1 < last:
        user = work.order[place + 1]
        fetch_row(stream.users.vectors, user)
        prefetch_second(stream.users.squares, user)
        prefetch_second(work.tokens, work.starts[user])
        prefetch_second(work.tokens, work.starts[user] + LINE_NUMBERS)
    if place + 3 < last:
        user = work.order[place + 3]
        prefetch_second(work.starts, user)
        prefetch_second(work.ends, user)
        prefetch_second(work.hashes, user)


@written_out
def fill_lane(stream, epoch_key, lane, place, last):
    """Let a lane take the next user from `place` on with a kept token. Returns the place after it, and whether there is one."""
    work, tile, vectors = stream.work, stream.tile, stream.users.vectors
    while place < last:
        prefetch_users(stream, place, last)
        user = work.order[place]
        tile.user[lane], tile.key[lane] = user, mix(work.hashes[user] ^ epoch_key)
        length = work.ends[user] - work.starts[user]
        tile.position[lane] = next_kept(stream, lane, 0)
        if tile.position[lane] < length:
            tile.next[lane] = next_kept(stream, lane, tile.position[lane] + 1)
            tile.alpha[lane] = work.alphas[place]
            tile.l2[lane] = stream.rule.l2 / np.float32(math.sqrt(np.float32(length)))
            square = np.float32(0)
            for d in range(vectors.shape[1]):
                value = vectors[user, d]
                tile.users[lane, d] = value
                square += value * value
            tile.hidden_squares[lane] = square
            return place + 1, True
        place += 1
    return place, False


@inlined
def free_lane(stream, lane):
    """Write back the row of a lane's user."""
    vectors, user = stream.users.vectors, stream.tile.user[lane]
    for d in range(vectors.shape[1]):
        vectors[user, d] = stream.tile.users[lane, d]


@inlined
def copy_lane(tile, source, lane):
    """Move a user from one lane to another."""
    for d in range(tile.users.shape[1]):
        tile.users[lane, d] = tile.users[source, d]
    tile.user[lane], tile.key[lane], tile.alpha[lane] = tile.user[source], tile.key[source], tile.alpha[source]
    tile.l2[lane], tile.hidden_squares[lane] = tile.l2[source], tile.hidden_squares[source]
    tile.position[lane], tile.next[lane] = tile.position[source], tile.next[source]


@inlined
def draw_rows(stream, key, step):
    """Draw the negatives of a step, and ask for their rows."""
    for k in range(stream.rule.num_negatives):
        row = draw_negative(draw(key, step, TILE, k), stream.noise)
        stream.tile.next_rows[k] = row
        fetch_item(stream, row)


@inlined
def copy_negatives(stream):
    """Copy the rows that were drawn into the tile."""
    prefer_wide_vectors()
    tile, vectors = stream.tile, stream.outputs.vectors
    for k in range(stream.rule.num_negatives):
        row = tile.next_rows[k]
        tile.rows[k], tile.corrections[k] = row, stream.noise.corrections[row]
        for d in range(vectors.shape[1]):
            tile.negatives[k, d] = vectors[row, d]


@inlined
def score_own(stream, num_lanes):
    """Score each lane's own token: corrected and lowered to own_scores; without the bias, and with the row's square, for L2."""
    prefer_wide_vectors()
    work, tile, rule, vectors = stream.work, stream.tile, stream.rule, stream.outputs.vectors
    num_dims = vectors.shape[1]
    for m in range(num_lanes):
        row = np.int64(work.tokens[work.starts[tile.user[m]] + tile.position[m]])
        total, square = np.float32(0), np.float32(0)
        for d in range(num_dims):
            value = vectors[row, d]
            total += tile.users[m, d] * value
            square += value * value
        weight = np.float32(1)
        if rule.recency > 0:
            age = work.ends[tile.user[m]] - work.starts[tile.user[m]] - 1 - tile.position[m]
            weight /= np.float32(1) + np.float32(age) / rule.recency
        tile.own_rows[m], tile.weights[m] = row, weight
        tile.own_scores[m] = total - stream.noise.corrections[row] - rule.handicap
        if rule.num_free < num_dims:
            bias = vectors[row, num_dims - 1]
            total -= tile.users[m, num_dims - 1] * bias
            square -= bias * bias
        tile.dots[m], tile.squares[m] = total, square


@inlined
def set_rates(stream, table, rows, num):
    """Replace tile.rates of `num` rows, their mean squared gradients, by their learning rates, after adding to Adagrad's sums."""
    prefer_wide_vectors()
    tile, rule = stream.tile, stream.rule
    if rule.is_adagrad:
        for i in range(num):  # in turn: a row may come twice
            table.squares[rows[i]] += tile.rates[i]
            tile.rates[i] = table.squares[rows[i]] + _EPSILON
        for start in range(0, num, LINE_NUMBERS):
            for i in range(start, start + LINE_NUMBERS):
                tile.rates[i] = tile.alpha[i] / np.sqrt(tile.rates[i])
    else:
        for i in range(num):
            tile.rates[i] = tile.alpha[i]


@inlined
def move_own(stream, num_lanes):
    """Move each lane's own row, in turn, and leave the gradients of the lanes' users in tile.user_steps."""
    prefer_wide_vectors()
    tile, rule, vectors = stream.tile, stream.rule, stream.outputs.vectors
    num_dims, last, l2 = vectors.shape[1], vectors.shape[1] - 1, rule.item_l2
    for start in range(0, num_lanes, LINE_NUMBERS):
        for m in range(start, start + LINE_NUMBERS):
            pull = tile.own_scores[m]
            square = pull * pull * tile.hidden_squares[m]
            square += l2 * (l2 * tile.squares[m] - np.float32(2) * pull * tile.dots[m])
            tile.rates[m] = max(square, np.float32(0)) / np.float32(num_dims)
    set_rates(stream, stream.outputs, tile.own_rows, num_lanes)
    for m in range(num_lanes):
        row, pull, rate = np.int64(tile.own_rows[m]), tile.own_scores[m], tile.rates[m]
        shrink, grow, weight = np.float32(1) - rate * l2, rate * pull, tile.weights[m]
        user_l2, square = weight * tile.l2[m], np.float32(0)
        bias, own_bias = tile.users[m, last], vectors[row, last]
        for d in range(num_dims):
            value, own = tile.users[m, d], vectors[row, d]
            gradient = weight * (tile.user_steps[m, d] + pull * own) - user_l2 * value
            vectors[row, d] = shrink * own + grow * value
            tile.user_steps[m, d] = gradient
            square += gradient * gradient
        if rule.num_free < num_dims:  # the bias: without L2, and the user's stands still
            vectors[row, last] = own_bias + grow * bias
            square -= tile.user_steps[m, last] * tile.user_steps[m, last]
            tile.user_steps[m, last] = np.float32(0)
        tile.squares[m] = square


@inlined
def move_users(stream, num_lanes):
    """Move the lanes' users by tile.user_steps."""
    prefer_wide_vectors()
    tile, num_dims = stream.tile, stream.outputs.vectors.shape[1]
    for m in range(num_lanes):
        tile.rates[m] = max(tile.squares[m], np.float32(0)) / np.float32(num_dims)
    set_rates(stream, stream.users, tile.user, num_lanes)
    for m in range(num_lanes):
        rate, square = tile.rates[m], np.float32(0)
        for d in range(num_dims):
            value = tile.users[m, d] + rate * tile.user_steps[m, d]
            tile.users[m, d] = value
            square += value * value
        tile.hidden_squares[m] = square


@inlined
def move_negatives(stream):
    """Move each negative by the sum of the lanes' pulls, one after the other, as one may have been drawn twice."""
    prefer_wide_vectors()
    tile, rule, vectors, alpha = stream.tile, stream.rule, stream.outputs.vectors, stream.tile.alpha[0]
    num_dims = vectors.shape[1]
    for k in range(rule.num_negatives):
        row, square = np.int64(tile.rows[k]), np.float32(0)
        for d in range(num_dims):
            square += tile.negative_steps[k, d] * tile.negative_steps[k, d]
        rate = rate_of(stream.outputs.squares, row, square, num_dims, alpha, rule.is_adagrad)
        for d in range(num_dims):
            vectors[row, d] += rate * tile.negative_steps[k, d]


@inlined
def train_step(stream, key, step, num_lanes):
    """Train one token of each lane."""
    prefer_wide_vectors()
    tile, num_negatives = stream.tile, stream.rule.num_negatives
    copy_negatives(stream)
    draw_rows(stream, key, step + 1)
    score_own(stream, num_lanes)
    turn_rows(tile.users, tile.across, num_lanes)
    score_tile(tile.negatives, tile.across, tile.scores, num_lanes)
    own = (tile.own_rows, tile.own_scores, tile.totals)
    normalize_tile(tile.scores, tile.rows, tile.corrections, *own, num_negatives)
    pull_users(tile.scores, tile.negatives, tile.user_steps, num_lanes)
    pull_negatives(tile.scores, tile.users, tile.negative_steps, num_lanes)
    move_own(stream, num_lanes)
    move_users(stream, num_lanes)
    move_negatives(stream)


@written_out
def train_stream(stream, epoch_key, first, last):
    """Train the users from `first` to `last` of the order. Returns how many tokens were kept."""
    work, tile = stream.work, stream.tile
    key = mix(work.hashes[work.order[first]] ^ epoch_key)
    place, num_lanes, num_kept, step = first, 0, 0, 0
    draw_rows(stream, key, step)
    while num_lanes < stream.rule.tile_users and place < last:
        place, is_filled = fill_lane(stream, epoch_key, num_lanes, place, last)
        num_lanes += is_filled
    while num_lanes > 0:
        train_step(stream, key, step, num_lanes)
        step += 1
        num_kept += num_lanes
        m = 0
        while m < num_lanes:
            user = tile.user[m]
            tile.position[m] = tile.next[m]
            if tile.position[m] < work.ends[user] - work.starts[user]:
                tile.next[m] = next_kept(stream, m, tile.position[m] + 1)
                m += 1
                continue
            free_lane(stream, m)
            place, is_filled = fill_lane(stream, epoch_key, m, place, last)
            m += is_filled
            if not is_filled:
                num_lanes -= 1
                if m < num_lanes:
                    copy_lane(tile, num_lanes, m)  # and is the next to be looked at
    return num_kept


@numba.njit(nogil=True, cache=True, **OPTIONS)
def train_streams(users, outputs, noise, rule, work, epoch_key, streams, taken, tile):
    """Train streams of the order, the users from streams[i] to streams[i + 1]. Returns how many tokens were kept.

    The threads take one stream after the other. taken int64[1 or more]: how many are taken, zero at first.
    """
    stream = Stream(users, outputs, noise, rule, work, tile)
    num_kept, i = 0, take(taken, 1)
    while i + 1 < streams.shape[0]:
        num_kept += train_stream(stream, epoch_key, streams[i], streams[i + 1])
        i = take(taken, 1)
    return num_kept
