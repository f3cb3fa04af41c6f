"""The losses, compiled: scores become pulls. README.md has the formulas.

Sampled softmax and negative sampling turn the scores of a whole tile into pulls, lanes side by side in a vector. A tree's nodes
differ from lane to lane: `learn_path` scores and moves those of one.
"""
# mypy: no-check-untyped-defs

import math

import numba
import numpy as np

from surf2vec.trainer.kernels.llvm import OPTIONS, ROWS_AHEAD, inlined, prefer_wide_vectors, prefetch_row
from surf2vec.trainer.model.objectives import MAX_SCORE
from surf2vec.trainer.model.rows import EPSILON

_EPSILON = np.float32(EPSILON)
_MAX_SCORE = np.float32(MAX_SCORE)
_MAX_EXPONENT = np.float32(80)  # exp of it is still a finite float32


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
def sigmoid(x):
    return np.float32(1) / (np.float32(1) + exp(-x))


@inlined
def rate_of(squares, row, square, num_dims, alpha, is_adagrad):
    """Return the learning rate of a step with this squared gradient: alpha, or Adagrad's, after adding it to the row's sum."""
    if not is_adagrad:
        return alpha
    squares[row] += max(square, np.float32(0)) / np.float32(num_dims)
    return alpha / np.float32(math.sqrt(squares[row] + _EPSILON))


@inlined
def pull_by_softmax(scores, rows, corrections, own_rows, own_scores, totals, num_negatives):
    """Turn the scores of a sampled softmax into pulls: minus the probability of each negative, and 1 - that of the own token.

    scores float32[K, M] in and pulls out; rows uint32[K], corrections float32[K]: the negatives' items and what their scores are
    lowered by; own_rows uint32[M]: each lane's own item, for which a negative that is the same item does not count;
    own_scores float32[M]: its score, corrected, and lowered by log of the negatives' weight; its pull out. totals float32[M] is
    scratch. Powers are of the differences from the own score, which `exp` keeps finite.
    """
    width = scores.shape[1]
    for m in range(width):
        totals[m] = np.float32(0)
    for k in range(num_negatives):
        row, correction = rows[k], corrections[k]
        for m in range(width):
            power = exp(scores[k, m] - correction - own_scores[m])
            power = power if own_rows[m] != row else np.float32(0)
            scores[k, m] = power
            totals[m] += power
    for m in range(width):
        inverse = np.float32(1) / (np.float32(1) + totals[m])
        own_scores[m], totals[m] = totals[m] * inverse, -inverse
    for k in range(num_negatives):
        for m in range(width):
            scores[k, m] *= totals[m]


@inlined
def pull_by_sigmoids(scores, rows, own_rows, own_scores, num_negatives):
    """Turn the scores of negative sampling into pulls, as `pull_by_softmax`. A score far out makes none."""
    for k in range(num_negatives):
        row = rows[k]
        for m in range(scores.shape[1]):
            score = scores[k, m]
            is_far = (abs(score) >= _MAX_SCORE) | (own_rows[m] == row)
            scores[k, m] = np.float32(0) if is_far else -sigmoid(score)
    for m in range(scores.shape[1]):
        score = own_scores[m]
        own_scores[m] = np.float32(0) if abs(score) >= _MAX_SCORE else sigmoid(-score)


@inlined
def learn_path(stream, lane):
    """Learn a lane's item by the nodes from its leaf up to the root: moves them, and leaves what predicts its step."""
    prefer_wide_vectors()
    tile, outputs, rule = stream.tile, stream.outputs, stream.rule
    vectors, hidden, step = outputs.vectors, tile.hiddens[lane], tile.steps[lane]
    num_dims, num_rows, hidden_square = vectors.shape[1], list_path(stream.paths, tile, lane), np.float32(0)
    for d in range(num_dims):
        step[d] = np.float32(0)
        hidden_square += hidden[d] * hidden[d]
    for i in range(num_rows):
        if i + ROWS_AHEAD < num_rows:
            prefetch_row(vectors, tile.path_rows[i + ROWS_AHEAD])
        row, score = np.int64(tile.path_rows[i]), np.float32(0)
        for d in range(num_dims):
            score += hidden[d] * vectors[row, d]
        tile.path_pulls[i] = score
    choose_children(stream.paths, tile, lane)
    for i in range(num_rows):
        row, pull = np.int64(tile.path_rows[i]), tile.path_pulls[i]
        for d in range(num_dims):
            step[d] += pull * vectors[row, d]
        if not rule.is_frozen:
            square = pull * pull * hidden_square
            grow = pull * rate_of(outputs.squares, row, square, num_dims, tile.alpha[lane], rule.is_adagrad)
            for d in range(num_dims):
                vectors[row, d] += grow * hidden[d]


@inlined
def rows_of(width):
    """Return the number of parameter rows of a node with so many children."""
    return np.int64(width) if width > 2 else np.int64(width) - 1


@inlined
def list_path(paths, tile, lane):
    """List the parameter rows of the nodes above a lane's item. Returns how many there are."""
    num_rows, node = np.int64(0), np.int64(tile.own_rows[lane])
    while paths.parents[node] >= 0:
        inner = np.int64(paths.parents[node])
        first = np.int64(paths.first_rows[inner])
        for child in range(rows_of(paths.widths[inner])):
            tile.path_rows[num_rows] = first + child
            num_rows += 1
        node = paths.num_classes + inner
    return num_rows


@inlined
def choose_children(paths, tile, lane):
    """Turn the scores of the path's rows into pulls: of the child that leads to the lane's item, against the others."""
    pulls, start, node = tile.path_pulls, np.int64(0), np.int64(tile.own_rows[lane])
    while paths.parents[node] >= 0:
        inner, slot = np.int64(paths.parents[node]), np.int64(paths.slots[node])
        stop = start + rows_of(paths.widths[inner])
        if stop - start == 1:
            pulls[start] = np.float32(slot == 0) - sigmoid(pulls[start])
        elif stop > start:
            highest, total = np.float32(-1e30), np.float32(0)
            for i in range(start, stop):
                highest = max(highest, pulls[i])
            for i in range(start, stop):
                pulls[i] = exp(pulls[i] - highest)
                total += pulls[i]
            for i in range(start, stop):
                pulls[i] = -pulls[i] / total
            pulls[start + slot] += np.float32(1)
        start, node = stop, paths.num_classes + inner
