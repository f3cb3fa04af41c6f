"""A step of a tile, compiled: each lane has a vector that predicts its item, and all lanes share the negatives.

What predicts, `tile.hiddens`, is the interest's user or its mean with the context (streams.py), or the trail's weighted sum of
pages (compiled_trail.py). README.md has the formulas.
"""
# mypy: no-check-untyped-defs

import numpy as np

from surf2vec.trainer.draws import TILE
from surf2vec.trainer.kernels.compiled_draws import draw, draw_negative
from surf2vec.trainer.kernels.llvm import LINE_NUMBERS, inlined, prefer_wide_vectors, prefetch, prefetch_row
from surf2vec.trainer.kernels.losses import rate_of
from surf2vec.trainer.kernels.tiles import pull_negatives
from surf2vec.trainer.model.rows import EPSILON

_EPSILON = np.float32(EPSILON)


@inlined
def fetch_item(stream, row):
    """Ask for an item's row, and its other numbers, a step ahead."""
    outputs = stream.outputs
    prefetch_row(outputs.vectors, row)
    prefetch(outputs.squares, np.int64(row))
    prefetch(stream.noise.corrections, np.int64(row))


@inlined
def draw_rows(stream, key, step):
    """Draw the negatives of a step, and ask for their rows."""
    for k in range(stream.rule.num_negatives):
        row = draw_negative(draw(key, step, TILE, k), stream.noise)
        stream.tile.next_rows[k] = row
        fetch_item(stream, row)


@inlined
def copy_negatives(stream):
    """Copy the rows that were drawn into the tile. For a trail, link those that are the same item."""
    prefer_wide_vectors()
    tile, vectors = stream.tile, stream.outputs.vectors
    for k in range(stream.rule.num_negatives):
        row = tile.next_rows[k]
        tile.rows[k], tile.corrections[k] = row, stream.noise.corrections[row]
        if stream.rule.has_trail:
            tile.same[k], tile.last_of[row] = tile.last_of[row], k + 1
        for d in range(vectors.shape[1]):
            tile.negatives[k, d] = vectors[row, d]


@inlined
def score_own(stream, num_lanes):
    """Score each lane's own item: corrected and lowered to own_scores; without the bias, and with the row's square, for L2."""
    prefer_wide_vectors()
    tile, rule, vectors = stream.tile, stream.rule, stream.outputs.vectors
    num_dims, last = vectors.shape[1], vectors.shape[1] - 1
    for m in range(num_lanes):
        row = np.int64(tile.own_rows[m])
        total, square, hidden_square = np.float32(0), np.float32(0), np.float32(0)
        for d in range(num_dims):
            value, hidden = vectors[row, d], tile.hiddens[m, d]
            total += hidden * value
            square += value * value
            hidden_square += hidden * hidden
        tile.own_scores[m] = total - stream.noise.corrections[row] - rule.handicap
        if rule.num_free < num_dims:
            total -= tile.hiddens[m, last] * vectors[row, last]
            square -= vectors[row, last] * vectors[row, last]
        tile.dots[m], tile.squares[m], tile.hidden_squares[m] = total, square, hidden_square


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
    """Move each lane's own row, in turn, and add its pull to the step of what predicts. The bias has no L2."""
    prefer_wide_vectors()
    tile, rule, vectors = stream.tile, stream.rule, stream.outputs.vectors
    num_dims, last = vectors.shape[1], vectors.shape[1] - 1
    for start in range(0, num_lanes, LINE_NUMBERS):
        for m in range(start, start + LINE_NUMBERS):
            pull, l2 = tile.own_scores[m], tile.item_l2[m] * rule.l2_in_sums
            square = pull * pull * tile.hidden_squares[m]
            square += l2 * (l2 * tile.squares[m] - np.float32(2) * pull * tile.dots[m])
            tile.rates[m] = max(square, np.float32(0)) / np.float32(num_dims)
    set_rates(stream, stream.outputs, tile.own_rows, num_lanes)
    for m in range(num_lanes):
        row, pull, rate = np.int64(tile.own_rows[m]), tile.own_scores[m], tile.rates[m]
        shrink, grow, own_bias = np.float32(1) - rate * tile.item_l2[m], rate * pull, vectors[row, last]
        for d in range(num_dims):
            own = vectors[row, d]
            tile.steps[m, d] += pull * own
            vectors[row, d] = shrink * own + grow * tile.hiddens[m, d]
        if rule.num_free < num_dims:
            vectors[row, last] = own_bias + grow * tile.hiddens[m, last]


@inlined
def move_negatives(stream):
    """Move each negative by the sum of the lanes' pulls, one after the other, as one may have been drawn twice."""
    prefer_wide_vectors()
    tile, rule, vectors, alpha = stream.tile, stream.rule, stream.outputs.vectors, stream.tile.alpha[0]
    num_dims = vectors.shape[1]
    for k in range(rule.num_negatives):
        row, square = np.int64(tile.rows[k]), np.float32(0)
        if rule.has_trail:
            tile.last_of[row] = 0
        for d in range(num_dims):
            square += tile.negative_steps[k, d] * tile.negative_steps[k, d]
        rate = rate_of(stream.outputs.squares, row, square, num_dims, alpha, rule.is_adagrad)
        for d in range(num_dims):
            vectors[row, d] += rate * tile.negative_steps[k, d]


@inlined
def leave_items(stream, num_lanes):
    """Add the pulls of the lanes' own rows to the steps of what predicts, and leave all rows as they are.

    With gradient accumulation, enter each lane's rows, pulls and what predicts into the ledger.
    """
    prefer_wide_vectors()
    tile, vectors, ledger, lanes = stream.tile, stream.outputs.vectors, stream.ledger, stream.lanes
    num_dims = vectors.shape[1]
    for m in range(num_lanes):
        row, pull = np.int64(tile.own_rows[m]), tile.own_scores[m]
        for d in range(num_dims):
            tile.steps[m, d] += pull * vectors[row, d]
        if stream.rule.is_accumulating:
            number = lanes.firsts[m] + lanes.next[m]
            ledger.rows[number, 0], ledger.pulls[number, 0] = row, pull
            for k in range(stream.rule.num_negatives):
                ledger.rows[number, 1 + k], ledger.pulls[number, 1 + k] = tile.rows[k], tile.scores[k, m]
            for d in range(num_dims):
                ledger.hiddens[number, d] = tile.hiddens[m, d]


@inlined
def move_items(stream, num_lanes):
    """Move the items of a tile by their pulls, and add the pulls of the lanes' own rows to the steps of what predicts."""
    pull_negatives(stream.tile.scores, stream.tile.hiddens, stream.tile.negative_steps, num_lanes)
    move_own(stream, num_lanes)
    move_negatives(stream)
