"""The compiled part of the CPU kernel: `train_order`, and the loops over a user's tokens, which are inlined into it."""
# mypy: no-check-untyped-defs

import math

import numba
import numpy as np

from surf2vec.trainer.draws import SUBSAMPLE, WINDOW
from surf2vec.trainer.kernels.compiled_draws import draw, mix
from surf2vec.trainer.kernels.llvm import (
    LINE_NUMBERS,
    OPTIONS,
    ROWS_AHEAD,
    inlined,
    prefer_wide_vectors,
    prefetch,
    prefetch_row,
    take,
    written_out,
)
from surf2vec.trainer.kernels.model import Model, Turn
from surf2vec.trainer.kernels.predictions import learn, rate_of

_32 = np.uint64(32)


@inlined
def weight_of(turn, position, recency):
    """Return a token's weight for the user's vector: half at `recency` tokens before the newest; with recency 0 always 1."""
    if recency == 0:
        return np.float32(1)
    return np.float32(1) / (np.float32(1) + np.float32(turn.history.shape[0] - 1 - position) / recency)


@inlined
def move_user(model, turn, place):
    """Make one step up of the user's row, except its bias, by scratch.step and L2, both by the weight of the token at `place`."""
    prefer_wide_vectors()
    rule, user, step = model.rule, model.scratch.user, model.scratch.step
    num_dims, weight = user.shape[0], weight_of(turn, turn.kept[place], rule.recency)
    l2 = weight * rule.l2 / np.float32(math.sqrt(np.float32(max(1, turn.history.shape[0]))))
    bias, square = user[num_dims - 1], np.float32(0)
    if rule.num_free < num_dims:  # the bias is set aside, so that loops run over full SIMD vectors
        user[num_dims - 1] = step[num_dims - 1] = np.float32(0)
    for d in range(num_dims):
        gradient = weight * step[d] - l2 * user[d]
        step[d] = gradient
        square += gradient * gradient
    rate = rate_of(model.users.squares, turn.user, square, num_dims, turn.alpha, rule.is_adagrad)
    for d in range(num_dims):
        user[d] += rate * step[d]
    if rule.num_free < num_dims:
        user[num_dims - 1] = bias


@inlined
def move_input(model, word, alpha):
    """Make one step up of an item's input row, by scratch.step."""
    rule, inputs, step = model.rule, model.inputs, model.scratch.step
    num_dims = step.shape[0]
    if rule.is_frozen:
        return
    square = np.float32(0)
    for d in range(num_dims):
        square += step[d] * step[d]
    rate = rate_of(inputs.squares, word, square, num_dims, alpha, rule.is_adagrad)
    for d in range(num_dims):
        inputs.vectors[word, d] += rate * step[d]


@inlined
def reach_of(turn, place, window):
    """Return the number of context tokens on each side: word2vec's window, shrunk at random."""
    return window - np.int64(((draw(turn.key, turn.kept[place], WINDOW, 0) >> _32) * np.uint64(window)) >> _32)


@inlined
def enter(model, prediction):
    """Enter the rows of a prediction, their pulls and what predicts into the ledger, before the user moves."""
    ledger, scratch = model.ledger, model.scratch
    for d in range(scratch.user.shape[0]):
        ledger.hiddens[prediction, d] = scratch.user[d]
    for i in range(ledger.rows.shape[1]):
        ledger.rows[prediction, i], ledger.pulls[prediction, i] = scratch.rows[i], scratch.pulls[i]


@written_out
def train_dbow(model, turn):
    """Train the user to predict its tokens."""
    for place in range(turn.num_kept):
        learn(model, model.scratch.user, turn, place)
        if model.rule.is_accumulating:
            enter(model, turn.first_prediction + place)
        move_user(model, turn, place)


@written_out
def train_dm(model, turn):
    """Train the mean of the user and the context to predict each token."""
    user, hidden = model.scratch.user, model.scratch.hidden
    num_dims = user.shape[0]
    for place in range(turn.num_kept):
        reach = reach_of(turn, place, model.rule.window)
        first, last = max(0, place - reach), min(turn.num_kept, place + reach + 1)
        for d in range(num_dims):
            hidden[d] = user[d]
        for j in range(first, last):
            if j != place:
                word = np.int64(turn.history[turn.kept[j]])
                for d in range(num_dims):
                    hidden[d] += model.inputs.vectors[word, d]
        share = np.float32(1) / np.float32(last - first)
        for d in range(num_dims):
            hidden[d] *= share
        learn(model, hidden, turn, place)
        for j in range(first, last):
            if j != place:
                move_input(model, np.int64(turn.history[turn.kept[j]]), turn.alpha)
        move_user(model, turn, place)


@inlined
def prefetch_users(histories, users, place, last):
    """Prefetch for the next two users of the order: the row and first tokens of the first, the offsets of the second."""
    tokens, starts, ends, hashes, order, _, _ = histories
    if place + 1 < last:
        prefetch_row(users.vectors, order[place + 1])
        first = starts[order[place + 1]]
        prefetch(tokens, first)
        prefetch(tokens, first + LINE_NUMBERS)
    if place + 2 < last:
        user = order[place + 2]
        prefetch(starts, user)
        prefetch(ends, user)
        prefetch(hashes, user)


@written_out
def train_stretch(model, histories, firsts, epoch_key, first, last):
    """Train the users from `first` to `last` of the order, one after the other. Returns how many tokens were kept."""
    tokens, starts, ends, hashes, order, alphas, keep = histories
    user_vectors, row, kept = model.users.vectors, model.scratch.user, model.scratch.kept
    num_kept = 0
    for place in range(first, last):
        user = order[place]
        history = tokens[starts[user] : ends[user]]
        key = mix(hashes[user] ^ epoch_key)
        length = 0
        for position in range(history.shape[0]):
            kept[length] = position  # without a random branch, which would be mispredicted
            length += (draw(key, position, SUBSAMPLE, 0) >> _32) < keep[history[position]]
        if not model.rule.has_tree:
            for i in range(min(length, ROWS_AHEAD)):
                prefetch_row(model.outputs.vectors, history[kept[i]])
        num_kept += length
        prefetch_users(histories, model.users, place, last)
        for d in range(row.shape[0]):
            row[d] = user_vectors[user, d]
        turn = Turn(firsts[place], user, history, kept, length, key, alphas[place])
        if model.rule.is_dm:
            train_dm(model, turn)
        else:
            train_dbow(model, turn)
        for d in range(row.shape[0]):
            user_vectors[user, d] = row[d]
    return num_kept


@numba.njit(nogil=True, cache=True, **OPTIONS)
def train_order(
    users, outputs, inputs, noise, paths, rule, ledger, histories, firsts, epoch_key, taken, stretch, scratch
):
    """Train the users of the order. Returns how many tokens were kept.

    The threads take `stretch` users at a time until all are taken. taken int64[1 or more]: how many are taken, zero at first;
    firsts int64[M]: the number of the first token of each user of the order, by which its predictions are numbered.
    """
    model = Model(users, outputs, inputs, noise, paths, rule, scratch, ledger)
    num_users, num_kept = histories.order.shape[0], 0
    first = take(taken, stretch)
    while first < num_users:
        num_kept += train_stretch(model, histories, firsts, epoch_key, first, min(first + stretch, num_users))
        first = take(taken, stretch)
    return num_kept


@numba.njit(nogil=True, cache=True, **OPTIONS)
def score_each(users, outputs, rows, scores):
    """Fill scores float32[n, K]: dot products of users float32[n, D] with the rows int64[n, K] of outputs float32[V, D]."""
    prefer_wide_vectors()
    for i in range(rows.shape[0]):
        if i + 1 < rows.shape[0]:
            for k in range(rows.shape[1]):
                prefetch_row(outputs, rows[i + 1, k])
        for k in range(rows.shape[1]):
            row, score = rows[i, k], np.float32(0)
            for d in range(users.shape[1]):
                score += users[i, d] * outputs[row, d]
            scores[i, k] = score
