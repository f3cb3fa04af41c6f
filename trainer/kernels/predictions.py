"""A prediction, compiled: its rows are scored, then they and the predicting vector move. README.md has the formulas.

Exponentials and rates are computed for all rows at once, as vectors.
"""
# mypy: no-check-untyped-defs

import math

import numba
import numpy as np

from trainer.kernels.compiled_draws import draw, draw_negative
from trainer.kernels.llvm import (
    OPTIONS,
    ROWS_AHEAD,
    add_rows,
    inlined,
    prefer_wide_vectors,
    prefetch_row,
    pull_tiles,
    written_out,
)
from trainer.model.objectives import MAX_SCORE
from trainer.model.rows import EPSILON

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
def pull_rows(model, hidden, num_rows, num_own, alpha):
    """Move the rows of a prediction, and sum up the step of the hidden vector, one row after the other.

    step += sum of step_pull * row, row += rate * (pull * hidden - l2 * row), with l2 for the first `num_own` rows but not for
    their bias; the rates are those of the rows as they were scored.
    """
    prefer_wide_vectors()
    rule, scratch = model.rule, model.scratch
    vectors, step = model.outputs.vectors, scratch.step
    num_dims = hidden.shape[0]
    if rule.is_frozen or rule.is_accumulating:
        add_rows(vectors, scratch.rows, scratch.step_pulls, 0, num_rows, step)
    else:
        set_rates(model, hidden, num_rows, num_own, alpha)
        step_pulls, shrinks, grows = scratch.step_pulls, scratch.shrinks, scratch.grows
        tiled = pull_tiles(vectors, scratch.rows, step, hidden, step_pulls, shrinks, grows, num_rows, rule.num_free)
        if tiled == num_dims:
            return
        for i in range(num_rows):
            row, step_pull, shrink, grow = scratch.rows[i], step_pulls[i], shrinks[i], grows[i]
            bias = vectors[row, num_dims - 1]
            for d in range(tiled, num_dims):
                value = vectors[row, d]
                step[d] += step_pull * value
                vectors[row, d] = shrink * value + grow * hidden[d]
            if rule.num_free < num_dims:
                vectors[row, num_dims - 1] = bias + grow * hidden[num_dims - 1]


@inlined
def set_rates(model, hidden, num_rows, num_own, alpha):
    """Express each row's step as row * shrink + hidden * grow; add to Adagrad's sums. Short loops are vectorized."""
    rule, scratch, table_squares = model.rule, model.scratch, model.outputs.squares
    rows, pulls, squares, shrinks, grows = scratch.rows, scratch.pulls, scratch.squares, scratch.shrinks, scratch.grows
    num_dims, hidden_square = hidden.shape[0], np.float32(0)
    for d in range(num_dims):
        hidden_square += hidden[d] * hidden[d]
    if rule.num_free < num_dims:
        for i in range(num_own):
            bias = model.outputs.vectors[rows[i], num_dims - 1]
            scratch.dots[i] -= hidden[num_dims - 1] * bias
            squares[i] -= bias * bias
    for i in range(num_rows):
        shrinks[i] = rule.item_l2 if i < num_own else np.float32(0)
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
def learn(model, hidden, turn, place, num_own, purpose, first_draw):
    """Train `hidden` to predict the tokens at `num_own` places from `place`: moves the outputs, writes its step to scratch.step.

    scratch.weights has the tokens' weights for `hidden`; for the outputs the weight is always 1.
    """
    step = model.scratch.step
    for d in range(step.shape[0]):
        step[d] = np.float32(0)
    if model.rule.has_tree:
        learn_by_tree(model, hidden, turn, place, num_own)
    else:
        learn_by_draws(model, hidden, turn, place, num_own, purpose, first_draw)


@inlined
def fill_rows(model, turn, place, num_own, purpose, first_draw):
    """Fill scratch.rows with the block's own tokens, then their shared negatives."""
    rows = model.scratch.rows
    for i in range(num_own):
        rows[i] = turn.history[turn.kept[place + i]]
    for k in range(model.rule.num_negatives):
        rows[num_own + k] = draw_negative(draw(turn.key, turn.kept[place], purpose, first_draw + k + 1), model.noise)
        if num_own + k < ROWS_AHEAD:
            prefetch_row(model.outputs.vectors, rows[num_own + k])


@inlined
def learn_by_draws(model, hidden, turn, place, num_own, purpose, first_draw):
    """Learn by sampled softmax or negative sampling: every token of the block against the same negatives."""
    rule, noise, scratch = model.rule, model.noise, model.scratch
    rows, scores, pulls, step_pulls = scratch.rows, scratch.scores, scratch.pulls, scratch.step_pulls
    weights = scratch.weights
    num_rows = num_own + rule.num_negatives
    fill_rows(model, turn, place, num_own, purpose, first_draw)
    score_rows(model.outputs, hidden, num_rows, scratch)
    highest = np.float32(-1e30)
    for i in range(num_rows):
        scores[i] = scratch.dots[i] - noise.corrections[rows[i]]
    for i in range(num_own):
        scores[i] -= rule.handicap
    for i in range(num_own, num_rows):
        highest = max(highest, scores[i])
    if rule.is_softmax:
        for i in range(whole_vectors(num_rows)):
            scores[i] = exp(scores[i] - highest)
    else:
        for i in range(num_rows):
            scores[i] = clipped_sigmoid(scores[i], i < num_own)
    total = np.float32(0)
    for i in range(num_own, num_rows):
        total += scores[i]
        pulls[i] = np.float32(0)
        step_pulls[i] = np.float32(0)
    whole, step_whole = np.float32(0), np.float32(0)
    for i in range(num_own):
        own = np.float32(0)  # a negative that is the token itself does not count for this token
        for j in range(num_own, num_rows):
            if rows[j] == rows[i]:
                own += scores[j]
        inverse = np.float32(1)
        if rule.is_softmax:
            inverse = np.float32(1) / (scores[i] + max(total - own, np.float32(0)))
        pulls[i] = np.float32(1) - scores[i] * inverse
        step_pulls[i] = weights[i] * pulls[i]
        whole += inverse
        step_whole += weights[i] * inverse
        if own != 0:
            for j in range(num_own, num_rows):
                if rows[j] == rows[i]:
                    pulls[j] += inverse
                    step_pulls[j] += weights[i] * inverse
    for i in range(num_own, num_rows):
        pulls[i] = (pulls[i] - whole) * scores[i]
        step_pulls[i] = (step_pulls[i] - step_whole) * scores[i]
    pull_rows(model, hidden, num_rows, num_own, turn.alpha)


@written_out
def learn_by_tree(model, hidden, turn, place, num_own):
    """Learn a block by hierarchical softmax: the nodes on each token's path, from the leaf up, then the root once for all."""
    for i in range(num_own):
        num_rows = pull_on_the_way(model, hidden, turn, place, i)
        pull_rows(model, hidden, num_rows, 0, turn.alpha)
    if model.paths.widths.shape[0] > 0:
        num_rows = pull_at_the_root(model, hidden, num_own)
        pull_rows(model, hidden, num_rows, 0, turn.alpha)


@inlined
def pull_on_the_way(model, hidden, turn, place, own):
    """Compute the pulls of the nodes between token `own` and the root, and its slot at the root. Returns the number of rows."""
    paths, scratch = model.paths, model.scratch
    rows, pulls = scratch.rows, scratch.pulls
    leaf = np.int64(turn.history[turn.kept[place + own]])
    num_rows, node = np.int64(0), leaf
    while paths.parents[node] > 0:
        inner = np.int64(paths.parents[node])
        first = np.int64(paths.first_rows[inner])
        for child in range(rows_of(paths.widths[inner])):
            rows[num_rows] = first + child
            num_rows += 1
        node = paths.num_classes + inner
    scratch.root_slots[own] = paths.slots[node]
    score_rows(model.outputs, hidden, num_rows, scratch)
    start, node = np.int64(0), leaf
    while paths.parents[node] > 0:
        inner = np.int64(paths.parents[node])
        stop = start + rows_of(paths.widths[inner])
        choose(scratch, start, stop)
        slot = np.int64(paths.slots[node])
        if slot < stop - start:
            pulls[start + slot] += np.float32(1)
        start = stop
        node = paths.num_classes + inner
    for i in range(num_rows):
        scratch.step_pulls[i] = scratch.weights[own] * pulls[i]
    return num_rows


@inlined
def pull_at_the_root(model, hidden, num_own):
    """Compute the pulls of the root for all tokens of a block. Returns the number of its rows."""
    paths, scratch = model.paths, model.scratch
    pulls, step_pulls, weights = scratch.pulls, scratch.step_pulls, scratch.weights
    num_rows = rows_of(paths.widths[0])
    for i in range(num_rows):
        scratch.rows[i] = np.int64(paths.first_rows[0]) + i
    score_rows(model.outputs, hidden, num_rows, scratch)
    choose(scratch, np.int64(0), num_rows)
    weight = np.float32(0)
    for i in range(num_own):
        weight += weights[i]
    for i in range(num_rows):
        step_pulls[i] = weight * pulls[i]
        pulls[i] *= np.float32(num_own)
    for i in range(num_own):
        slot = np.int64(scratch.root_slots[i])
        if slot < num_rows:
            pulls[slot] += np.float32(1)
            step_pulls[slot] += weights[i]
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
