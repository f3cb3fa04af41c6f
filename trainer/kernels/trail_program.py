"""The trail as Triton compiles it: a program lists a user's targets, one trains a stream, whose lanes walk their targets in step.

Shapes: M lanes, K negatives, D dims, W lags; K and D are padded as in tile_program.py, whose parts this one shares. A lane is a
place in a list of targets, as nothing is kept for a user. Outputs move by what they were at the beginning of the step, inputs lag
after lag, the lanes of a lag at once; Adagrad's sums of equal rows grow in the lanes' turns. README.md has the formulas.
"""

import triton
import triton.language as tl

from surf2vec.trainer import draws
from surf2vec.trainer.config import TRAIL_BIASES
from surf2vec.trainer.kernels.programs import _draw, _mix, consecutive
from surf2vec.trainer.kernels.signature import LAG_RATE, LEAST_LAG, TRAIL_BIAS, TRAIL_TILE_USERS
from surf2vec.trainer.kernels.tile_program import _NO_TURN, _close_ranks, _draw_step, _lanes, _pulls, _rates, _same_rows
from surf2vec.trainer.model.rows import EPSILON

_WINDOW, _EPSILON, _NUM_BIASES = tl.constexpr(draws.WINDOW), tl.constexpr(EPSILON), tl.constexpr(TRAIL_BIASES)
_BIAS, _LEAST_LAG, _LAG_RATE = tl.constexpr(TRAIL_BIAS), tl.constexpr(LEAST_LAG), tl.constexpr(LAG_RATE)
_M = tl.constexpr(TRAIL_TILE_USERS)


@triton.jit(do_not_specialize=["backward", "turn", "every"])
def list_targets(
    tokens, starts, ends, hashes, keys, order, shares, targets, num_targets, backward, turn, every, CHUNK: tl.constexpr
):  # fmt: skip
    """Write a user's targets to targets[start:], as compiled_trail.list_targets: twice a position, plus 1 if backward.

    backward: the share of rare items that are predicted backward, of 2**30.
    """
    user = tl.load(order + tl.program_id(0))
    start = tl.load(starts + user)
    length = (tl.load(ends + user) - start).to(tl.int32)
    key = _mix(tl.load(keys + user).to(tl.uint64))
    turn += (tl.load(hashes + user).to(tl.uint64) % every.to(tl.uint64)).to(tl.int32)
    num, most = 0, backward.to(tl.float64) * 4.0  # of 2**32
    for first in range(0, length, CHUNK):
        positions = first + tl.arange(0, CHUNK)
        is_inside = positions < length
        item = tl.load(tokens + start + positions, mask=is_inside, other=0)
        is_target = is_inside & ((positions + turn) % every == 0)
        for earlier in range(0, first + 1, CHUNK):
            before = earlier + tl.arange(0, CHUNK)
            other = tl.load(tokens + start + before, mask=before < length, other=-1)
            is_same = (other[:, None] == item[None, :]) & (before[:, None] < positions[None, :])
            is_target = is_target & (tl.max(is_same.to(tl.int32), axis=0) == 0)
        bits = _draw(key, positions.to(tl.uint64), _WINDOW, tl.full((CHUNK,), 0, tl.uint64)) >> 32
        share = tl.load(shares + item, mask=is_inside, other=0.0)
        is_backward = bits.to(tl.float64) < most * share.to(tl.float64)
        is_target = is_target & tl.where(is_backward, positions + 1 < length, positions > 0)
        ones = is_target.to(tl.int32)
        tl.store(targets + start + num + tl.cumsum(ones, axis=0) - 1, 2 * positions + is_backward, mask=is_target)
        num += tl.sum(ones, axis=0)
    tl.store(num_targets + tl.program_id(0), num)


@triton.jit(do_not_specialize=["num_items"])  # otherwise Triton compiles again for 1 and for multiples of 16
def train_trail_stream(
    outputs, output_squares, inputs, input_squares, lags, lag_squares, tokens, starts, ends, keys, order, alphas,
    targets, num_targets, streams, coming, num_coming, thresholds, aliases, corrections, l2s, num_items, handicap,
    D: tl.constexpr, K: tl.constexpr, W: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Train the targets of one stream, one of each lane at a step, against negatives that all lanes share."""
    first = tl.load(streams + tl.program_id(0))
    num_users = tl.load(num_coming + tl.program_id(0))
    key = _mix(tl.load(keys + tl.load(order + first)).to(tl.uint64))
    whole_M = tl.arange(0, _M) * 0
    turn_M, start_M, length_M, count_M, place_M = whole_M + _NO_TURN, whole_M.to(tl.int64), whole_M, whole_M, whole_M
    alpha_M, num_lanes, taken, step = whole_M * 0.0, 0, 0, tl.full((), 0, tl.uint64)
    next_K = _draw_step(key, step, thresholds, aliases, num_items, K)
    while (num_lanes > 0) | (taken < num_users):
        if taken < num_users:
            turn_M, start_M, length_M, count_M, place_M, alpha_M, taken, num_lanes = _fill(
                starts, ends, order, alphas, num_targets, coming + first, num_users,
                turn_M, start_M, length_M, count_M, place_M, alpha_M, taken, num_lanes,
            )  # fmt: skip
        step += 1
        is_on_M, rows_K = turn_M < num_lanes, next_K
        next_K = _draw_step(key, step, thresholds, aliases, num_items, K)
        target_M = tl.load(targets + start_M + place_M, mask=is_on_M, other=0)
        _learn(
            outputs, output_squares, inputs, input_squares, lags, lag_squares, tokens, corrections, l2s,
            target_M, start_M, length_M, rows_K, turn_M, is_on_M, alpha_M, num_items, handicap,
            D, K, W, HAS_WIDE_ATOMICS, PRECISION,
        )  # fmt: skip
        place_M += 1
        ended_M = is_on_M & (place_M >= count_M)
        num_lanes -= tl.sum(ended_M.to(tl.int32), axis=0)
        turn_M = _close_ranks(turn_M, ended_M, num_lanes)


@triton.jit
def _fill(
    starts, ends, order, alphas, num_targets, coming, num_users,
    turn_M, start_M, length_M, count_M, place_M, alpha_M, taken, num_lanes,
):  # fmt: skip
    """Let free lanes take the users that come next, with the turns after those of the others. Returns the lanes' state."""
    is_free_M = turn_M == _NO_TURN
    rank_M = tl.cumsum(is_free_M.to(tl.int32), axis=0) - 1
    is_new_M = is_free_M & (taken + rank_M < num_users)
    at_M = tl.load(coming + taken + rank_M, mask=is_new_M, other=0)
    user_M = tl.load(order + at_M, mask=is_new_M, other=0)
    new_start_M = tl.load(starts + user_M, mask=is_new_M, other=0)
    new_length_M = (tl.load(ends + user_M, mask=is_new_M, other=0) - new_start_M).to(tl.int32)
    num_new = tl.sum(is_new_M.to(tl.int32), axis=0)
    return (
        tl.where(is_new_M, num_lanes + rank_M, turn_M),
        tl.where(is_new_M, new_start_M, start_M),
        tl.where(is_new_M, new_length_M, length_M),
        tl.where(is_new_M, tl.load(num_targets + at_M, mask=is_new_M, other=0), count_M),
        tl.where(is_new_M, 0, place_M),
        tl.where(is_new_M, tl.load(alphas + at_M, mask=is_new_M, other=0.0), alpha_M),
        taken + num_new,
        num_lanes + num_new,
    )


@triton.jit
def _pages(tokens, lags, start_M, length_M, position_M, is_backward_M, item_M, is_on_M, lag, W: tl.constexpr):
    """Return the pages at a lag before the targets, or after them, -1 for none or the target itself, and the lag's weights."""
    at_M = position_M + tl.where(is_backward_M, lag + 1, -1 - lag)
    page_M = tl.load(tokens + start_M + at_M, mask=is_on_M & (at_M >= 0) & (at_M < length_M), other=-1)
    page_M = tl.where(page_M == item_M, -1, page_M)
    weight_M = tl.load(lags + lag + tl.where(is_backward_M, W, 0), cache_modifier=".cg")
    return page_M, tl.where(page_M >= 0, tl.maximum(weight_M, _LEAST_LAG), 0.0)


@triton.jit
def _learn(
    outputs, output_squares, inputs, input_squares, lags, lag_squares, tokens, corrections, l2s,
    target_M, start_M, length_M, rows_K, turn_M, is_on_M, alpha_M, num_items, handicap,
    D: tl.constexpr, K: tl.constexpr, W: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A target of each lane against the negatives: moves the outputs, then the inputs of the pages around it and the lags."""
    d, k = _lanes(D), _lanes(K)
    has_D, has_K = d < D, k < K
    position_M, is_backward_M = target_M >> 1, (target_M & 1) == 1
    item_M = tl.load(tokens + start_M + position_M, mask=is_on_M, other=-1)
    counts_KM = has_K[:, None] & (rows_K[:, None] != item_M[None, :])
    h_MD, squares_M = turn_M[:, None] * d[None, :] * 0.0, turn_M * 0.0
    for lag in range(W):
        page_M, weight_M = _pages(tokens, lags, start_M, length_M, position_M, is_backward_M, item_M, is_on_M, lag, W)
        has_MD = (page_M >= 0)[:, None] & has_D[None, :]
        at_MD = inputs + page_M.to(tl.int64)[:, None] * D + d[None, :]
        h_MD += weight_M[:, None] * tl.load(at_MD, mask=has_MD, other=0.0, cache_modifier=".cg")
        squares_M += weight_M * weight_M
        counts_KM = counts_KM & (rows_K[:, None] != page_M[None, :])
    scale_M = 1.0 / tl.sqrt(tl.sqrt(tl.maximum(squares_M, 1e-12)))
    bias_M = D - 1 - is_backward_M.to(tl.int32)
    h_MD = tl.where(d[None, :] == bias_M[:, None], _BIAS, scale_M[:, None] * h_MD)
    learns_M = squares_M > 0  # otherwise all pages around it are the target itself
    alpha = tl.sum(tl.where(turn_M == 0, alpha_M, 0.0), axis=0)
    g_MD = _predict(
        outputs, output_squares, corrections, l2s, h_MD, item_M, rows_K, counts_KM, turn_M, learns_M, alpha_M, alpha,
        num_items, handicap, D, K, HAS_WIDE_ATOMICS, PRECISION,
    )  # fmt: skip
    _move_inputs(
        inputs, input_squares, lags, lag_squares, tokens, l2s, g_MD, scale_M, start_M, length_M, position_M, is_backward_M,
        item_M, turn_M, learns_M, alpha_M, alpha, num_items, D, W, HAS_WIDE_ATOMICS,
    )  # fmt: skip


@triton.jit
def _move_inputs(
    inputs, input_squares, lags, lag_squares, tokens, l2s, g_MD, scale_M, start_M, length_M, position_M, is_backward_M, item_M,
    turn_M, learns_M, alpha_M, alpha, num_items, D: tl.constexpr, W: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr,
):  # fmt: skip
    """Move the inputs of the pages around the targets, lag after lag, then the weights of the lags, by the steps of the sums."""
    d = _lanes(D)
    atomic_d, has_D = consecutive(d, num_items, HAS_WIDE_ATOMICS), d < D
    square_M = tl.sum(g_MD * g_MD, axis=1) / D
    lag_L = tl.arange(0, triton.next_power_of_2(2 * W))
    steps_L = lag_L * 0.0
    for lag in range(W):
        page_M, weight_M = _pages(tokens, lags, start_M, length_M, position_M, is_backward_M, item_M, learns_M, lag, W)
        is_page_M, row_M, factor_M = page_M >= 0, page_M.to(tl.int64), weight_M * scale_M
        at_MD = inputs + row_M[:, None] * D
        has_MD = is_page_M[:, None] & has_D[None, :]
        c_MD = tl.load(at_MD + d[None, :], mask=has_MD, other=0.0, cache_modifier=".cg")
        towards_M = tl.sum(g_MD * c_MD, axis=1) * scale_M
        for_lag, for_other = (
            tl.sum(tl.where(is_backward_M, 0.0, towards_M), axis=0),
            tl.sum(tl.where(is_backward_M, towards_M, 0.0), axis=0),
        )
        steps_L += tl.where(lag_L == lag, for_lag, 0.0) + tl.where(lag_L == W + lag, for_other, 0.0)
        same_MM, before_MM = _same_rows(page_M, turn_M)
        rate_M = _rates(
            input_squares, row_M, factor_M * factor_M * square_M, same_MM, before_MM, is_page_M, alpha_M, True
        )
        shrink_M = rate_M * tl.load(l2s + row_M, mask=is_page_M, other=0.0)
        step_MD = (rate_M * factor_M)[:, None] * g_MD - shrink_M[:, None] * c_MD
        is_moved_MD = is_page_M[:, None] & (atomic_d < D - _NUM_BIASES)[None, :]
        tl.atomic_add(at_MD + atomic_d[None, :], step_MD, mask=is_moved_MD, sem="relaxed")
    _move_lags(lags, lag_squares, lag_L, steps_L, alpha)


@triton.jit
def _predict(
    outputs, squares, corrections, l2s, h_MD, item_M, rows_K, counts_KM, turn_M, learns_M, alpha_M, alpha,
    num_items, handicap, D: tl.constexpr, K: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Score the targets and the negatives, and move their rows. Returns the steps of the sums h_MD; none of the biases."""
    d, k = _lanes(D), _lanes(K)
    atomic_d = consecutive(d, num_items, HAS_WIDE_ATOMICS)
    has_K, row_M = k < K, item_M.to(tl.int64)
    starts_K, starts_M = outputs + rows_K * D, outputs + row_M * D
    has_KD, has_MD = has_K[:, None] & (d < D)[None, :], learns_M[:, None] & (d < D)[None, :]
    v_KD = tl.load(starts_K[:, None] + d[None, :], mask=has_KD, other=0.0, cache_modifier=".cg")
    own_MD = tl.load(starts_M[:, None] + d[None, :], mask=has_MD, other=0.0, cache_modifier=".cg")
    score_M = tl.sum(h_MD * own_MD, axis=1) - tl.load(corrections + row_M, mask=learns_M, other=0.0) - handicap
    scores_KM = tl.dot(v_KD, tl.trans(h_MD), input_precision=PRECISION)
    scores_KM -= tl.load(corrections + rows_K, mask=has_K, other=0.0)[:, None]
    pull_M, pulls_KM = _pulls(score_M, tl.where(counts_KM, scores_KM, float("-inf")), learns_M)
    steps_KD = tl.dot(pulls_KM, h_MD, input_precision=PRECISION)
    square_K = tl.sum(steps_KD * steps_KD, axis=1) / D
    before_K = tl.atomic_add(squares + rows_K, square_K, mask=has_K, sem="relaxed")  # of equal rows in the card's order
    rate_K = alpha / tl.sqrt(tl.where(has_K, before_K, 0.0) + square_K + _EPSILON)
    same_MM, before_MM = _same_rows(tl.where(learns_M, item_M, -1), turn_M)
    square_M = pull_M * pull_M * tl.sum(h_MD * h_MD, axis=1) / D
    rate_M = _rates(squares, row_M, square_M, same_MM, before_MM, learns_M, alpha_M, True)
    shrink_M = rate_M * tl.load(l2s + row_M, mask=learns_M, other=0.0)
    step_MD = (rate_M * pull_M)[:, None] * h_MD - shrink_M[:, None] * own_MD
    is_moved_KD = has_K[:, None] & (atomic_d < D)[None, :]
    tl.atomic_add(starts_K[:, None] + atomic_d[None, :], rate_K[:, None] * steps_KD, mask=is_moved_KD, sem="relaxed")
    is_moved_MD = learns_M[:, None] & (atomic_d < D)[None, :]
    tl.atomic_add(starts_M[:, None] + atomic_d[None, :], step_MD, mask=is_moved_MD, sem="relaxed")
    g_MD = tl.dot(tl.trans(pulls_KM), v_KD, pull_M[:, None] * own_MD, input_precision=PRECISION)
    return tl.where((d < D - _NUM_BIASES)[None, :], g_MD, 0.0)


@triton.jit
def _move_lags(lags, squares, lag_L, steps_L, alpha):
    """Move the lags' weights by the sum of a step. All programs share them: each adds, then raises what fell below the least."""
    moves_L, mean_squares_L = steps_L != 0, steps_L * steps_L
    before_L = tl.atomic_add(squares + lag_L, mean_squares_L, mask=moves_L, sem="relaxed")
    rate_L = _LAG_RATE * alpha / tl.sqrt(tl.where(moves_L, before_L, 0.0) + mean_squares_L + _EPSILON)
    tl.atomic_add(lags + lag_L, rate_L * steps_L, mask=moves_L, sem="relaxed")
    tl.atomic_max(lags + lag_L, steps_L * 0.0 + _LEAST_LAG, mask=moves_L, sem="relaxed")


@triton.jit
def score_trail_token(
    outputs, inputs, lags, tokens, starts, places, rows, scores,
    D: tl.constexpr, N: tl.constexpr, W: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the scores of N rows, the first of which is the token's own, by the pages before the token."""
    first, d = rows + tl.program_id(0).to(tl.int64) * N, _lanes(D)
    start = tl.load(starts + tl.program_id(0))
    length = (tl.load(places + tl.program_id(0)) - start).to(tl.int32)
    item = tl.load(first).to(tl.int32)
    h_D, square = d * 0.0, 0.0
    for lag in range(tl.minimum(length, W)):
        page = tl.load(tokens + start + length - 1 - lag)
        weight = tl.where(page == item, 0.0, tl.maximum(tl.load(lags + lag, cache_modifier=".cg"), _LEAST_LAG))
        h_D += weight * tl.load(inputs + page.to(tl.int64) * D + d, mask=d < D, other=0.0, cache_modifier=".cg")
        square += weight * weight
    h_D = tl.where(d == D - 1, _BIAS, h_D / tl.sqrt(tl.sqrt(tl.maximum(square, 1e-12))))
    for chunk in range(0, N, CHUNK):
        n = chunk + tl.arange(0, CHUNK)
        row_N = tl.load(first + n, mask=n < N, other=0)
        has_ND = (n < N)[:, None] & (d < D)[None, :]
        v_ND = tl.load(outputs + row_N[:, None] * D + d[None, :], mask=has_ND, other=0.0, cache_modifier=".cg")
        at_N = scores + tl.program_id(0).to(tl.int64) * N + n
        tl.store(at_N, tl.sum(v_ND * h_D[None, :], axis=1), mask=n < N)
