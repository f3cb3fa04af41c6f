"""Streams of tiles, compiled: the lanes of a tile walk their users' targets in step and share negatives.

A stream is a run of users of the order. A lane whose user ends takes the stream's next one. At a step every lane has one target;
the negatives are drawn anew. So a stream does not depend on how users are divided among threads, but for item rows, which these
share without locks. README.md has the formulas and the keys of the draws, which are others in inference.
"""
# mypy: no-check-untyped-defs

import math

import numba
import numpy as np

from surf2vec.trainer.draws import SUBSAMPLE, WINDOW
from surf2vec.trainer.kernels.compiled_draws import draw, mix
from surf2vec.trainer.kernels.compiled_trail import leave_out, list_targets, look_at_context, move_inputs, move_lags
from surf2vec.trainer.kernels.llvm import (
    LINE_NUMBERS,
    OPTIONS,
    inlined,
    prefer_wide_vectors,
    prefetch,
    prefetch_row,
    take,
    written_out,
)
from surf2vec.trainer.kernels.losses import learn_path, pull_by_sigmoids, pull_by_softmax, rate_of
from surf2vec.trainer.kernels.model import Stream
from surf2vec.trainer.kernels.tile_step import (
    copy_negatives,
    draw_rows,
    fetch_item,
    leave_items,
    move_items,
    score_own,
    set_rates,
)
from surf2vec.trainer.kernels.tiles import pull_users, score_tile, turn_rows

_32 = np.uint64(32)


@inlined
def list_kept(stream, user, key, lane):
    """List the positions of a user's tokens that subsampling keeps, each four times, as targets. Returns how many."""
    work, targets = stream.work, stream.lanes.targets
    start, num = work.starts[user], 0
    for position in range(work.ends[user] - start):
        targets[lane, num] = 4 * position  # without a random branch, which would be mispredicted
        num += (draw(key, position, SUBSAMPLE, 0) >> _32) < work.keep[work.tokens[start + position]]
    return num


@inlined
def target_of(stream, lane, number):
    """Return the item of a lane's target."""
    work, lanes = stream.work, stream.lanes
    return work.tokens[work.starts[lanes.users[lane]] + (lanes.targets[lane, number] >> 2)]


@inlined
def prefetch_users(stream, place, last):
    """Prefetch for the users that lanes take soon: the row and first tokens of the next, the offsets of the one after it."""
    work = stream.work
    if place + 1 < last:
        user = work.order[place + 1]
        if not stream.rule.has_trail:
            prefetch_row(stream.users.vectors, user)
            prefetch(stream.users.squares, user)
        prefetch(work.tokens, work.starts[user])
        prefetch(work.tokens, work.starts[user] + LINE_NUMBERS)
    if place + 3 < last:
        user = work.order[place + 3]
        prefetch(work.starts, user)
        prefetch(work.ends, user)
        prefetch(work.hashes, user)


@written_out
def fill_lane(stream, epoch_key, lane, place, last):
    """Let a lane take the next user from `place` on with a target. Returns the place after it, and whether there is one."""
    work, tile, lanes, vectors = stream.work, stream.tile, stream.lanes, stream.users.vectors
    while place < last:
        prefetch_users(stream, place, last)
        user = work.order[place]
        key = mix(work.hashes[user] ^ epoch_key)
        has_trail = stream.rule.has_trail
        num = list_targets(stream, user, key, lane) if has_trail else list_kept(stream, user, key, lane)
        place += 1
        if num > 0:
            lanes.users[lane], lanes.num_targets[lane], lanes.next[lane] = user, num, 0
            if not stream.rule.has_tree:
                fetch_item(stream, target_of(stream, lane, 0))
                if num > 1:
                    fetch_item(stream, target_of(stream, lane, 1))
            if stream.rule.is_accumulating:
                lanes.firsts[lane] = stream.ledger.firsts[place - 1]
            tile.alpha[lane], lanes.keys[lane] = work.alphas[place - 1], key
            if not has_trail:
                tile.l2[lane] = stream.rule.l2 / np.float32(math.sqrt(np.float32(work.ends[user] - work.starts[user])))
                for d in range(vectors.shape[1]):
                    tile.users[lane, d] = vectors[user, d]
            return place, True
    return place, False


@inlined
def copy_lane(stream, source, lane):
    """Move a user from one lane to another."""
    tile, lanes = stream.tile, stream.lanes
    for d in range(tile.users.shape[1]):
        tile.users[lane, d] = tile.users[source, d]
    tile.alpha[lane], tile.l2[lane], lanes.users[lane] = tile.alpha[source], tile.l2[source], lanes.users[source]
    lanes.num_targets[lane], lanes.next[lane] = lanes.num_targets[source], lanes.next[source]
    lanes.keys[lane], lanes.firsts[lane] = lanes.keys[source], lanes.firsts[source]
    for i in range(max(0, lanes.next[source] - stream.rule.window), lanes.num_targets[source]):
        lanes.targets[lane, i] = lanes.targets[source, i]


@inlined
def move_users(stream, num_lanes):
    """Move the lanes' users by tile.steps and L2, both by the weight of the lane's token; their bias stands still."""
    prefer_wide_vectors()
    tile, lanes, work, rule = stream.tile, stream.lanes, stream.work, stream.rule
    num_dims, last = stream.outputs.vectors.shape[1], stream.outputs.vectors.shape[1] - 1
    for m in range(num_lanes):
        weight, square = np.float32(1), np.float32(0)
        if rule.recency > 0:
            user = lanes.users[m]
            age = work.ends[user] - work.starts[user] - 1 - (lanes.targets[m, lanes.next[m]] >> 2)
            weight /= np.float32(1) + np.float32(age) / rule.recency
        l2 = weight * tile.l2[m]
        for d in range(num_dims):
            gradient = weight * tile.steps[m, d] - l2 * tile.users[m, d]
            tile.steps[m, d] = gradient
            square += gradient * gradient
        if rule.num_free < num_dims:
            square -= tile.steps[m, last] * tile.steps[m, last]
            tile.steps[m, last] = np.float32(0)
        tile.rates[m] = max(square, np.float32(0)) / np.float32(num_dims)
    set_rates(stream, stream.users, lanes.users, num_lanes)
    for m in range(num_lanes):
        rate = tile.rates[m]
        for d in range(num_dims):
            tile.users[m, d] += rate * tile.steps[m, d]


@inlined
def look_around(stream, lane):
    """Set a lane's hidden to the mean of its user and of the kept tokens in word2vec's window, which is shrunk at random."""
    prefer_wide_vectors()
    tile, lanes, work, inputs = stream.tile, stream.lanes, stream.work, stream.inputs.vectors
    place, window, targets = lanes.next[lane], stream.rule.window, lanes.targets
    shrink = (draw(lanes.keys[lane], targets[lane, place] >> 2, WINDOW, 0) >> _32) * np.uint64(window) >> _32
    reach, start, num = window - np.int64(shrink), work.starts[lanes.users[lane]], 0
    for d in range(inputs.shape[1]):
        tile.hiddens[lane, d] = tile.users[lane, d]
    for j in range(max(0, place - reach), min(lanes.num_targets[lane], place + reach + 1)):
        if j != place:
            word = np.int64(work.tokens[start + (targets[lane, j] >> 2)])
            tile.context[lane, num] = word
            num += 1
            for d in range(inputs.shape[1]):
                tile.hiddens[lane, d] += inputs[word, d]
    share = np.float32(1) / np.float32(1 + num)
    for d in range(inputs.shape[1]):
        tile.hiddens[lane, d] *= share
    tile.lengths[lane] = num


@inlined
def move_words(stream, num_lanes):
    """Move the input rows of the tokens around each lane's target, each by the whole step of what predicts, as gensim does."""
    prefer_wide_vectors()
    tile, inputs, rule = stream.tile, stream.inputs, stream.rule
    num_dims = inputs.vectors.shape[1]
    for lane in range(num_lanes):
        square = np.float32(0)
        for d in range(num_dims):
            square += tile.steps[lane, d] * tile.steps[lane, d]
        for i in range(tile.lengths[lane]):
            word = np.int64(tile.context[lane, i])
            rate = rate_of(inputs.squares, word, square, num_dims, tile.alpha[lane], rule.is_adagrad)
            for d in range(num_dims):
                inputs.vectors[word, d] += rate * tile.steps[lane, d]


@inlined
def learn_by_draws(stream, num_lanes):
    """Learn each lane's item against the negatives: moves the items, and leaves the steps of what predicts in tile.steps."""
    tile, rule = stream.tile, stream.rule
    score_own(stream, num_lanes)
    turn_rows(tile.hiddens, tile.across, num_lanes)
    score_tile(tile.negatives, tile.across, tile.scores, num_lanes)
    if rule.has_trail:
        leave_out(stream, num_lanes)
    if rule.is_softmax:
        own = (tile.own_rows, tile.own_scores, tile.totals)
        pull_by_softmax(tile.scores, tile.rows, tile.corrections, *own, rule.num_negatives)
    else:
        pull_by_sigmoids(tile.scores, tile.rows, tile.own_rows, tile.own_scores, rule.num_negatives)
    pull_users(tile.scores, tile.negatives, tile.steps, num_lanes)
    if rule.is_frozen:
        leave_items(stream, num_lanes)
    else:
        move_items(stream, num_lanes)


@inlined
def train_step(stream, key, step, num_lanes):
    """Train one target of each lane."""
    prefer_wide_vectors()
    tile, rule = stream.tile, stream.rule
    if not rule.has_tree:
        copy_negatives(stream)
        draw_rows(stream, key, step + 1)
    for m in range(num_lanes):
        item = target_of(stream, m, stream.lanes.next[m])
        tile.own_rows[m], tile.item_l2[m] = item, rule.item_l2
        if rule.has_trail:
            look_at_context(stream, m, item)
        elif rule.is_dm:
            look_around(stream, m)
    if rule.has_tree:
        for m in range(num_lanes):
            learn_path(stream, m)
    else:
        learn_by_draws(stream, num_lanes)
    if rule.has_trail:
        move_inputs(stream, num_lanes)
        move_lags(stream)
    else:
        if rule.is_dm and not rule.is_frozen:
            move_words(stream, num_lanes)
        move_users(stream, num_lanes)


@written_out
def train_stream(stream, epoch_key, first, last):
    """Train the users from `first` to `last` of the order. Returns how many targets they had."""
    work, lanes, rule = stream.work, stream.lanes, stream.rule
    is_inference = rule.is_frozen and not rule.is_accumulating
    key = epoch_key if is_inference else mix(work.hashes[work.order[first]] ^ epoch_key)
    place, num_lanes, num_targets, step = first, 0, 0, 0
    draw_rows(stream, key, step)
    while True:
        if is_inference and num_lanes == 0 and step > 0:
            step = 0
            draw_rows(stream, key, step)
        while num_lanes < rule.num_lanes and place < last and (step == 0 or not is_inference):
            place, is_filled = fill_lane(stream, epoch_key, num_lanes, place, last)
            num_lanes += is_filled
        if num_lanes == 0:
            return num_targets
        train_step(stream, key, step, num_lanes)
        step += 1
        num_targets += num_lanes
        m = 0
        while m < num_lanes:
            lanes.next[m] += 1
            if lanes.next[m] < lanes.num_targets[m]:
                if lanes.next[m] + 1 < lanes.num_targets[m] and not rule.has_tree:
                    fetch_item(stream, target_of(stream, m, lanes.next[m] + 1))
                m += 1
                continue
            if not rule.has_trail:
                for d in range(stream.users.vectors.shape[1]):
                    stream.users.vectors[lanes.users[m], d] = stream.tile.users[m, d]
            is_filled = False
            if not (rule.has_trail or is_inference):  # whose free lanes are filled after the others
                place, is_filled = fill_lane(stream, epoch_key, m, place, last)
            m += is_filled
            if not is_filled:
                num_lanes -= 1
                if m < num_lanes:
                    copy_lane(stream, num_lanes, m)  # and is the next to be looked at


@numba.njit(nogil=True, cache=True, **OPTIONS)
def train_streams(
    users, outputs, inputs, lags, noise, paths, rule, work, ledger, epoch_key, streams, taken, lanes, tile
):
    """Train streams of the order, the users from streams[i] to streams[i + 1]. Returns how many targets they had.

    The threads take one stream after the other. taken int64[1 or more]: how many are taken, zero at first.
    """
    stream = Stream(users, outputs, inputs, lags, noise, paths, rule, work, ledger, lanes, tile)
    num_targets, i = 0, take(taken, 1)
    while i + 1 < streams.shape[0]:
        num_targets += train_stream(stream, epoch_key, streams[i], streams[i + 1])
        i = take(taken, 1)
    return num_targets
