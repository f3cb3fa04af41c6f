"""A prediction, compiled: its rows are scored, then they and the predicting vector move. README.md has the formulas.

Exponentials and rates are computed for all rows at once, as vectors.
"""
# mypy: no-check-untyped-defs

import math

import numba
import numpy as np

from surf2vec.trainer.draws import NEGATIVE
from surf2vec.trainer.kernels.compiled_draws import draw, draw_negative
from surf2vec.trainer.kernels.llvm import (
    OPTIONS,
    ROWS_AHEAD,
    inlined,
    prefer_wide_vectors,
    prefetch_row,
    written_out,
)
from surf2vec.trainer.model.objectives import MAX_SCORE
from surf2vec.trainer.model.rows import EPSILON

_EPSILON = np.float32(EPSILON)
_MAX_SCORE = np.float32(MAX_SCORE)
_MAX_EXPONENT = np.float32(80)  # exp of it is still a finite float32
_VECTOR = 8  # numbers of AVX2's vectors


@numba.njit(forceinline=True, **OPTIONS | {"fastmath": {"contract"}})
def exp(x):
    """Return e**x for x in [-87, 80], within a relative 2e-7: 2**n times a polynomial (Cephes' expf), which LLVM can vectorize.

    Only fastmath's fusing is on: all of it would merge the two parts of log(2). math.exp is a call for each number.
    """
    x = min(max(x, np.float32(-87)), _MAX_EXPONENT)
    # Cut off above zero: math.floor without its call. The difference is one of floats, as of int32 numba makes an int64.
    power = np.int32(x * np.float32(1.44269504) + np.float32(127.5))
    n = np.float32(power) - np.float32(127)
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    y = np.float32(1.9875691500e-4)
    y = y * r + np.float32(1.3981999507e-3)
    y = y * r + np.float32(8.3334519073e-3)
    y = y * r + np.float32(4.1665795894e-2)
    y = y * r + np.float32(1.6666665459e-1)
    y = y * r + np.float32(5.0000001201e-1)
    y = y * r * r + r + np.float32(1)
    return y * np.int32(power << np.int32(23)).view(np.float32)


@inlined
def whole_vectors(num):
    """Return `num` rounded up to full SIMD vectors, which are faster; scratch arrays have room for the rest."""
    return (num + _VECTOR - 1) & -_VECTOR


@inlined
def sigmoid(x):
    return np.float32(1) / (np.float32(1) + exp(-x))


@inlined
def clipped_sigmoid(x, is_own):
    """Return the probability of a score; the target itself if the score makes no step."""
    return sigmoid(x) if abs(x) < _MAX_SCORE else np.float32(is_own)


@inlined
def rate_of(squares, row, square, num_dims, alpha, is_adagrad):
    """Return the learning rate of a step with this squared gradient: alpha, or Adagrad's, after adding it to the row's sum."""
    if not is_adagrad:
        return alpha
    squares[row] += max(square, np.float32(0)) / np.float32(num_dims)
    return alpha / np.float32(math.sqrt(squares[row] + _EPSILON))


@inlined
def score_rows(table, hidden, num_rows, scratch):
    """Compute dots = hidden . row and squares = row . row for the rows of a prediction."""
    prefer_wide_vectors()
    vectors = table.vectors
    for i in range(num_rows):
        if i + ROWS_AHEAD < num_rows:
            prefetch_row(vectors, scratch.rows[i + ROWS_AHEAD])
        row, total, square = scratch.rows[i], np.float32(0), np.float32(0)
        for d in range(hidden.shape[0]):
            value = vectors[row, d]
            total += hidden[d] * value
            square += value * value
        scratch.dots[i], scratch.squares[i] = total, square


@inlined
def pull_rows(model, hidden, num_rows, has_own, alpha):
    """Move the rows of a prediction, and sum up the step of the hidden vector, one row after the other.

    step += sum of pull * row, row += rate * (pull * hidden - l2 * row), with l2 for the first row alone, if it is the token's
    own, but not for its bias; the rates are those of the rows as they were scored.
    """
    prefer_wide_vectors()
    rule, scratch = model.rule, model.scratch
    vectors, step, pulls = model.outputs.vectors, scratch.step, scratch.pulls
    num_dims = hidden.shape[0]
    if rule.is_frozen:
        for i in range(num_rows):
            row, pull = scratch.rows[i], pulls[i]  # read before the inner loop, which LLVM then makes vectors of
            for d in range(num_dims):
                step[d] += pull * vectors[row, d]
        return
    set_rates(model, hidden, num_rows, has_own, alpha)
    for i in range(num_rows):
        row, pull, shrink, grow = scratch.rows[i], pulls[i], scratch.shrinks[i], scratch.grows[i]
        bias = vectors[row, num_dims - 1]
        for d in range(num_dims):
            value = vectors[row, d]
            step[d] += pull * value
            vectors[row, d] = shrink * value + grow * hidden[d]
        if rule.num_free < num_dims:
            vectors[row, num_dims - 1] = bias + grow * hidden[num_dims - 1]


@inlined
def set_rates(model, hidden, num_rows, has_own, alpha):
    """Express each row's step as row * shrink + hidden * grow; add to Adagrad's sums. Short loops are vectorized."""
    rule, scratch, table_squares = model.rule, model.scratch, model.outputs.squares
    rows, pulls, squares, shrinks, grows = scratch.rows, scratch.pulls, scratch.squares, scratch.shrinks, scratch.grows
    num_dims, hidden_square = hidden.shape[0], np.float32(0)
    for d in range(num_dims):
        hidden_square += hidden[d] * hidden[d]
    if has_own and rule.num_free < num_dims:
        bias = model.outputs.vectors[rows[0], num_dims - 1]
        scratch.dots[0] -= hidden[num_dims - 1] * bias
        squares[0] -= bias * bias
    for i in range(num_rows):
        shrinks[i] = rule.item_l2 if has_own and i == 0 else np.float32(0)
    for i in range(num_rows):
        l2, pull = shrinks[i], pulls[i]
        square = pull * pull * hidden_square + l2 * (l2 * squares[i] - np.float32(2) * pull * scratch.dots[i])
        squares[i] = max(square, np.float32(0)) / np.float32(num_dims)
    if rule.is_adagrad:
        for i in range(num_rows):
            table_squares[rows[i]] += squares[i]
            squares[i] = table_squares[rows[i]]
    for i in range(num_rows):
        rate = alpha / np.float32(math.sqrt(squares[i] + _EPSILON)) if rule.is_adagrad else alpha
        shrinks[i] = np.float32(1) - rate * shrinks[i]
        grows[i] = rate * pulls[i]


@written_out
def learn(model, hidden, turn, place):
    """Train `hidden` to predict the token at a place: moves the outputs, writes its step to scratch.step."""
    step = model.scratch.step
    for d in range(step.shape[0]):
        step[d] = np.float32(0)
    if model.rule.has_tree:
        num_rows = pull_on_the_way(model, hidden, turn, place)
        pull_rows(model, hidden, num_rows, False, turn.alpha)
    else:
        learn_by_draws(model, hidden, turn, place)


@inlined
def fill_rows(model, turn, place):
    """Fill scratch.rows with the token's own row, then its negatives."""
    rows = model.scratch.rows
    rows[0] = turn.history[turn.kept[place]]
    for k in range(model.rule.num_negatives):
        rows[1 + k] = draw_negative(draw(turn.key, turn.kept[place], NEGATIVE, k + 1), model.noise)
        if 1 + k < ROWS_AHEAD:
            prefetch_row(model.outputs.vectors, rows[1 + k])


@inlined
def learn_by_draws(model, hidden, turn, place):
    """Learn by sampled softmax or negative sampling. A negative that is the token itself does not count."""
    rule, noise, scratch = model.rule, model.noise, model.scratch
    rows, scores, pulls = scratch.rows, scratch.scores, scratch.pulls
    num_rows = 1 + rule.num_negatives
    fill_rows(model, turn, place)
    score_rows(model.outputs, hidden, num_rows, scratch)
    highest = np.float32(-1e30)
    for i in range(num_rows):
        scores[i] = scratch.dots[i] - noise.corrections[rows[i]]
    scores[0] -= rule.handicap
    for i in range(num_rows):
        highest = max(highest, scores[i])
    if rule.is_softmax:
        for i in range(whole_vectors(num_rows)):
            scores[i] = exp(scores[i] - highest)
    else:
        for i in range(num_rows):
            scores[i] = clipped_sigmoid(scores[i], i == 0)
    total = np.float32(0)
    for i in range(1, num_rows):
        if rows[i] == rows[0]:
            scores[i] = np.float32(0)
        total += scores[i]
    inverse = np.float32(1)
    if rule.is_softmax:
        inverse = np.float32(1) / (scores[0] + total)
    for i in range(num_rows):
        pulls[i] = -scores[i] * inverse
    pulls[0] += np.float32(1)
    pull_rows(model, hidden, num_rows, True, turn.alpha)


@inlined
def pull_on_the_way(model, hidden, turn, place):
    """Compute the pulls of the nodes from the token's leaf up to the root. Returns the number of rows."""
    paths, scratch = model.paths, model.scratch
    rows, pulls = scratch.rows, scratch.pulls
    leaf = np.int64(turn.history[turn.kept[place]])
    num_rows, node = np.int64(0), leaf
    while paths.parents[node] >= 0:
        inner = np.int64(paths.parents[node])
        first = np.int64(paths.first_rows[inner])
        for child in range(rows_of(paths.widths[inner])):
            rows[num_rows] = first + child
            num_rows += 1
        node = paths.num_classes + inner
    score_rows(model.outputs, hidden, num_rows, scratch)
    start, node = np.int64(0), leaf
    while paths.parents[node] >= 0:
        inner = np.int64(paths.parents[node])
        stop = start + rows_of(paths.widths[inner])
        choose(scratch, start, stop)
        slot = np.int64(paths.slots[node])
        if slot < stop - start:
            pulls[start + slot] += np.float32(1)
        start = stop
        node = paths.num_classes + inner
    return num_rows


@inlined
def rows_of(width):
    """Return the number of parameter rows of a node with so many children."""
    return np.int64(width) if width > 2 else np.int64(width) - 1


@inlined
def choose(scratch, start, stop):
    """Set pulls[start:stop] of a node's rows to minus the probability of each child; of a single row, of slot 0."""
    dots, pulls = scratch.dots, scratch.pulls
    if stop - start == 1:
        pulls[start] = -sigmoid(dots[start])
        return
    highest, total = np.float32(-1e30), np.float32(0)
    for i in range(start, stop):
        highest = max(highest, dots[i])
    for i in range(start, stop):
        pulls[i] = exp(dots[i] - highest)
        total += pulls[i]
    for i in range(start, stop):
        pulls[i] = -pulls[i] / total
