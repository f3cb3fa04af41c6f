"""The parts of the GPU kernel that Triton compiles: one program subsamples a user's tokens, one trains a user.

Shapes: D dims, K negatives. Arrays in a program are padded to powers of two, the rest masked.
"""

import triton
import triton.language as tl

from surf2vec.trainer import draws
from surf2vec.trainer.model.objectives import MAX_SCORE
from surf2vec.trainer.model.rows import EPSILON

_GAMMA, _MIX_1, _MIX_2 = tl.constexpr(draws.GAMMA), tl.constexpr(draws.MIX_1), tl.constexpr(draws.MIX_2)
_SUBSAMPLE, _NEGATIVE, _ROUND = (tl.constexpr(purpose) for purpose in (draws.SUBSAMPLE, draws.NEGATIVE, draws.ROUND))
_DRAW_BITS, _PURPOSE_BITS = tl.constexpr(draws.DRAW_BITS), tl.constexpr(draws.PURPOSE_BITS)
_LOW_32, _EPSILON = tl.constexpr(2**32 - 1), tl.constexpr(EPSILON)
_MAX_SCORE = tl.constexpr(MAX_SCORE)


@triton.jit
def _range(n: tl.constexpr):
    """Return 0, 1, ... up to n's next power of two, the size of Triton's arrays."""
    return tl.arange(0, triton.next_power_of_2(n))


@triton.jit
def consecutive(d, num_items, HAS_WIDE_ATOMICS: tl.constexpr):
    """Return d, so that a warp's atomic adds go to addresses in a row.

    From sm_90 on a thread adds 16 bytes at once. Before, Triton would let a thread add four numbers that follow each other, one
    after the other, while the threads beside it are 16 bytes away. So this hides from it that they follow each other.
    """
    return d if HAS_WIDE_ATOMICS else d + tl.minimum(num_items, 0)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * _MIX_1
    x = (x ^ (x >> 27)) * _MIX_2
    return x ^ (x >> 31)


@triton.jit
def _draw(key, position, purpose: tl.constexpr, number):
    """Return one 64-bit draw, as surf2vec.trainer.draws defines it; key, position and number are uint64."""
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
    D: tl.constexpr, K: tl.constexpr, NUM_FREE: tl.constexpr,
    IS_SOFTMAX: tl.constexpr, IS_ADAGRAD: tl.constexpr, IS_FROZEN: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr,
):  # fmt: skip
    """Train one user over all its kept tokens, each against its own negatives."""
    user = tl.load(order + tl.program_id(0))
    alpha = tl.load(alphas + tl.program_id(0))
    count = tl.load(num_kept + tl.program_id(0))
    start = tl.load(starts + user)
    newest = (tl.load(ends + user) - start).to(tl.int32) - 1
    user_l2 = l2 / tl.sqrt(tl.maximum(newest + 1, 1).to(tl.float32))
    key = _mix(tl.load(keys + user).to(tl.uint64))
    d, k = _range(D), _range(K)
    atomic_d = consecutive(d, num_items, HAS_WIDE_ATOMICS)
    u_D = tl.load(users + user * D + d, mask=d < D, other=0.0)
    square = tl.load(user_squares + user)
    for i in range(count):
        position = tl.load(kept + start + i)
        row = tl.load(tokens + start + position).to(tl.int64)
        bits_K = _draw(key, position.to(tl.uint64), _NEGATIVE, (k + 1).to(tl.uint64))
        rows_K = _draw_negatives(bits_K, k < K, thresholds, aliases, num_items)
        step_D = _learn(
            outputs, output_squares, u_D, row, rows_K, corrections, atomic_d, handicap, alpha, item_l2,
            D, K, NUM_FREE, IS_SOFTMAX, IS_ADAGRAD, IS_FROZEN,
        )  # fmt: skip
        weight = 1.0 / (1.0 + (newest - position).to(tl.float32) * recency_rate)
        gradient_D = tl.where(d < NUM_FREE, weight * (step_D - user_l2 * u_D), 0.0)
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
    outputs, squares, u_D, row, rows_K, corrections, atomic_d, handicap, alpha, item_l2,
    D: tl.constexpr, K: tl.constexpr, NUM_FREE: tl.constexpr,
    IS_SOFTMAX: tl.constexpr, IS_ADAGRAD: tl.constexpr, IS_FROZEN: tl.constexpr,
):  # fmt: skip
    """The user's row predicts a token against K negatives: moves the outputs, returns the step up of u_D."""
    d, k = _range(D), _range(K)
    has_D, has_K = d < D, k < K
    at_D, at_KD, has_KD = (
        outputs + row * D + d,
        outputs + rows_K[:, None] * D + d[None, :],
        has_K[:, None] & has_D[None, :],
    )
    v_D = tl.load(at_D, mask=has_D, other=0.0, cache_modifier=".cg")
    v_KD = tl.load(at_KD, mask=has_KD, other=0.0, cache_modifier=".cg")
    score, scores_K = tl.sum(v_D * u_D, axis=0), tl.sum(v_KD * u_D[None, :], axis=1)
    pull, pulls_K = _pulls(score, scores_K, row, rows_K, has_K, corrections, handicap, IS_SOFTMAX)
    step_D = pull * v_D + tl.sum(pulls_K[:, None] * v_KD, axis=0)
    if not IS_FROZEN:
        rate, rates_K = alpha, tl.full(has_K.shape, 0.0, tl.float32) + alpha
        gradient_D = pull * u_D - tl.where(d < NUM_FREE, item_l2 * v_D, 0.0)
        if IS_ADAGRAD:
            mean_square = tl.sum(gradient_D * gradient_D, axis=0) / D
            rate = alpha / tl.sqrt(tl.atomic_add(squares + row, mean_square, sem="relaxed") + mean_square + _EPSILON)
            mean_squares_K = pulls_K * pulls_K * (tl.sum(u_D * u_D, axis=0) / D)
            before_K = tl.atomic_add(squares + rows_K, mean_squares_K, mask=has_K, sem="relaxed")
            rates_K = alpha / tl.sqrt(tl.where(has_K, before_K, 0.0) + mean_squares_K + _EPSILON)
        grows_K = rates_K * pulls_K
        at_D, at_KD = outputs + row * D + atomic_d, outputs + rows_K[:, None] * D + atomic_d[None, :]
        is_moved_D, is_moved_KD = atomic_d < D, has_K[:, None] & (atomic_d < D)[None, :]
        tl.atomic_add(at_D, rate * gradient_D, mask=is_moved_D, sem="relaxed")
        tl.atomic_add(at_KD, grows_K[:, None] * u_D[None, :], mask=is_moved_KD, sem="relaxed")
        # An item that was drawn twice has moved when its second turn comes; loading it again would take a row's latency.
        is_before_KK = (rows_K[:, None] == rows_K[None, :]) & (k[None, :] < k[:, None])
        added_K = tl.sum(tl.where(is_before_KK, grows_K[None, :], 0.0), axis=1)
        step_D += tl.sum(pulls_K * added_K, axis=0) * u_D
    return step_D


@triton.jit
def _pulls(score, scores_K, row, rows_K, has_K, corrections, handicap, IS_SOFTMAX: tl.constexpr):
    """Return 1 - probability of the token, and minus the probability of each negative; 0 of one that is the token itself."""
    counts_K = has_K & (rows_K != row)
    if IS_SOFTMAX:
        score -= tl.load(corrections + row) + handicap
        scores_K = tl.where(counts_K, scores_K - tl.load(corrections + rows_K, mask=has_K, other=0.0), float("-inf"))
        highest = tl.maximum(score, tl.max(scores_K, axis=0))
        e_K = tl.exp(scores_K - highest)
        others = tl.sum(e_K, axis=0)
        whole = others + tl.exp(score - highest)
        pull, pulls_K = others / whole, -e_K / whole
    else:
        p_K = tl.where(tl.abs(scores_K) < _MAX_SCORE, 1.0 / (1.0 + tl.exp(-scores_K)), 0.0)
        pulls_K = tl.where(counts_K, -p_K, 0.0)
        pull = tl.where(tl.abs(score) < _MAX_SCORE, 1.0 / (1.0 + tl.exp(score)), 0.0)
    return pull, pulls_K


@triton.jit
def round_user(numbers, keys, halves, D: tl.constexpr):
    """Write the upper halves of a user's numbers, float32 bits int32[n, D], rounded at random as compiled_draws.round_vectors."""
    user = tl.program_id(0).to(tl.int64)
    d = _range(D)
    key = _mix(tl.load(keys + user).to(tl.uint64))
    bits_D = tl.load(numbers + user * D + d, mask=d < D, other=0).to(tl.uint32).to(tl.uint64)
    shifts_D = ((d & 3) * 16).to(tl.uint64)
    noise_D = (_draw(key, (d >> 2).to(tl.uint64), _ROUND, tl.full(d.shape, 0, tl.uint64)) >> shifts_D) & 0xFFFF
    tl.store(halves + user * D + d, ((bits_D + noise_D) >> 16).to(tl.int16), mask=d < D)
