"""The parts of the CPU kernel: draws, one step of a row, and how a hidden vector learns to predict a block of tokens.

Everything is compiled by numba into `cpu.py`'s loop. The formulas are in README.md.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from trainer import draws
from trainer.rows import EPSILON

_GAMMA = np.uint64(draws.GAMMA)
_MIX_1 = np.uint64(draws.MIX_1)
_MIX_2 = np.uint64(draws.MIX_2)
_DRAW_BITS = np.uint64(draws.DRAW_BITS)
_PURPOSE_BITS = np.uint64(draws.PURPOSE_BITS)
_ONE = np.uint64(1)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_LOW_32 = np.uint64(2**32 - 1)
_EPSILON = np.float32(EPSILON)
_MAX_EXPONENT = np.float32(80)  # exp of it is still a finite float32


class Table(NamedTuple):
    """Rows, and where their gradients are summed: vectors, sums float32[n, D]; squares, touched float32[n]."""

    vectors: Any
    squares: Any
    sums: Any
    touched: Any


class Noise(NamedTuple):
    """The tables of trainer.objectives.Sampling that negatives need."""

    thresholds: Any
    aliases: Any
    corrections: Any


class Paths(NamedTuple):
    """The arrays of trainer.trees.Tree; max_rows: the most rows on a way to a class."""

    parents: Any
    slots: Any
    first_rows: Any
    widths: Any
    num_classes: int
    max_rows: int


class Rule(NamedTuple):
    """What is learned, as numbers."""

    is_softmax: bool
    is_adagrad: bool
    is_dm: bool
    has_words: bool
    has_tree: bool
    is_frozen: bool
    is_summing: bool
    window: int
    num_negatives: int
    block_tokens: int
    recency: Any
    l2: Any
    item_l2: Any


class Scratch(NamedTuple):
    """A thread's own arrays.

    hidden, step float32[D]: what predicts, and the answer of the learn functions, the step up of it;
    of the rows that take part in a prediction: rows int64[R], scores, pulls, step_pulls, shrinks, grows float32[R].
    """

    hidden: Any
    step: Any
    rows: Any
    scores: Any
    pulls: Any
    step_pulls: Any
    shrinks: Any
    grows: Any


class Model(NamedTuple):
    """All that a thread trains with."""

    users: Table
    outputs: Table
    inputs: Table
    noise: Noise
    paths: Paths
    rule: Rule
    scratch: Scratch


class Turn(NamedTuple):
    """A user's turn: its row, its history int32[n], the kept positions int64[k], its random key and learning rate."""

    user: Any
    history: Any
    kept: Any
    key: Any
    alpha: Any


@numba.njit(inline="always", error_model="numpy")
def mix(x):
    x = (x ^ (x >> _30)) * _MIX_1
    x = (x ^ (x >> _27)) * _MIX_2
    return x ^ (x >> _31)


@numba.njit(inline="always", error_model="numpy")
def draw(key, position, purpose, number):
    """One 64-bit draw, as trainer.draws defines it."""
    count = ((((np.uint64(position) << _PURPOSE_BITS) | np.uint64(purpose)) << _DRAW_BITS) | np.uint64(number)) + _ONE
    return mix(key + _GAMMA * count)


@numba.njit(inline="always", error_model="numpy")
def draw_negative(bits, noise):
    """The item that 64 random bits choose from the noise distribution."""
    slot = np.int64(((bits >> _32) * np.uint64(noise.aliases.shape[0])) >> _32)
    return slot if (bits & _LOW_32) < noise.thresholds[slot] else np.int64(noise.aliases[slot])


@numba.njit(fastmath=True, error_model="numpy", inline="always")
def sigmoid(x):
    return np.float32(1) / (np.float32(1) + math.exp(-x))


@numba.njit(fastmath=True, error_model="numpy", inline="always")
def dot(a, b):
    total = np.float32(0)
    for d in range(a.shape[0]):
        total += a[d] * b[d]
    return total


@numba.njit(fastmath=True, error_model="numpy", inline="always")
def weight_of(turn, position, recency):
    """What a token counts for the user's vector: half at `recency` tokens before the newest; 0 for always 1."""
    if recency == 0:
        return np.float32(1)
    return np.float32(1) / (np.float32(1) + np.float32(turn.history.shape[0] - 1 - position) / recency)


@numba.njit(fastmath=True, error_model="numpy", inline="always")
def adagrad_rate(table, row, mean_square, alpha):
    """Adds a step's mean squared gradient to the row's sum; answers the learning rate of the step."""
    table.squares[row] += mean_square
    return alpha / np.float32(math.sqrt(table.squares[row] + _EPSILON))


@numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
def move(table, row, step, l2, alpha, is_adagrad, is_summing):
    """One step up of a row by `step - l2 * row`: plain, by row-wise Adagrad, or summed for later."""
    num_dims = step.shape[0]
    v = table.vectors[row]
    if is_summing:
        total = table.sums[row]
        for d in range(num_dims):
            total[d] += step[d] - l2 * v[d]
        table.touched[row] = np.float32(1)
    else:
        rate = alpha
        if is_adagrad:
            square = np.float32(0)
            for d in range(num_dims):
                g = step[d] - l2 * v[d]
                square += g * g
            rate = adagrad_rate(table, row, square / np.float32(num_dims), alpha)
        shrink = np.float32(1) - rate * l2
        for d in range(num_dims):
            v[d] = shrink * v[d] + rate * step[d]


@numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
def pull_rows(model, hidden, num_rows, num_own, alpha):
    """The rows of a prediction and the hidden vector pull each other, one row after the other.

    step += step_pull * row, row += rate * (pull * hidden - l2 * row), with l2 for the first `num_own` rows. The rates
    are all computed before: a loop with nothing else in it runs twice as fast.
    """
    table, rule, scratch = model.outputs, model.rule, model.scratch
    step, rows, step_pulls = scratch.step, scratch.rows, scratch.step_pulls
    num_dims = hidden.shape[0]
    step[:] = np.float32(0)
    if rule.is_frozen:
        for i in range(num_rows):
            v, step_pull = table.vectors[rows[i]], step_pulls[i]
            for d in range(num_dims):
                step[d] += step_pull * v[d]
    elif rule.is_summing:
        for i in range(num_rows):
            v, total, pull, step_pull = table.vectors[rows[i]], table.sums[rows[i]], scratch.pulls[i], step_pulls[i]
            l2 = rule.item_l2 if i < num_own else np.float32(0)
            for d in range(num_dims):
                step[d] += step_pull * v[d]
                total[d] += pull * hidden[d] - l2 * v[d]
            table.touched[rows[i]] = np.float32(1)
    else:
        set_rates(model, hidden, num_rows, num_own, alpha)
        for i in range(num_rows):
            v, step_pull, shrink, grow = table.vectors[rows[i]], step_pulls[i], scratch.shrinks[i], scratch.grows[i]
            for d in range(num_dims):
                value = v[d]
                step[d] += step_pull * value
                v[d] = shrink * value + grow * hidden[d]


@numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
def set_rates(model, hidden, num_rows, num_own, alpha):
    """Each row's step as row * shrink + hidden * grow, by the rows as they stand; adds to Adagrad's sums."""
    table, rule, scratch = model.outputs, model.rule, model.scratch
    num_dims = np.float32(hidden.shape[0])
    hidden_square = dot(hidden, hidden)
    for i in range(num_rows):
        row, pull = scratch.rows[i], scratch.pulls[i]
        l2 = rule.item_l2 if i < num_own else np.float32(0)
        rate = alpha
        if rule.is_adagrad:
            square = pull * pull * hidden_square
            if l2 != 0:
                v = table.vectors[row]
                square += l2 * (l2 * dot(v, v) - np.float32(2) * pull * dot(v, hidden))
            rate = adagrad_rate(table, row, max(square, np.float32(0)) / num_dims, alpha)
        scratch.shrinks[i] = np.float32(1) - rate * l2
        scratch.grows[i] = rate * pull


@numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
def learn(model, hidden, turn, block, purpose, first_draw, recency):
    """Let `hidden` predict the tokens at the positions `block`: moves the outputs, leaves its step up in scratch.step.

    A token weighs by its age for `hidden` (`recency`, 0 for all the same), but always 1 for the outputs.
    """
    if model.rule.has_tree:
        learn_by_tree(model, hidden, turn, block[0], recency)
    else:
        learn_by_draws(model, hidden, turn, block, purpose, first_draw, recency)


@numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
def learn_by_draws(model, hidden, turn, block, purpose, first_draw, recency):
    """Sampled softmax or negative sampling: every token of the block against the same negatives."""
    rule, noise, scratch = model.rule, model.noise, model.scratch
    rows, scores, pulls, step_pulls = scratch.rows, scratch.scores, scratch.pulls, scratch.step_pulls
    num_own = block.shape[0]
    num_rows = num_own + rule.num_negatives
    for i in range(num_own):
        rows[i] = turn.history[block[i]]
    for k in range(rule.num_negatives):
        rows[num_own + k] = draw_negative(draw(turn.key, block[0], purpose, first_draw + k + 1), noise)
    for i in range(num_rows):
        scores[i] = dot(hidden, model.outputs.vectors[rows[i]]) - noise.corrections[rows[i]]
    highest = np.float32(-1e30)
    for i in range(num_own, num_rows):
        highest = max(highest, scores[i])
    total = np.float32(0)
    for i in range(num_own, num_rows):
        scores[i] = math.exp(scores[i] - highest) if rule.is_softmax else sigmoid(scores[i])
        total += scores[i]
        pulls[i] = np.float32(0)
        step_pulls[i] = np.float32(0)
    whole, step_whole = np.float32(0), np.float32(0)
    for i in range(num_own):
        weight = weight_of(turn, block[i], recency)
        own = np.float32(0)  # a negative that is the token itself does not count for this token
        for j in range(num_own, num_rows):
            if rows[j] == rows[i]:
                own += scores[j]
        if rule.is_softmax:
            e = math.exp(min(scores[i] - highest, _MAX_EXPONENT))
            inverse = np.float32(1) / (e + max(total - own, np.float32(0)))
            pulls[i] = np.float32(1) - e * inverse
        else:
            inverse = np.float32(1)
            pulls[i] = np.float32(1) - sigmoid(scores[i])
        step_pulls[i] = weight * pulls[i]
        whole += inverse
        step_whole += weight * inverse
        if own != 0:
            for j in range(num_own, num_rows):
                if rows[j] == rows[i]:
                    pulls[j] += inverse
                    step_pulls[j] += weight * inverse
    for i in range(num_own, num_rows):
        pulls[i] = (pulls[i] - whole) * scores[i]
        step_pulls[i] = (step_pulls[i] - step_whole) * scores[i]
    pull_rows(model, hidden, num_rows, num_own, turn.alpha)


@numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
def learn_by_tree(model, hidden, turn, position, recency):
    """Hierarchical softmax of one token, from the leaf up."""
    paths, scratch = model.paths, model.scratch
    rows, scores, pulls, step_pulls = scratch.rows, scratch.scores, scratch.pulls, scratch.step_pulls
    weight = weight_of(turn, position, recency)
    num_rows = np.int64(0)
    node = np.int64(turn.history[position])
    while paths.parents[node] >= 0:
        slot = np.int64(paths.slots[node])
        inner = np.int64(paths.parents[node])
        first, width = np.int64(paths.first_rows[inner]), np.int64(paths.widths[inner])
        stop = num_rows + (width if width > 2 else width - 1)
        highest = np.float32(-1e30)
        for i in range(num_rows, stop):
            rows[i] = first + i - num_rows
            scores[i] = dot(hidden, model.outputs.vectors[rows[i]])
            highest = max(highest, scores[i])
        if width == 2:
            pulls[num_rows] = np.float32(1 - slot) - sigmoid(scores[num_rows])
        else:
            total = np.float32(0)
            for i in range(num_rows, stop):
                scores[i] = math.exp(scores[i] - highest)
                total += scores[i]
            for i in range(num_rows, stop):
                pulls[i] = np.float32(i - num_rows == slot) - scores[i] / total
        for i in range(num_rows, stop):
            step_pulls[i] = weight * pulls[i]
        num_rows = stop
        node = paths.num_classes + inner
    pull_rows(model, hidden, num_rows, 0, turn.alpha)
