"""The tile as Triton compiles it: a program trains a stream, whose lanes walk their users' targets in step and share negatives.

Shapes: M lanes, K negatives, D dims, W lags; M, K and D padded to powers of two from 16 on, as products of matrices want them.
What predicts a lane's target is h_MD: for the interest the lane's user, whose row stays in registers until its history ends; for
the trail (IS_TRAIL) a weighted sum of the pages around the target. The reference moves rows of the lanes in turn. Here they move
at once, and for the interest a lane whose item another lane has, too, sees that lane's step by a sum over the lanes before it.
Outputs of the trail move by what they were at the beginning of the step, inputs lag after lag, the lanes of a lag at once. In
both, Adagrad's sums of the lanes' equal rows grow in their turns. README.md has the formulas.
"""

import triton
import triton.language as tl

from surf2vec.trainer import draws
from surf2vec.trainer.config import TRAIL_BIAS, TRAIL_BIASES
from surf2vec.trainer.kernels.programs import _draw, _draw_negatives, _lanes, _mix, consecutive
from surf2vec.trainer.kernels.signature import L2_WINDOW, LAG_RATE, LEAST_LAG, TRAIL_RATE
from surf2vec.trainer.model.rows import EPSILON

_TILE, _EPSILON, _NUM_BIASES = tl.constexpr(draws.TILE), tl.constexpr(EPSILON), tl.constexpr(TRAIL_BIASES)
_BIAS, _TRAIL_RATE, _L2_WINDOW = tl.constexpr(TRAIL_BIAS), tl.constexpr(TRAIL_RATE), tl.constexpr(L2_WINDOW)
_LEAST_LAG, _LAG_RATE = tl.constexpr(LEAST_LAG), tl.constexpr(LAG_RATE)
_NO_TURN = tl.constexpr(2**30)  # of a lane without a user
_TINY = tl.constexpr(1e-30)  # for a factor of zero or less, so that it has a logarithm


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
    turn_M, taken, step = tl.where(lane < num_lanes, lane, _NO_TURN), num_lanes, tl.full((), 0, tl.uint64)
    place_M, number_M = lane * 0, lane * 0.0
    user_M, start_M, length_M, count_M, alpha_M, target_M, row_M, square_M, u_MD = _fill(
        users, user_squares, tokens, starts, ends, order, alphas, targets, num_targets, coming + first + lane, lane < num_lanes,
        place_M, place_M.to(tl.int64), place_M, place_M, number_M, place_M, place_M, number_M,
        lane[:, None] * d[None, :] * 0.0, D, IS_TRAIL,
    )  # fmt: skip
    next_K = _draw_step(key, step, thresholds, aliases, num_items, K)
    while num_lanes > 0:
        is_on_M, rows_K = turn_M < num_lanes, next_K
        place_M, step = place_M + 1, step + 1
        next_K = _draw_step(key, step, thresholds, aliases, num_items, K)
        has_next_M = is_on_M & (place_M < count_M)  # their next targets are loaded while these are trained
        next_target_M, next_row_M = _load_targets(tokens, targets, start_M, place_M, has_next_M)
        if IS_TRAIL:
            _train_sums(
                outputs, output_squares, inputs, input_squares, lags, lag_squares, tokens, corrections, l2s,
                target_M, row_M, start_M, length_M, rows_K, turn_M, is_on_M, alpha_M, num_items, handicap,
                D, K, W, HAS_WIDE_ATOMICS, PRECISION,
            )  # fmt: skip
        else:
            u_MD, square_M = _train_users(
                outputs, output_squares, corrections, u_MD, square_M, target_M, row_M, length_M, rows_K, turn_M, is_on_M,
                alpha_M, num_items, recency_rate, l2, item_l2, handicap,
                D, K, NUM_FREE, IS_ADAGRAD, IS_FROZEN, HAS_WIDE_ATOMICS, PRECISION,
            )  # fmt: skip
        target_M, row_M = next_target_M, next_row_M
        ended_M = is_on_M & (place_M >= count_M)
        if tl.sum(ended_M.to(tl.int32), axis=0) > 0:
            if not IS_TRAIL:
                _store_users(users, user_squares, user_M, u_MD, square_M, ended_M, D)
            turn_M, num_lanes, rank_M, is_new_M = _take_turns(turn_M, ended_M, num_lanes, num_users - taken, IS_TRAIL)
            user_M, start_M, length_M, count_M, alpha_M, target_M, row_M, square_M, u_MD = _fill(
                users, user_squares, tokens, starts, ends, order, alphas, targets, num_targets, coming + first + taken + rank_M,
                is_new_M, user_M, start_M, length_M, count_M, alpha_M, target_M, row_M, square_M, u_MD, D, IS_TRAIL,
            )  # fmt: skip
            taken += tl.sum(is_new_M.to(tl.int32), axis=0)
            place_M = tl.where(ended_M, 0, place_M)


@triton.jit
def _draw_step(key, step, thresholds, aliases, num_items, K: tl.constexpr):
    """Return the items drawn at a step."""
    k = _lanes(K)
    return _draw_negatives(_draw(key, step, _TILE, k.to(tl.uint64)), k < K, thresholds, aliases, num_items)


@triton.jit
def _take_turns(turn_M, ended_M, num_lanes, num_left, IS_TRAIL: tl.constexpr):
    """Let lanes whose users have ended take the next users, while there are any.

    A lane of the interest keeps its turn; of the trail it comes after the others. Returns the turns and the number of lanes that
    have users, then which of the next users each lane takes, and whether it does.
    """
    num_ended = tl.sum(ended_M.to(tl.int32), axis=0)
    num_new = tl.minimum(num_ended, num_left)
    if IS_TRAIL:
        rank_M = tl.cumsum(ended_M.to(tl.int32), axis=0) - 1
        turn_M = _close_ranks(turn_M, ended_M, num_lanes - num_ended)
        turn_M = tl.where(ended_M & (rank_M < num_left), num_lanes - num_ended + rank_M, turn_M)
    else:
        rank_M = _rank(ended_M, turn_M)
        turn_M = _close_ranks(turn_M, ended_M & (rank_M >= num_left), num_lanes - num_ended + num_new)
    return turn_M, num_lanes - num_ended + num_new, rank_M, ended_M & (rank_M < num_left)


@triton.jit
def _rank(is_one_M, turn_M):
    """Return how many of the marked lanes have an earlier turn than each lane."""
    marked_M = tl.where(is_one_M, turn_M, _NO_TURN)
    return tl.sum((marked_M[:, None] < turn_M[None, :]).to(tl.int32), axis=0)


@triton.jit
def _close_ranks(turn_M, is_empty_M, num_lanes):
    """Return the turns after lanes have run empty: the last lanes take the turns of these, the very last one the first."""
    moves_M = (turn_M >= num_lanes) & (turn_M < _NO_TURN) & ~is_empty_M
    moving_M, empty_M = tl.where(moves_M, turn_M, -1), tl.where(is_empty_M, turn_M, 0)
    rank_M = tl.sum((moving_M[:, None] > turn_M[None, :]).to(tl.int32), axis=0)
    empty_rank_M = tl.where(is_empty_M, _rank(is_empty_M, turn_M), -1)
    taken_M = tl.sum(tl.where(empty_rank_M[:, None] == rank_M[None, :], empty_M[:, None], 0), axis=0)
    return tl.where(is_empty_M, _NO_TURN, tl.where(moves_M, taken_M, turn_M))


@triton.jit
def _fill(
    users, user_squares, tokens, starts, ends, order, alphas, targets, num_targets, coming_M,
    is_new_M, user_M, start_M, length_M, count_M, alpha_M, target_M, row_M, square_M, u_MD,
    D: tl.constexpr, IS_TRAIL: tl.constexpr,
):  # fmt: skip
    """Return the lanes' state after new lanes have taken the users at the places coming_M of the order."""
    at_M = tl.load(coming_M, mask=is_new_M, other=0)
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
    new_alpha_M = tl.load(alphas + at_M, mask=is_new_M, other=0.0) * (_TRAIL_RATE if IS_TRAIL else 1.0)
    return (
        tl.where(is_new_M, new_M.to(tl.int32), user_M),
        tl.where(is_new_M, new_start_M, start_M),
        tl.where(is_new_M, new_length_M, length_M),
        tl.where(is_new_M, tl.load(num_targets + at_M, mask=is_new_M, other=0), count_M),
        tl.where(is_new_M, new_alpha_M, alpha_M),
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
    outputs, output_squares, corrections, u_MD, square_M, target_M, row_M, length_M, rows_K, turn_M, is_on_M,
    alpha_M, num_items, recency_rate, l2, item_l2, handicap,
    D: tl.constexpr, K: tl.constexpr, NUM_FREE: tl.constexpr, IS_ADAGRAD: tl.constexpr, IS_FROZEN: tl.constexpr,
    HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Train the lanes' users, but for the bias. Returns their rows, and Adagrad's sums."""
    counts_KM = rows_K[:, None] != row_M[None, :]
    steps_MD = _learn(
        outputs, output_squares, corrections, u_MD, row_M, rows_K, counts_KM, turn_M, is_on_M, alpha_M, item_l2,
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
    outputs, squares, corrections, h_MD, row_M, rows_K, counts_KM, turn_M, is_on_M, alpha_M, l2, num_items, handicap,
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
    now_MD = own_MD
    if not IS_FROZEN:
        same_MM, before_MM = _same_rows(tl.where(is_on_M, row_M.to(tl.int32), -1), turn_M)
        if IS_TRAIL:  # L2 holds the biases, too, and is not in the sums
            l2_MD = l2[:, None]
            square_M = pull_M * pull_M * tl.sum(h_MD * h_MD, axis=1) / D
        else:
            l2_MD = tl.where(d < NUM_FREE, l2, 0.0)[None, :]
            gradient_MD = pull_M[:, None] * h_MD - l2_MD * own_MD
            square_M = tl.sum(gradient_MD * gradient_MD, axis=1) / D
        rate_M = _rates(squares, row_M, square_M, same_MM, before_MM, is_on_M, alpha_M, IS_ADAGRAD)
        steps_KD = tl.dot(pulls_KM, h_MD, input_precision=PRECISION)
        alpha_K = tl.sum(tl.where(turn_M == 0, alpha_M, 0.0), axis=0) + k * 0.0
        square_K = tl.sum(steps_KD * steps_KD, axis=1) / D
        if IS_TRAIL:  # has so many negatives that [K, K] would not fit: sums of equal rows grow in the card's order
            sums_K = tl.atomic_add(squares + rows_K, square_K, mask=has_K, sem="relaxed")
            rates_K = alpha_K / tl.sqrt(tl.where(has_K, sums_K, 0.0) + square_K + _EPSILON)
        else:
            same_KK, before_KK = _same_rows(tl.where(has_K, rows_K.to(tl.int32), -1), k)
            rates_K = _rates(squares, rows_K, square_K, same_KK, before_KK, has_K, alpha_K, IS_ADAGRAD)
        adds_M = is_on_M
        if not IS_TRAIL:  # the last lane of a row adds what all have moved it
            now_MD = _own_rows_in_turn(own_MD, h_MD, pull_M, rate_M, before_MM, l2, D, NUM_FREE, PRECISION)
            adds_M = is_on_M & (tl.sum(same_MM - before_MM, axis=0) == 1)
        step_MD = now_MD - own_MD + rate_M[:, None] * (pull_M[:, None] * h_MD - l2_MD * now_MD)
        at_MD, at_KD = starts_M[:, None] + atomic_d[None, :], starts_K[:, None] + atomic_d[None, :]
        tl.atomic_add(at_MD, step_MD, mask=adds_M[:, None] & (atomic_d < D)[None, :], sem="relaxed")
        tl.atomic_add(at_KD, rates_K[:, None] * steps_KD, mask=has_K[:, None] & (atomic_d < D)[None, :], sem="relaxed")
    return tl.dot(tl.trans(pulls_KM), v_KD, pull_M[:, None] * now_MD, input_precision=PRECISION)


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
def _same_rows(rows_N, turn_N):
    """Return two [N, N] of 1.0 and 0.0: whether two have the same row; whether, besides, the first has the earlier turn."""
    same_NN = tl.where(rows_N[:, None] == rows_N[None, :], 1.0, 0.0)
    return same_NN, tl.where(turn_N[:, None] < turn_N[None, :], same_NN, 0.0)


@triton.jit
def _rates(squares, rows_N, mean_squares_N, same_NN, before_NN, is_on_N, alpha_N, IS_ADAGRAD: tl.constexpr):
    """Return the learning rates of N rows that move in turn, after adding to Adagrad's sums; same_NN, before_NN: of `_same_rows`.

    The first turn of a row adds for all of them, as the order within one atomic add is not known.
    """
    rates_N = alpha_N
    if IS_ADAGRAD:
        all_N = tl.sum(same_NN * mean_squares_N[:, None], axis=0)
        is_first_N = is_on_N & (tl.sum(before_NN, axis=0) == 0)
        sums_N = tl.atomic_add(squares + rows_N, all_N, mask=is_first_N, sem="relaxed")
        sums_N = tl.where(is_first_N, sums_N, 0.0) + mean_squares_N
        rates_N = alpha_N / tl.sqrt(sums_N + tl.sum(before_NN * sums_N[:, None], axis=0) + _EPSILON)
    return rates_N


@triton.jit
def _own_rows_in_turn(
    own_MD, u_MD, pull_M, rate_M, before_MM, l2, D: tl.constexpr, NUM_FREE: tl.constexpr, PRECISION: tl.constexpr
):
    """Return the lanes' own rows as they are at their turns, after the lanes before them moved the same rows.

    A lane makes shrink v + rate pull u of v, but for the bias, where nothing shrinks. So lane m sees v times the product of the
    shrinks before it, and u of each lane j before it times the product of those between j and m. Products by logarithms.
    A row that would shrink past zero counts as zero for the lanes after it.
    """
    d, grow_M = _lanes(D), rate_M * pull_M
    log_M = tl.log2(tl.maximum(1.0 - rate_M * l2, _TINY))
    logs_M = tl.sum(before_MM * log_M[:, None], axis=0)
    logs_MM = before_MM * (logs_M[None, :] - (logs_M + log_M)[:, None])
    grows_MM = before_MM * tl.exp2(logs_MM) * grow_M[:, None]
    now_MD = tl.exp2(logs_M)[:, None] * own_MD + tl.dot(tl.trans(grows_MM), u_MD, input_precision=PRECISION)
    if NUM_FREE < D:
        bias_M = tl.sum(tl.where((d == D - 1)[None, :], u_MD, 0.0), axis=1)
        biases_M = tl.sum(before_MM * (grow_M * bias_M)[:, None], axis=0)
        now_MD = tl.where((d < NUM_FREE)[None, :], now_MD, own_MD + biases_M[:, None])
    return now_MD


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
    target_M, row_M, start_M, length_M, rows_K, turn_M, is_on_M, alpha_M, num_items, handicap,
    D: tl.constexpr, K: tl.constexpr, W: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Let the sums of the pages around the lanes' targets predict them. Moves the outputs, these pages' inputs, and the lags."""
    d, is_backward_M = _lanes(D), (target_M & 1) == 1
    counts_KM = rows_K[:, None] != row_M[None, :]
    h_MD, squares_M = turn_M[:, None] * d[None, :] * 0.0, turn_M * 0.0
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
        outputs, output_squares, corrections, h_MD, row_M, rows_K, counts_KM, turn_M, learns_M, alpha_M, l2_M,
        num_items, handicap, D, K, D, True, True, False, HAS_WIDE_ATOMICS, PRECISION,
    )  # fmt: skip
    g_MD = tl.where((d < D - _NUM_BIASES)[None, :], g_MD, 0.0)
    _move_inputs(
        inputs, input_squares, lags, lag_squares, tokens, l2s, g_MD, scale_M, start_M, length_M, target_M, row_M, turn_M,
        learns_M, alpha_M, num_items, D, W, HAS_WIDE_ATOMICS,
    )  # fmt: skip


@triton.jit
def _move_inputs(
    inputs, input_squares, lags, lag_squares, tokens, l2s, g_MD, scale_M, start_M, length_M, target_M, row_M, turn_M,
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
        same_MM, before_MM = _same_rows(page_M, turn_M)
        mean_M = factor_M * factor_M * square_M
        rate_M = _rates(input_squares, at_M, mean_M, same_MM, before_MM, is_page_M, alpha_M, True)
        shrink_M = rate_M * (_L2_WINDOW / W) * tl.load(l2s + at_M, mask=is_page_M, other=0.0)
        step_MD = (rate_M * factor_M)[:, None] * g_MD - shrink_M[:, None] * c_MD
        is_moved_MD = is_page_M[:, None] & (atomic_d < D - _NUM_BIASES)[None, :]
        tl.atomic_add(at_MD + atomic_d[None, :], step_MD, mask=is_moved_MD, sem="relaxed")
    _move_lags(lags, lag_squares, lag_L, steps_L, tl.sum(tl.where(turn_M == 0, alpha_M, 0.0), axis=0))


@triton.jit
def _move_lags(lags, squares, lag_L, steps_L, alpha):
    """Move the lags' weights by the sum of a step. All programs share them: each adds, then raises what fell below the least."""
    moves_L, mean_squares_L = steps_L != 0, steps_L * steps_L
    before_L = tl.atomic_add(squares + lag_L, mean_squares_L, mask=moves_L, sem="relaxed")
    rate_L = _LAG_RATE * alpha / tl.sqrt(tl.where(moves_L, before_L, 0.0) + mean_squares_L + _EPSILON)
    tl.atomic_add(lags + lag_L, rate_L * steps_L, mask=moves_L, sem="relaxed")
    tl.atomic_max(lags + lag_L, steps_L * 0.0 + _LEAST_LAG, mask=moves_L, sem="relaxed")
