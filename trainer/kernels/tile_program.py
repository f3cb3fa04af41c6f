"""The tile as Triton compiles it: a program trains a stream, whose lanes walk their users' targets in step and share negatives.

Shapes: M lanes, K negatives, D dims, W lags; M, K and D padded to powers of two from 16 on, as products of matrices want them.
What predicts a lane's target is h_MD: for the interest the lane's user, whose row stays in registers until its history ends; for
the trail (IS_TRAIL) a weighted sum of the pages around the target. On a CPU the lanes' rows move in turn. Here they move at once:
outputs by what they were at the beginning of the step, the trail's inputs lag after lag. Adagrad's sums of equal rows grow in the
card's order. README.md has the formulas.
"""

import triton
import triton.language as tl

from surf2vec.trainer import draws
from surf2vec.trainer.config import TRAIL_BIASES
from surf2vec.trainer.kernels.programs import _draw, _draw_negatives, _lanes, _mix, consecutive
from surf2vec.trainer.kernels.signature import LAG_RATE, LEAST_LAG, TRAIL_BIAS
from surf2vec.trainer.model.rows import EPSILON

_TILE, _EPSILON, _NUM_BIASES = tl.constexpr(draws.TILE), tl.constexpr(EPSILON), tl.constexpr(TRAIL_BIASES)
_BIAS, _LEAST_LAG, _LAG_RATE = tl.constexpr(TRAIL_BIAS), tl.constexpr(LEAST_LAG), tl.constexpr(LAG_RATE)


@triton.jit(do_not_specialize=["num_items"])  # otherwise Triton compiles again for 1 and for multiples of 16
def train_stream(
    users, user_squares, outputs, output_squares, inputs, input_squares, lags, lag_squares,
    tokens, starts, ends, keys, order, alphas, targets, num_targets, streams, coming, num_coming,
    thresholds, aliases, corrections, l2s, num_items, recency_rate, l2, item_l2, handicap,
    D: tl.constexpr, K: tl.constexpr, M: tl.constexpr, W: tl.constexpr, NUM_FREE: tl.constexpr, IS_TRAIL: tl.constexpr,
    IS_ADAGRAD: tl.constexpr, IS_FROZEN: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Train the targets of one stream, one of each lane at a step. None: users, l2 of the trail; inputs, lags of the interest."""
    first, num_users = tl.load(streams + tl.program_id(0)), tl.load(num_coming + tl.program_id(0))
    key = _mix(tl.load(keys + tl.load(order + first)).to(tl.uint64))
    lane, d = _lanes(M), _lanes(D)
    num_lanes = tl.minimum(M, num_users)
    taken, step = num_lanes, tl.full((), 0, tl.uint64)
    place_M, number_M = lane * 0, lane * 0.0
    place_M, user_M, start_M, length_M, count_M, alpha_M, target_M, row_M, square_M, u_MD = _fill(
        users, user_squares, tokens, starts, ends, order, alphas, targets, num_targets, coming + first, num_users, lane < M,
        place_M, place_M, place_M.to(tl.int64), place_M, place_M, number_M, place_M, place_M, number_M,
        lane[:, None] * d[None, :] * 0.0, D, IS_TRAIL,
    )  # fmt: skip
    next_K = _draw_step(key, step, thresholds, aliases, num_items, K)
    while num_lanes > 0:
        is_on_M, rows_K, place_M, step = place_M < count_M, next_K, place_M + 1, step + 1
        next_K = _draw_step(key, step, thresholds, aliases, num_items, K)
        has_next_M = is_on_M & (place_M < count_M)  # their next targets are loaded while these are trained
        next_target_M, next_row_M = _load_targets(tokens, targets, start_M, place_M, has_next_M)
        if IS_TRAIL:
            _train_sums(
                outputs, output_squares, inputs, input_squares, lags, lag_squares, tokens, corrections, l2s,
                target_M, row_M, start_M, length_M, rows_K, is_on_M, alpha_M, num_items, handicap,
                D, K, W, HAS_WIDE_ATOMICS, PRECISION,
            )  # fmt: skip
        else:
            u_MD, square_M = _train_users(
                outputs, output_squares, corrections, u_MD, square_M, target_M, row_M, length_M, rows_K, is_on_M,
                alpha_M, num_items, recency_rate, l2, item_l2, handicap,
                D, K, NUM_FREE, IS_ADAGRAD, IS_FROZEN, HAS_WIDE_ATOMICS, PRECISION,
            )  # fmt: skip
        target_M, row_M = next_target_M, next_row_M
        ended_M = is_on_M & (place_M >= count_M)
        num_ended = tl.sum(ended_M.to(tl.int32), axis=0)
        if num_ended > 0:
            if not IS_TRAIL:
                _store_users(users, user_squares, user_M, u_MD, square_M, ended_M, D)
            place_M, user_M, start_M, length_M, count_M, alpha_M, target_M, row_M, square_M, u_MD = _fill(
                users, user_squares, tokens, starts, ends, order, alphas, targets, num_targets, coming + first + taken,
                num_users - taken, ended_M, place_M, user_M, start_M, length_M, count_M, alpha_M, target_M, row_M, square_M, u_MD,
                D, IS_TRAIL,
            )  # fmt: skip
            taken += num_ended
            num_lanes = tl.sum((place_M < count_M).to(tl.int32), axis=0)


@triton.jit
def _draw_step(key, step, thresholds, aliases, num_items, K: tl.constexpr):
    """Return the items drawn at a step."""
    k = _lanes(K)
    return _draw_negatives(_draw(key, step, _TILE, k.to(tl.uint64)), k < K, thresholds, aliases, num_items)


@triton.jit
def _fill(
    users, user_squares, tokens, starts, ends, order, alphas, targets, num_targets, coming, num_coming, is_free_M,
    place_M, user_M, start_M, length_M, count_M, alpha_M, target_M, row_M, square_M, u_MD,
    D: tl.constexpr, IS_TRAIL: tl.constexpr,
):  # fmt: skip
    """Return the lanes' state after free ones have taken the next users, at the places `coming` of the order, if any are left."""
    rank_M = tl.cumsum(is_free_M.to(tl.int32), axis=0) - 1
    is_new_M = is_free_M & (rank_M < num_coming)
    at_M = tl.load(coming + rank_M, mask=is_new_M, other=0)
    new_M = tl.load(order + at_M, mask=is_new_M, other=0)
    new_start_M = tl.load(starts + new_M, mask=is_new_M, other=0)
    new_length_M = (tl.load(ends + new_M, mask=is_new_M, other=1) - new_start_M).to(tl.int32)
    new_target_M, new_row_M = _load_targets(tokens, targets, new_start_M, 0, is_new_M)
    if not IS_TRAIL:
        d = _lanes(D)
        has_MD = is_new_M[:, None] & (d < D)[None, :]
        new_MD = tl.load(users + new_M[:, None] * D + d[None, :], mask=has_MD, other=0.0)
        u_MD = tl.where(is_new_M[:, None], new_MD, u_MD)
        square_M = tl.where(is_new_M, tl.load(user_squares + new_M, mask=is_new_M, other=0.0), square_M)
    return (
        tl.where(is_new_M, 0, place_M),
        tl.where(is_new_M, new_M.to(tl.int32), user_M),
        tl.where(is_new_M, new_start_M, start_M),
        tl.where(is_new_M, new_length_M, length_M),
        tl.where(is_new_M, tl.load(num_targets + at_M, mask=is_new_M, other=0), count_M),
        tl.where(is_new_M, tl.load(alphas + at_M, mask=is_new_M, other=0.0), alpha_M),
        tl.where(is_new_M, new_target_M, target_M),
        tl.where(is_new_M, new_row_M, row_M),
        square_M,
        u_MD,
    )


@triton.jit
def _load_targets(tokens, targets, start_M, place_M, is_on_M):
    """Return the targets at these places of the lanes' lists, and their items."""
    target_M = tl.load(targets + start_M + place_M, mask=is_on_M, other=0)
    return target_M, tl.load(tokens + start_M + (target_M >> 1), mask=is_on_M, other=0)


@triton.jit
def _store_users(users, user_squares, user_M, u_MD, square_M, ended_M, D: tl.constexpr):
    d = _lanes(D)
    at_MD = users + user_M.to(tl.int64)[:, None] * D + d[None, :]
    tl.store(at_MD, u_MD, mask=ended_M[:, None] & (d < D)[None, :])
    tl.store(user_squares + user_M, square_M, mask=ended_M)


@triton.jit
def _train_users(
    outputs, output_squares, corrections, u_MD, square_M, target_M, row_M, length_M, rows_K, is_on_M,
    alpha_M, num_items, recency_rate, l2, item_l2, handicap,
    D: tl.constexpr, K: tl.constexpr, NUM_FREE: tl.constexpr, IS_ADAGRAD: tl.constexpr, IS_FROZEN: tl.constexpr,
    HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Train the lanes' users, but for the bias. Returns their rows, and Adagrad's sums."""
    counts_KM = rows_K[:, None] != row_M[None, :]
    steps_MD = _learn(
        outputs, output_squares, corrections, u_MD, row_M, rows_K, counts_KM, is_on_M, alpha_M, item_l2,
        num_items, handicap, D, K, NUM_FREE, False, IS_ADAGRAD, IS_FROZEN, HAS_WIDE_ATOMICS, PRECISION,
    )  # fmt: skip
    age_M = tl.maximum(length_M - 1 - (target_M >> 1), 0)  # a lane without a user has none
    weight_M = 1.0 / (1.0 + age_M.to(tl.float32) * recency_rate)
    l2_M = l2 / tl.sqrt(tl.maximum(length_M, 1).to(tl.float32))
    gradient_MD = weight_M[:, None] * (steps_MD - l2_M[:, None] * u_MD)
    gradient_MD = tl.where((_lanes(D) < NUM_FREE)[None, :], gradient_MD, 0.0)
    rate_M = alpha_M
    if IS_ADAGRAD:
        square_M += tl.sum(gradient_MD * gradient_MD, axis=1) / D
        rate_M = alpha_M / tl.sqrt(square_M + _EPSILON)
    return u_MD + rate_M[:, None] * gradient_MD, square_M


@triton.jit
def _learn(
    outputs, squares, corrections, h_MD, row_M, rows_K, counts_KM, is_on_M, alpha_M, l2, num_items, handicap,
    D: tl.constexpr, K: tl.constexpr, NUM_FREE: tl.constexpr, IS_TRAIL: tl.constexpr,
    IS_ADAGRAD: tl.constexpr, IS_FROZEN: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Score a target of each lane and the negatives that count, and move their rows. Returns the steps of what predicts.

    l2: of all items, or of each lane's, [M].
    """
    d, k = _lanes(D), _lanes(K)
    atomic_d = consecutive(d, num_items, HAS_WIDE_ATOMICS)
    has_K, row_M = k < K, row_M.to(tl.int64)
    starts_K, starts_M = outputs + rows_K * D, outputs + row_M * D
    has_KD, has_MD = has_K[:, None] & (d < D)[None, :], is_on_M[:, None] & (d < D)[None, :]
    v_KD = tl.load(starts_K[:, None] + d[None, :], mask=has_KD, other=0.0, cache_modifier=".cg")
    own_MD = tl.load(starts_M[:, None] + d[None, :], mask=has_MD, other=0.0, cache_modifier=".cg")
    score_M = tl.sum(h_MD * own_MD, axis=1) - tl.load(corrections + row_M, mask=is_on_M, other=0.0) - handicap
    scores_KM = tl.dot(v_KD, tl.trans(h_MD), input_precision=PRECISION)
    scores_KM -= tl.load(corrections + rows_K, mask=has_K, other=0.0)[:, None]
    pull_M, pulls_KM = _pulls(score_M, tl.where(has_K[:, None] & counts_KM, scores_KM, float("-inf")), is_on_M)
    if not IS_FROZEN:
        if IS_TRAIL:  # L2 holds the biases, too, and is not in the sums
            l2_MD = l2[:, None]
            square_M = pull_M * pull_M * tl.sum(h_MD * h_MD, axis=1) / D
        else:
            l2_MD = tl.where(d < NUM_FREE, l2, 0.0)[None, :]
            gradient_MD = pull_M[:, None] * h_MD - l2_MD * own_MD
            square_M = tl.sum(gradient_MD * gradient_MD, axis=1) / D
        rate_M = _rates(squares + row_M, square_M, is_on_M, alpha_M, IS_ADAGRAD)
        steps_KD = tl.dot(pulls_KM, h_MD, input_precision=PRECISION)
        alpha_K = tl.max(tl.where(is_on_M, alpha_M, 0.0), axis=0) + k * 0.0
        rates_K = _rates(squares + rows_K, tl.sum(steps_KD * steps_KD, axis=1) / D, has_K, alpha_K, IS_ADAGRAD)
        step_MD = rate_M[:, None] * (pull_M[:, None] * h_MD - l2_MD * own_MD)
        at_MD, at_KD = starts_M[:, None] + atomic_d[None, :], starts_K[:, None] + atomic_d[None, :]
        tl.atomic_add(at_MD, step_MD, mask=is_on_M[:, None] & (atomic_d < D)[None, :], sem="relaxed")
        tl.atomic_add(at_KD, rates_K[:, None] * steps_KD, mask=has_K[:, None] & (atomic_d < D)[None, :], sem="relaxed")
    return tl.dot(tl.trans(pulls_KM), v_KD, pull_M[:, None] * own_MD, input_precision=PRECISION)


@triton.jit
def _pulls(score_M, scores_KM, is_on_M):
    """Return 1 - probability of each lane's target, and minus the probabilities of the negatives."""
    highest_M = tl.maximum(score_M, tl.max(scores_KM, axis=0))
    e_KM = tl.exp(scores_KM - highest_M[None, :])
    others_M = tl.sum(e_KM, axis=0)
    whole_M = others_M + tl.exp(score_M - highest_M)
    pulls_KM = tl.where(is_on_M[None, :], -e_KM / whole_M[None, :], 0.0)
    return tl.where(is_on_M, others_M / whole_M, 0.0), pulls_KM


@triton.jit
def _rates(squares_N, mean_squares_N, moves_N, alpha_N, IS_ADAGRAD: tl.constexpr):
    """Return the learning rates of N rows, after adding to Adagrad's sums; those of equal rows grow in the card's order."""
    rates_N = alpha_N
    if IS_ADAGRAD:
        before_N = tl.atomic_add(squares_N, mean_squares_N, mask=moves_N, sem="relaxed")
        rates_N = alpha_N / tl.sqrt(tl.where(moves_N, before_N, 0.0) + mean_squares_N + _EPSILON)
    return rates_N


@triton.jit
def _pages(tokens, lags, start_M, length_M, target_M, row_M, is_on_M, lag, W: tl.constexpr):
    """Return the pages at a lag before the targets, or after them, -1 for none or the target itself, and the lag's weights."""
    is_backward_M = (target_M & 1) == 1
    at_M = (target_M >> 1) + tl.where(is_backward_M, lag + 1, -1 - lag)
    page_M = tl.load(tokens + start_M + at_M, mask=is_on_M & (at_M >= 0) & (at_M < length_M), other=-1)
    page_M = tl.where(page_M == row_M, -1, page_M)
    weight_M = tl.load(lags + lag + tl.where(is_backward_M, W, 0), cache_modifier=".cg")
    return page_M, tl.where(page_M >= 0, tl.maximum(weight_M, _LEAST_LAG), 0.0)


@triton.jit
def _train_sums(
    outputs, output_squares, inputs, input_squares, lags, lag_squares, tokens, corrections, l2s,
    target_M, row_M, start_M, length_M, rows_K, is_on_M, alpha_M, num_items, handicap,
    D: tl.constexpr, K: tl.constexpr, W: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Let the sums of the pages around the lanes' targets predict them. Moves the outputs, these pages' inputs, and the lags."""
    d, is_backward_M = _lanes(D), (target_M & 1) == 1
    counts_KM = rows_K[:, None] != row_M[None, :]
    h_MD, squares_M = row_M[:, None] * d[None, :] * 0.0, row_M * 0.0
    for lag in range(W):
        page_M, weight_M = _pages(tokens, lags, start_M, length_M, target_M, row_M, is_on_M, lag, W)
        has_MD = (page_M >= 0)[:, None] & (d < D)[None, :]
        at_MD = inputs + page_M.to(tl.int64)[:, None] * D + d[None, :]
        h_MD += weight_M[:, None] * tl.load(at_MD, mask=has_MD, other=0.0, cache_modifier=".cg")
        squares_M += weight_M * weight_M
        counts_KM = counts_KM & (rows_K[:, None] != page_M[None, :])
    scale_M = 1.0 / tl.sqrt(tl.sqrt(tl.maximum(squares_M, 1e-12)))
    bias_M = D - 1 - is_backward_M.to(tl.int32)
    h_MD = tl.where(d[None, :] == bias_M[:, None], _BIAS, scale_M[:, None] * h_MD)
    learns_M = squares_M > 0  # otherwise all pages around it are the target itself
    l2_M = tl.load(l2s + row_M, mask=learns_M, other=0.0)
    g_MD = _learn(
        outputs, output_squares, corrections, h_MD, row_M, rows_K, counts_KM, learns_M, alpha_M, l2_M,
        num_items, handicap, D, K, D, True, True, False, HAS_WIDE_ATOMICS, PRECISION,
    )  # fmt: skip
    g_MD = tl.where((d < D - _NUM_BIASES)[None, :], g_MD, 0.0)
    _move_inputs(
        inputs, input_squares, lags, lag_squares, tokens, l2s, g_MD, scale_M, start_M, length_M, target_M, row_M,
        learns_M, alpha_M, num_items, D, W, HAS_WIDE_ATOMICS,
    )  # fmt: skip


@triton.jit
def _move_inputs(
    inputs, input_squares, lags, lag_squares, tokens, l2s, g_MD, scale_M, start_M, length_M, target_M, row_M,
    learns_M, alpha_M, num_items, D: tl.constexpr, W: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr,
):  # fmt: skip
    """Move the inputs of the pages around the targets, lag after lag, then the weights of the lags, by the steps of the sums."""
    d, is_backward_M = _lanes(D), (target_M & 1) == 1
    atomic_d = consecutive(d, num_items, HAS_WIDE_ATOMICS)
    square_M = tl.sum(g_MD * g_MD, axis=1) / D
    lag_L = tl.arange(0, triton.next_power_of_2(2 * W))
    steps_L = lag_L * 0.0
    for lag in range(W):
        page_M, weight_M = _pages(tokens, lags, start_M, length_M, target_M, row_M, learns_M, lag, W)
        is_page_M, at_M, factor_M = page_M >= 0, page_M.to(tl.int64), weight_M * scale_M
        at_MD = inputs + at_M[:, None] * D
        has_MD = is_page_M[:, None] & (d < D)[None, :]
        c_MD = tl.load(at_MD + d[None, :], mask=has_MD, other=0.0, cache_modifier=".cg")
        towards_M = tl.sum(g_MD * c_MD, axis=1) * scale_M
        before = tl.sum(tl.where(is_backward_M, 0.0, towards_M), axis=0)
        after = tl.sum(tl.where(is_backward_M, towards_M, 0.0), axis=0)
        steps_L += tl.where(lag_L == lag, before, 0.0) + tl.where(lag_L == W + lag, after, 0.0)
        rate_M = _rates(input_squares + at_M, factor_M * factor_M * square_M, is_page_M, alpha_M, True)
        shrink_M = rate_M * tl.load(l2s + at_M, mask=is_page_M, other=0.0)
        step_MD = (rate_M * factor_M)[:, None] * g_MD - shrink_M[:, None] * c_MD
        is_moved_MD = is_page_M[:, None] & (atomic_d < D - _NUM_BIASES)[None, :]
        tl.atomic_add(at_MD + atomic_d[None, :], step_MD, mask=is_moved_MD, sem="relaxed")
    _move_lags(lags, lag_squares, lag_L, steps_L, tl.max(tl.where(learns_M, alpha_M, 0.0), axis=0))


@triton.jit
def _move_lags(lags, squares, lag_L, steps_L, alpha):
    """Move the lags' weights by the sum of a step. All programs share them: each adds, then raises what fell below the least."""
    moves_L = steps_L != 0
    rate_L = _rates(squares + lag_L, steps_L * steps_L, moves_L, _LAG_RATE * alpha, True)
    tl.atomic_add(lags + lag_L, rate_L * steps_L, mask=moves_L, sem="relaxed")
    tl.atomic_max(lags + lag_L, steps_L * 0.0 + _LEAST_LAG, mask=moves_L, sem="relaxed")
