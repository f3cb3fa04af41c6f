"""The tile as Triton compiles it: a program trains a stream, whose lanes walk their users' targets in step and share negatives.

Shapes: M lanes, K negatives, B of them at a time, D dims, W lags; M, B and D padded to powers of two from 16 on, as products of
matrices want them.
What predicts a lane's target is h_MD: for the interest the lane's user, whose row stays in registers until its history ends; for
the trail (IS_TRAIL) a weighted sum of the pages around the target. The lanes move at once, by the rows as they were at the step's
beginning and by Adagrad's sums after all have been added; only inputs move lag after lag. So no lane waits for another. Several
blocks of negatives are read twice: for the softmax, whose maximum and sum run along, and to move them, by their scores as they
are then. README.md has the formulas.
"""

import triton
import triton.language as tl

from surf2vec.trainer.config import TRAIL_BIAS, TRAIL_BIASES
from surf2vec.trainer.kernels.programs import _draw_block, _lanes, _mix, _move_inputs, _rates, as_loaded, consecutive
from surf2vec.trainer.kernels.signature import LAG_RATE, LEAST_LAG, TRAIL_RATE
from surf2vec.trainer.model.rows import EPSILON

_EPSILON, _NUM_BIASES, _BIAS = tl.constexpr(EPSILON), tl.constexpr(TRAIL_BIASES), tl.constexpr(TRAIL_BIAS)
_TRAIL_RATE, _LEAST_LAG, _LAG_RATE = tl.constexpr(TRAIL_RATE), tl.constexpr(LEAST_LAG), tl.constexpr(LAG_RATE)


@triton.jit(do_not_specialize=["num_items"])  # otherwise Triton compiles again for 1 and for multiples of 16
def train_stream(
    users, user_squares, outputs, output_squares, inputs, input_squares, lags, lag_squares,
    tokens, starts, ends, keys, order, alphas, targets, num_targets, streams, coming, num_coming,
    thresholds, aliases, corrections, l2s, num_items, recency_rate, l2, item_l2, handicap,
    D: tl.constexpr, K: tl.constexpr, B: tl.constexpr, M: tl.constexpr, W: tl.constexpr, NUM_FREE: tl.constexpr,
    IS_TRAIL: tl.constexpr, IS_ADAGRAD: tl.constexpr, IS_FROZEN: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Train the targets of one stream, one of each lane at a step. None: users, l2 of the trail; inputs, lags of the interest."""
    first, num_users = tl.load(streams + tl.program_id(0)), tl.load(num_coming + tl.program_id(0))
    key = _mix(tl.load(keys + tl.load(order + first)).to(tl.uint64))
    lane, num_lanes = _lanes(M), tl.minimum(M, num_users)
    taken, step = num_lanes, tl.full((), 0, tl.uint64)
    histories, place_M = (tokens, starts, ends, order, alphas, targets, num_targets), lane * 0
    at_M = tl.load(coming + first + lane, mask=lane < num_lanes, other=0)
    user_M, start_M, length_M, count_M, alpha_M, alpha = _look_up(histories, at_M, lane < num_lanes, IS_TRAIL)
    if not IS_TRAIL:
        u_MD, square_M = _load_users(users, user_squares, user_M, 0.0, 0.0, lane < num_lanes, D)
    target_M, row_M = _load_targets(tokens, targets, start_M, place_M, lane < num_lanes)
    noise, items = (key, thresholds, aliases, num_items), (outputs, output_squares, corrections, tokens, lags)
    next_B = _draw_block(noise, step, 0, K, B)
    while num_lanes > 0:
        is_on_M, rows_B, place_M = place_M < count_M, next_B, place_M + 1  # a lane without a user counts no targets
        next_B = _draw_block(noise, step + 1, 0, K, B)
        has_next_M = place_M < count_M  # their next targets are loaded while these are trained
        next_target_M, next_row_M = _load_targets(tokens, targets, start_M, place_M, has_next_M)
        look = (target_M, row_M, start_M, length_M, is_on_M)
        if IS_TRAIL:
            _train_sums(
                items, inputs, input_squares, lag_squares, l2s, noise, step, rows_B, look, alpha_M, alpha, handicap,
                D, K, B, W, HAS_WIDE_ATOMICS, PRECISION,
            )  # fmt: skip
        else:
            u_MD, square_M = _train_users(
                items, noise, step, rows_B, u_MD, square_M, look, alpha_M, alpha, recency_rate, l2, item_l2, handicap,
                D, K, B, NUM_FREE, IS_ADAGRAD, IS_FROZEN, HAS_WIDE_ATOMICS, PRECISION,
            )  # fmt: skip
        target_M, row_M, step = next_target_M, next_row_M, step + 1
        ended_M = is_on_M & (place_M >= count_M)
        if tl.sum(ended_M.to(tl.int32), axis=0) > 0:
            if not IS_TRAIL:
                _store_users(users, user_squares, user_M, u_MD, square_M, ended_M, D)
            at_M, is_new_M = _take_users(coming + first + taken, ended_M, at_M, num_users - taken)
            is_on_M = is_new_M | has_next_M
            user_M, start_M, length_M, count_M, alpha_M, alpha = _look_up(histories, at_M, is_on_M, IS_TRAIL)
            if not IS_TRAIL:
                u_MD, square_M = _load_users(users, user_squares, user_M, u_MD, square_M, is_new_M, D)
            taken += tl.sum(is_new_M.to(tl.int32), axis=0)
            num_lanes, place_M = tl.sum(is_on_M.to(tl.int32), axis=0), tl.where(ended_M, 0, place_M)
            target_M, row_M = _load_targets(tokens, targets, start_M, place_M, is_on_M)


@triton.jit
def _take_users(coming, ended_M, at_M, num_left):
    """Let lanes whose users have ended take the users that come next, while there are any.

    Returns the lanes' places of the order, and which of them are new.
    """
    rank_M = tl.cumsum(ended_M.to(tl.int32), axis=0) - 1
    is_new_M = ended_M & (rank_M < num_left)
    return tl.where(is_new_M, tl.load(coming + rank_M, mask=is_new_M, other=0), at_M), is_new_M


@triton.jit
def _look_up(histories, at_M, is_on_M, IS_TRAIL: tl.constexpr):
    """Return the users at the lanes' places of the order, the starts and lengths of their histories, how many targets they have,
    and their learning rates, then that of the first lane that has a user.
    """
    _, starts, ends, order, alphas, _, num_targets = histories
    user_M = tl.load(order + at_M, mask=is_on_M, other=0)
    start_M = tl.load(starts + user_M, mask=is_on_M, other=0)
    length_M = (tl.load(ends + user_M, mask=is_on_M, other=1) - start_M).to(tl.int32)
    alpha_M = tl.load(alphas + at_M, mask=is_on_M, other=0.0) * (_TRAIL_RATE if IS_TRAIL else 1.0)
    lane = tl.arange(0, alpha_M.shape[0])
    first = tl.min(tl.where(is_on_M, lane, alpha_M.shape[0]), axis=0)
    alpha = tl.sum(tl.where(lane == first, alpha_M, 0.0), axis=0)
    return user_M, start_M, length_M, tl.load(num_targets + at_M, mask=is_on_M, other=0), alpha_M, alpha


@triton.jit
def _load_users(users, user_squares, user_M, u_MD, square_M, is_new_M, D: tl.constexpr):
    """Return the lanes' rows and Adagrad's sums after new lanes have loaded theirs."""
    d = _lanes(D)
    new_MD = tl.load(users + user_M[:, None] * D + d[None, :], mask=is_new_M[:, None] & (d < D)[None, :], other=0.0)
    u_MD = tl.where(is_new_M[:, None], new_MD, u_MD)
    return u_MD, tl.where(is_new_M, tl.load(user_squares + user_M, mask=is_new_M, other=0.0), square_M)


@triton.jit
def _load_targets(tokens, targets, start_M, place_M, is_on_M):
    """Return the targets at these places of the lanes' lists, and their items."""
    target_M = tl.load(targets + start_M + place_M, mask=is_on_M, other=0)
    return target_M, tl.load(tokens + start_M + (target_M >> 2), mask=is_on_M, other=0)


@triton.jit
def _store_users(users, user_squares, user_M, u_MD, square_M, ended_M, D: tl.constexpr):
    d = _lanes(D)
    at_MD = users + user_M[:, None] * D + d[None, :]
    tl.store(at_MD, u_MD, mask=ended_M[:, None] & (d < D)[None, :])
    tl.store(user_squares + user_M, square_M, mask=ended_M)


@triton.jit
def _train_users(
    items, noise, step, rows_B, u_MD, square_M, look, alpha_M, alpha, recency_rate, l2, item_l2, handicap,
    D: tl.constexpr, K: tl.constexpr, B: tl.constexpr, NUM_FREE: tl.constexpr, IS_ADAGRAD: tl.constexpr,
    IS_FROZEN: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Train the lanes' users, but for the bias. Returns their rows, and Adagrad's sums."""
    target_M, _, _, length_M, _ = look
    steps_MD = _learn(
        items, noise, step, rows_B, u_MD, look, alpha_M, alpha, item_l2, handicap,
        D, K, B, 0, NUM_FREE, IS_ADAGRAD, IS_FROZEN, HAS_WIDE_ATOMICS, PRECISION,
    )  # fmt: skip
    age_M = tl.maximum(length_M - 1 - (target_M >> 2), 0)  # a lane without a user has none
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
    items, noise, step, rows_B, h_MD, look, alpha_M, alpha, l2, handicap,
    D: tl.constexpr, K: tl.constexpr, B: tl.constexpr, W: tl.constexpr, NUM_FREE: tl.constexpr, IS_ADAGRAD: tl.constexpr,
    IS_FROZEN: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Score a target of each lane and the negatives that count, and move their rows. Returns the steps of what predicts.

    items: the outputs with sums and corrections, tokens and lags; rows_B: the first block of negatives; look: the lanes' targets,
    their items, the starts and lengths of histories, and which lanes learn; l2: of all items, or of each lane's, [M].
    W: 0 for the interest.
    """
    outputs, squares, corrections, _, _ = items
    _, row_M, _, _, is_on_M = look
    d, atomic_d = _lanes(D), consecutive(_lanes(D), noise[3], HAS_WIDE_ATOMICS)
    starts_M, has_MD = outputs + row_M.to(tl.int64) * D, is_on_M[:, None] & (d < D)[None, :]
    own_MD = tl.load(starts_M[:, None] + d[None, :], mask=has_MD, other=0.0, cache_modifier=".cg")
    score_M = tl.sum(h_MD * own_MD, axis=1) - tl.load(corrections + row_M, mask=is_on_M, other=0.0) - handicap
    v_BD, scores_BM, highest_M, others_M, sums_MD = _sum_up(
        items, noise, step, rows_B, h_MD, look, score_M, D, K, B, W, PRECISION
    )
    whole_M = others_M + tl.exp(score_M - highest_M)
    pull_M, share_M = tl.where(is_on_M, others_M / whole_M, 0.0), tl.where(is_on_M, -1.0 / whole_M, 0.0)
    pulls_BM = share_M[None, :] * tl.exp(scores_BM - highest_M[None, :])
    if not IS_FROZEN:
        if W > 0:  # L2 holds the biases, too, and is not in the sums
            l2_MD = l2[:, None]
            square_M = pull_M * pull_M * tl.sum(h_MD * h_MD, axis=1) / D
        else:
            l2_MD = tl.where(d < NUM_FREE, l2, 0.0)[None, :]
            gradient_MD = pull_M[:, None] * h_MD - l2_MD * own_MD
            square_M = tl.sum(gradient_MD * gradient_MD, axis=1) / D
        rate_M = alpha_M
        if IS_ADAGRAD:
            rate_M = _rates(squares, row_M, square_M, is_on_M, alpha_M)
        for first in tl.range(0, K, B, num_stages=1):
            if K > B:
                rows_B = _draw_block(noise, step, first, K, B)
                _v_BD, scores_BM = _score(items, h_MD, look, rows_B, first, D, K, B, W, PRECISION)
                pulls_BM = share_M[None, :] * tl.exp(tl.minimum(scores_BM - highest_M[None, :], 0.0))
            _move_negatives(items, rows_B, first, pulls_BM, h_MD, alpha, atomic_d, D, K, B, IS_ADAGRAD, PRECISION)
        step_MD = rate_M[:, None] * (pull_M[:, None] * h_MD - l2_MD * own_MD)
        at_MD = starts_M[:, None] + atomic_d[None, :]
        tl.atomic_add(at_MD, step_MD, mask=is_on_M[:, None] & (atomic_d < D)[None, :], sem="relaxed")
    if K > B:
        return as_loaded(pull_M[:, None] * own_MD + share_M[:, None] * sums_MD)
    return as_loaded(tl.dot(tl.trans(pulls_BM), v_BD, pull_M[:, None] * own_MD, input_precision=PRECISION))


@triton.jit
def _sum_up(
    items, noise, step, rows_B, h_MD, look, highest_M,
    D: tl.constexpr, K: tl.constexpr, B: tl.constexpr, W: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the rows of the last block of negatives and their scores; the highest scores, own scores included; and with
    e = exp(score - highest) the sums of e and, if there are several blocks, of e times the negatives' rows.
    """
    others_M, sums_MD = tl.zeros(highest_M.shape, tl.float32), tl.zeros(h_MD.shape, tl.float32)
    v_BD, scores_BM = tl.zeros((B, h_MD.shape[1]), tl.float32), tl.zeros((B, h_MD.shape[0]), tl.float32)
    for first in tl.range(0, K, B, num_stages=1):
        if first > 0:
            rows_B = _draw_block(noise, step, first, K, B)
        v_BD, scores_BM = _score(items, h_MD, look, rows_B, first, D, K, B, W, PRECISION)
        before_M, highest_M = highest_M, tl.maximum(highest_M, tl.max(scores_BM, axis=0))
        e_BM = tl.exp(scores_BM - highest_M[None, :])
        if K > B:
            shrink_M = tl.exp(before_M - highest_M)
            others_M *= shrink_M
            sums_MD = tl.dot(tl.trans(e_BM), v_BD, sums_MD * shrink_M[:, None], input_precision=PRECISION)
        others_M += tl.sum(e_BM, axis=0)
    return v_BD, scores_BM, highest_M, others_M, sums_MD


@triton.jit
def _score(
    items, h_MD, look, rows_B, first,
    D: tl.constexpr, K: tl.constexpr, B: tl.constexpr, W: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the rows of a block of negatives and their scores, -inf for those that are no negatives of a lane."""
    outputs, _, corrections, tokens, lags = items
    d, has_B = _lanes(D), first + tl.arange(0, B) < K
    at_BD, has_BD = outputs + rows_B[:, None] * D + d[None, :], has_B[:, None] & (d < D)[None, :]
    v_BD = tl.load(at_BD, mask=has_BD, other=0.0, cache_modifier=".cg")
    counts_BM = has_B[:, None] & (rows_B[:, None] != look[1][None, :])
    for lag in tl.static_range(W):
        page_M, _ = _pages(tokens, lags, look, lag, W)
        counts_BM = counts_BM & (rows_B[:, None] != page_M[None, :])
    scores_BM = tl.dot(v_BD, tl.trans(h_MD), input_precision=PRECISION)
    scores_BM -= tl.load(corrections + rows_B, mask=has_B, other=0.0)[:, None]
    return v_BD, tl.where(counts_BM, scores_BM, float("-inf"))


@triton.jit
def _move_negatives(
    items, rows_B, first, pulls_BM, h_MD, alpha, atomic_d,
    D: tl.constexpr, K: tl.constexpr, B: tl.constexpr, IS_ADAGRAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Move a block of negatives. An item that was drawn twice makes the same step twice, whichever of the two is first."""
    outputs, squares, _, _, _ = items
    has_B = first + tl.arange(0, B) < K
    steps_BD, rates_B = tl.dot(pulls_BM, h_MD, input_precision=PRECISION), alpha + rows_B * 0.0
    if IS_ADAGRAD:
        rates_B = _rates(squares, rows_B, tl.sum(steps_BD * steps_BD, axis=1) / D, has_B, rates_B)
    at_BD = outputs + rows_B[:, None] * D + atomic_d[None, :]
    tl.atomic_add(at_BD, rates_B[:, None] * steps_BD, mask=has_B[:, None] & (atomic_d < D)[None, :], sem="relaxed")


@triton.jit
def _pages(tokens, lags, look, lag, W: tl.constexpr):
    """Return the pages at a lag before the targets, or after them, -1 for none or the target itself, and the lag's weights."""
    target_M, row_M, start_M, length_M, is_on_M = look
    is_backward_M = (target_M & 1) == 1
    at_M = (target_M >> 2) + tl.where(is_backward_M, lag + 1, -1 - lag)
    looks_M = is_on_M & (((target_M & 2) == 0) | (lag == 0))
    page_M = tl.load(tokens + start_M + at_M, mask=looks_M & (at_M >= 0) & (at_M < length_M), other=-1)
    page_M = tl.where(page_M == row_M, -1, page_M)
    weight_M = tl.load(lags + lag + tl.where(is_backward_M, W, 0), cache_modifier=".cg")
    return page_M, tl.where(page_M >= 0, tl.maximum(weight_M, _LEAST_LAG), 0.0)


@triton.jit
def _train_sums(
    items, inputs, input_squares, lag_squares, l2s, noise, step, rows_B, look, alpha_M, alpha, handicap,
    D: tl.constexpr, K: tl.constexpr, B: tl.constexpr, W: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Let the sums of the pages around the lanes' targets predict them. Moves the outputs, these pages' inputs, and the lags."""
    _, _, _, tokens, lags = items
    target_M, row_M, start_M, length_M, _ = look
    d, is_backward_M = _lanes(D), (target_M & 1) == 1
    h_MD, squares_M = row_M[:, None] * d[None, :] * 0.0, row_M * 0.0
    for lag in range(W):
        page_M, weight_M = _pages(tokens, lags, look, lag, W)
        has_MD = (page_M >= 0)[:, None] & (d < D)[None, :]
        at_MD = inputs + page_M.to(tl.int64)[:, None] * D + d[None, :]
        h_MD += weight_M[:, None] * tl.load(at_MD, mask=has_MD, other=0.0, cache_modifier=".cg")
        squares_M += weight_M * weight_M
    scale_M = 1.0 / tl.sqrt(tl.sqrt(tl.maximum(squares_M, 1e-12)))
    bias_M = D - 1 - is_backward_M.to(tl.int32)
    h_MD = tl.where(d[None, :] == bias_M[:, None], _BIAS, scale_M[:, None] * h_MD)
    learns_M = squares_M > 0  # otherwise all pages around it are the target itself
    look = (target_M, row_M, start_M, length_M, learns_M)
    g_MD = _learn(
        items, noise, step, rows_B, h_MD, look, alpha_M, alpha, tl.load(l2s + row_M, mask=learns_M, other=0.0), handicap,
        D, K, B, W, D, True, False, HAS_WIDE_ATOMICS, PRECISION,
    )  # fmt: skip
    g_MD = tl.where((d < D - _NUM_BIASES)[None, :], g_MD, 0.0)
    atomic_d = consecutive(d, noise[3], HAS_WIDE_ATOMICS)
    square_M = tl.sum(g_MD * g_MD, axis=1) / D
    for lag in range(W):
        page_M, weight_M = _pages(tokens, lags, look, lag, W)
        factor_M = weight_M * scale_M
        tl.atomic_add(input_squares + page_M, factor_M * factor_M * square_M, mask=page_M >= 0, sem="relaxed")
    tl.debug_barrier()  # what other threads have added is read
    lag_L = tl.arange(0, triton.next_power_of_2(2 * W))
    steps_ML = row_M[:, None] * lag_L[None, :] * 0.0
    for lag in range(W):  # inputs move lag after lag
        page_M, weight_M = _pages(tokens, lags, look, lag, W)
        towards_M = scale_M * _move_inputs(
            inputs, input_squares, l2s, g_MD, page_M, weight_M * scale_M, alpha_M, atomic_d, D, W
        )
        at_M = lag + tl.where(is_backward_M, W, 0)
        steps_ML = tl.where(lag_L[None, :] == at_M[:, None], towards_M[:, None], steps_ML)
    _move_lags(lags, lag_squares, lag_L, tl.sum(steps_ML, axis=0), alpha)


@triton.jit
def _move_lags(lags, squares, lag_L, steps_L, alpha):
    """Move the lags' weights by the sum of a step. All programs share them: each adds, then raises what fell below the least."""
    moves_L, mean_squares_L = steps_L != 0, steps_L * steps_L
    before_L = tl.atomic_add(squares + lag_L, mean_squares_L, mask=moves_L, sem="relaxed")
    rate_L = _LAG_RATE * alpha / tl.sqrt(tl.where(moves_L, before_L, 0.0) + mean_squares_L + _EPSILON)
    tl.atomic_add(lags + lag_L, rate_L * steps_L, mask=moves_L, sem="relaxed")
    tl.atomic_max(lags + lag_L, steps_L * 0.0 + _LEAST_LAG, mask=moves_L, sem="relaxed")
