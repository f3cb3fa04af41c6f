"""The parts of the GPU kernel that Triton compiles: one program subsamples a user's tokens, one trains a user.

Shapes: D dims, B tokens in a block, K negatives. Arrays in a program are padded to powers of two, the rest masked.
"""

import triton
import triton.language as tl

from trainer import draws
from trainer.model.objectives import MAX_SCORE
from trainer.model.rows import EPSILON

_GAMMA, _MIX_1, _MIX_2 = tl.constexpr(draws.GAMMA), tl.constexpr(draws.MIX_1), tl.constexpr(draws.MIX_2)
_SUBSAMPLE, _NEGATIVE = tl.constexpr(draws.SUBSAMPLE), tl.constexpr(draws.NEGATIVE)
_DRAW_BITS, _PURPOSE_BITS = tl.constexpr(draws.DRAW_BITS), tl.constexpr(draws.PURPOSE_BITS)
_LOW_32, _EPSILON = tl.constexpr(2**32 - 1), tl.constexpr(EPSILON)
_MAX_SCORE = tl.constexpr(MAX_SCORE)


@triton.jit
def _range(n: tl.constexpr):
    """Return 0, 1, ... up to n's next power of two, the size of Triton's arrays."""
    return tl.arange(0, triton.next_power_of_2(n))


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * _MIX_1
    x = (x ^ (x >> 27)) * _MIX_2
    return x ^ (x >> 31)


@triton.jit
def _draw(key, position, purpose: tl.constexpr, number):
    """Return one 64-bit draw, as trainer.draws defines it; key, position and number are uint64."""
    count = ((((position << _PURPOSE_BITS) | purpose) << _DRAW_BITS) | number) + 1
    return _mix(key + count * _GAMMA)


@triton.jit
def keep_tokens(tokens, starts, ends, keys, order, keep, kept, num_kept, CHUNK: tl.constexpr):
    """Write the kept positions of a user's tokens to kept[starts[user]:], and their number to num_kept."""
    user = tl.load(order + tl.program_id(0))
    start = tl.load(starts + user)
    length = (tl.load(ends + user) - start).to(tl.int32)
    key = _mix(tl.load(keys + user).to(tl.uint64))
    num = 0
    for first in range(0, length, CHUNK):
        positions = first + tl.arange(0, CHUNK)
        is_inside = positions < length
        item = tl.load(tokens + start + positions, mask=is_inside, other=0)
        threshold = tl.load(keep + item, mask=is_inside, other=0).to(tl.uint64)
        number = tl.full((CHUNK,), 0, tl.uint64)
        is_kept = is_inside & ((_draw(key, positions.to(tl.uint64), _SUBSAMPLE, number) >> 32) < threshold)
        ones = is_kept.to(tl.int32)
        tl.store(kept + start + num + tl.cumsum(ones, axis=0) - 1, positions, mask=is_kept)
        num += tl.sum(ones, axis=0)
    tl.store(num_kept + tl.program_id(0), num)


@triton.jit(do_not_specialize=["num_items"])  # otherwise Triton compiles again for 1 and for multiples of 16
def train_user(
    users, user_squares, outputs, output_squares, tokens, starts, ends, keys, order, alphas, kept, num_kept,
    thresholds, aliases, corrections, num_items, recency_rate, l2, item_l2, handicap,
    D: tl.constexpr, B: tl.constexpr, K: tl.constexpr, NUM_FREE: tl.constexpr,
    IS_SOFTMAX: tl.constexpr, IS_ADAGRAD: tl.constexpr, IS_FROZEN: tl.constexpr,
):  # fmt: skip
    """Train one user over all its kept tokens, a block at a time."""
    user = tl.load(order + tl.program_id(0))
    alpha = tl.load(alphas + tl.program_id(0))
    count = tl.load(num_kept + tl.program_id(0))
    start = tl.load(starts + user)
    newest = (tl.load(ends + user) - start).to(tl.int32) - 1
    user_l2 = l2 / tl.sqrt(tl.maximum(newest + 1, 1).to(tl.float32))
    key = _mix(tl.load(keys + user).to(tl.uint64))
    d, b, k = _range(D), _range(B), _range(K)
    u_D = tl.load(users + user * D + d, mask=d < D, other=0.0)
    square = tl.load(user_squares + user)
    for first in range(0, count, B):
        has_B = (b < B) & (first + b < count)
        positions_B = tl.load(kept + start + first + b, mask=has_B, other=0)
        rows_B = tl.load(tokens + start + positions_B, mask=has_B, other=0).to(tl.int64)
        weights_B = tl.where(has_B, 1.0 / (1.0 + (newest - positions_B).to(tl.float32) * recency_rate), 0.0)
        first_position = tl.load(kept + start + first).to(tl.uint64)
        bits_K = _draw(key, first_position, _NEGATIVE, (k + 1).to(tl.uint64))
        rows_K = _draw_negatives(bits_K, k < K, thresholds, aliases, num_items)
        step_D = _learn(
            outputs, output_squares, u_D, rows_B, has_B, weights_B, rows_K, corrections, handicap, alpha, item_l2,
            D, B, K, NUM_FREE, IS_SOFTMAX, IS_ADAGRAD, IS_FROZEN,
        )  # fmt: skip
        gradient_D = tl.where(d < NUM_FREE, step_D - user_l2 * tl.sum(weights_B, axis=0) * u_D, 0.0)
        rate = alpha
        if IS_ADAGRAD:
            square += tl.sum(gradient_D * gradient_D, axis=0) / D
            rate = alpha / tl.sqrt(square + _EPSILON)
        u_D += rate * gradient_D
    tl.store(users + user * D + d, u_D, mask=d < D)
    tl.store(user_squares + user, square)


@triton.jit
def _draw_negatives(bits_K, has_K, thresholds, aliases, num_items):
    """Return the items of the noise distribution for 64 random bits each, int64."""
    slots_K = (((bits_K >> 32) * num_items) >> 32).to(tl.int64)
    thresholds_K = tl.load(thresholds + slots_K, mask=has_K, other=0).to(tl.uint64)
    aliases_K = tl.load(aliases + slots_K, mask=has_K, other=0).to(tl.int64)
    return tl.where((bits_K & _LOW_32) < thresholds_K, slots_K, aliases_K)


@triton.jit
def _learn(
    outputs, squares, u_D, rows_B, has_B, weights_B, rows_K, corrections, handicap, alpha, item_l2,
    D: tl.constexpr, B: tl.constexpr, K: tl.constexpr, NUM_FREE: tl.constexpr,
    IS_SOFTMAX: tl.constexpr, IS_ADAGRAD: tl.constexpr, IS_FROZEN: tl.constexpr,
):  # fmt: skip
    """The user's row predicts the tokens of a block against K negatives: moves the outputs, returns the step up of u_D."""
    d, has_K = _range(D), _range(K) < K
    at_BD, has_BD = outputs + rows_B[:, None] * D + d[None, :], has_B[:, None] & (d < D)[None, :]
    at_KD, has_KD = outputs + rows_K[:, None] * D + d[None, :], has_K[:, None] & (d < D)[None, :]
    v_BD = tl.load(at_BD, mask=has_BD, other=0.0, cache_modifier=".cg")
    v_KD = tl.load(at_KD, mask=has_KD, other=0.0, cache_modifier=".cg")
    pulls_B, p_BK = _probabilities(
        tl.sum(v_BD * u_D[None, :], axis=1), tl.sum(v_KD * u_D[None, :], axis=1), rows_B, has_B, rows_K, has_K,
        corrections, handicap, IS_SOFTMAX,
    )  # fmt: skip
    is_free_1D = (d < NUM_FREE)[None, :]
    pulls_K = -tl.sum(p_BK, axis=0)
    step_pulls_B = weights_B * pulls_B
    step_pulls_K = -tl.sum(weights_B[:, None] * p_BK, axis=0)
    added = 0.0
    if not IS_FROZEN:
        rates_B, rates_K = tl.full(has_B.shape, 0.0, tl.float32) + alpha, tl.full(has_K.shape, 0.0, tl.float32) + alpha
        if IS_ADAGRAD:
            gradient_BD = pulls_B[:, None] * u_D[None, :] - tl.where(is_free_1D, item_l2 * v_BD, 0.0)
            rates_B = _adagrad_rates(squares + rows_B, tl.sum(gradient_BD * gradient_BD, axis=1) / D, has_B, alpha)
            mean_squares_K = pulls_K * pulls_K * (tl.sum(u_D * u_D, axis=0) / D)
            rates_K = _adagrad_rates(squares + rows_K, mean_squares_K, has_K, alpha)
        grows_B, decays_B, grows_K = rates_B * pulls_B, tl.where(has_B, rates_B * item_l2, 0.0), rates_K * pulls_K
        left_B, added_B, left_K, added_K = _moved_before(rows_B, has_B, grows_B, decays_B, rows_K, has_K, grows_K, B, K)
        decays_BD = (decays_B * added_B)[:, None] * u_D[None, :] + (decays_B * left_B)[:, None] * v_BD
        moves_BD = grows_B[:, None] * u_D[None, :] - tl.where(is_free_1D, decays_BD, 0.0)
        tl.atomic_add(at_BD, moves_BD, mask=has_BD, sem="relaxed")
        tl.atomic_add(at_KD, grows_K[:, None] * u_D[None, :], mask=has_KD, sem="relaxed")
        added = tl.sum(step_pulls_B * added_B, axis=0) + tl.sum(step_pulls_K * added_K, axis=0)
        step_pulls_B *= left_B
        step_pulls_K *= left_K
    own_step_D, other_step_D = (
        tl.sum(step_pulls_B[:, None] * v_BD, axis=0),
        tl.sum(step_pulls_K[:, None] * v_KD, axis=0),
    )
    return own_step_D + other_step_D + added * u_D


@triton.jit
def _probabilities(
    scores_B, scores_K, rows_B, has_B, rows_K, has_K, corrections, handicap, IS_SOFTMAX: tl.constexpr
):  # fmt: skip
    """Return 1 - probability of each token, [B], and the probability of each negative against each token, [B, K].

    A negative that is the token itself does not count for this token.
    """
    counts_BK = has_B[:, None] & has_K[None, :] & (rows_B[:, None] != rows_K[None, :])
    if IS_SOFTMAX:
        scores_B -= tl.load(corrections + rows_B, mask=has_B, other=0.0) + handicap
        scores_K -= tl.load(corrections + rows_K, mask=has_K, other=0.0)
        scores_BK = tl.where(counts_BK, scores_K[None, :], float("-inf"))
        highest_B = tl.maximum(scores_B, tl.max(scores_BK, axis=1))
        e_BK = tl.exp(scores_BK - highest_B[:, None])
        others_B = tl.sum(e_BK, axis=1)
        whole_B = others_B + tl.exp(scores_B - highest_B)
        p_BK = e_BK / whole_B[:, None]
        pulls_B = others_B / whole_B
    else:
        p_K = tl.where(tl.abs(scores_K) < _MAX_SCORE, 1.0 / (1.0 + tl.exp(-scores_K)), 0.0)
        p_BK = tl.where(counts_BK, p_K[None, :], 0.0)
        pulls_B = tl.where(tl.abs(scores_B) < _MAX_SCORE, 1.0 / (1.0 + tl.exp(scores_B)), 0.0)
    return tl.where(has_B, pulls_B, 0.0), p_BK


@triton.jit
def _adagrad_rates(at, mean_squares, has, alpha):
    """Add the steps' mean squared gradients to the rows' sums. Returns the learning rates."""
    before = tl.atomic_add(at, mean_squares, mask=has, sem="relaxed")
    return alpha / tl.sqrt(tl.where(has, before, 0.0) + mean_squares + _EPSILON)


@triton.jit
def _moved_before(
    rows_B, has_B, grows_B, decays_B, rows_K, has_K, grows_K, B: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """Return (left, added): a row is left * v + added * u when its turn comes; v was loaded before the block's moves.

    An item that is in a block twice has moved by then. Loading it again would give the same, a row's latency later.
    """
    b, k = _range(B), _range(K)
    left_B, added_B = tl.full(has_B.shape, 1.0, tl.float32), tl.full(has_B.shape, 0.0, tl.float32)
    left_K, added_K = tl.full(has_K.shape, 1.0, tl.float32), tl.full(has_K.shape, 0.0, tl.float32)
    if B > 1:  # with one token a negative that is the token has no pull, so nothing depends on where it is
        again_BB = (rows_B[:, None] == rows_B[None, :]) & (b[:, None] < b[None, :]) & has_B[None, :]
        again_BK = (rows_B[:, None] == rows_K[None, :]) & has_K[None, :]
        again_B = tl.maximum(tl.max(again_BB.to(tl.int32), axis=1), tl.max(again_BK.to(tl.int32), axis=1))
        for j in range(tl.max(tl.where(has_B, again_B * (b + 1), 0), axis=0)):
            row = tl.sum(tl.where(b == j, rows_B, 0), axis=0)
            shrink = 1.0 - tl.sum(tl.where(b == j, decays_B, 0.0), axis=0)
            grow = tl.sum(tl.where(b == j, grows_B, 0.0), axis=0)
            is_later_B, is_later_K = (rows_B == row) & (b > j), rows_K == row
            left_B = tl.where(is_later_B, left_B * shrink, left_B)
            added_B = tl.where(is_later_B, added_B * shrink + grow, added_B)
            left_K = tl.where(is_later_K, left_K * shrink, left_K)
            added_K = tl.where(is_later_K, added_K * shrink + grow, added_K)
    is_before_KK = (rows_K[:, None] == rows_K[None, :]) & (k[None, :] < k[:, None])
    added_K += tl.sum(tl.where(is_before_KK, grows_K[None, :], 0.0), axis=1)
    return left_B, added_B, left_K, added_K
