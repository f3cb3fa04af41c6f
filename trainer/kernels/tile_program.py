"""The tile as Triton compiles it: one program trains a stream, whose lanes walk their users' tokens in step.

Shapes: M lanes, K negatives, D dims, padded to powers of two from 16 on, as products of matrices want them. The lanes' users stay
in registers until their histories end. The reference moves rows of the lanes in turn. Here they move at once, and a lane whose
item another lane has, too, sees that lane's step by a sum over the lanes before it. README.md has the formulas.
"""

import triton
import triton.language as tl

from surf2vec.trainer import draws
from surf2vec.trainer.kernels.programs import _draw, _draw_negatives, _mix, consecutive
from surf2vec.trainer.model.rows import EPSILON

_TILE, _EPSILON = tl.constexpr(draws.TILE), tl.constexpr(EPSILON)
_NO_TURN = tl.constexpr(2**30)  # of a lane without a user
_TINY = tl.constexpr(1e-30)  # for a factor of zero or less, so that it has a logarithm


@triton.jit
def list_users(streams, num_kept, coming, num_coming, CHUNK: tl.constexpr):
    """Write the places of a stream's users with kept tokens to coming[first:], and their number to num_coming."""
    first = tl.load(streams + tl.program_id(0))
    length = (tl.load(streams + tl.program_id(0) + 1) - first).to(tl.int32)
    num = 0
    for start in range(0, length, CHUNK):
        places = start + tl.arange(0, CHUNK)
        has_tokens = tl.load(num_kept + first + places, mask=places < length, other=0) > 0
        ones = has_tokens.to(tl.int32)
        tl.store(coming + first + num + tl.cumsum(ones, axis=0) - 1, (first + places).to(tl.int32), mask=has_tokens)
        num += tl.sum(ones, axis=0)
    tl.store(num_coming + tl.program_id(0), num)


@triton.jit(do_not_specialize=["num_items"])  # otherwise Triton compiles again for 1 and for multiples of 16
def train_stream(
    users, user_squares, outputs, output_squares, tokens, starts, ends, keys, order, alphas, kept, num_kept,
    streams, coming, num_coming, thresholds, aliases, corrections,
    num_items, recency_rate, l2, item_l2, handicap,
    D: tl.constexpr, K: tl.constexpr, M: tl.constexpr, NUM_FREE: tl.constexpr,
    IS_ADAGRAD: tl.constexpr, IS_FROZEN: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Train the users of one stream, a token of each lane at a step, against negatives that all lanes share."""
    first = tl.load(streams + tl.program_id(0))
    num_users = tl.load(num_coming + tl.program_id(0))
    key = _mix(tl.load(keys + tl.load(order + first)).to(tl.uint64))
    lane, d = _lanes(M), _lanes(D)
    num_lanes = tl.minimum(M, num_users)
    turn_M = tl.where(lane < num_lanes, lane, _NO_TURN)
    whole_M, number_M, u_MD = lane * 0, lane * 0.0, lane[:, None] * d[None, :] * 0.0
    taken, user_M, start_M, count_M, newest_M, alpha_M, l2_M, bias_M, square_M, position_M, row_M, u_MD = _fill(
        users, user_squares, tokens, starts, ends, order, alphas, kept, num_kept, coming + first, num_users, l2,
        lane < num_lanes, turn_M, 0, whole_M, whole_M.to(tl.int64), whole_M, whole_M, number_M, number_M, number_M, number_M,
        whole_M, whole_M, u_MD, D,
    )  # fmt: skip
    place_M, step = whole_M, tl.full((), 0, tl.uint64)
    next_K = _draw_step(key, step, thresholds, aliases, num_items, K)
    while num_lanes > 0:
        step += 1
        is_on_M, rows_K = turn_M < num_lanes, next_K
        next_K = _draw_step(key, step, thresholds, aliases, num_items, K)
        place_M += 1
        goes_on_M = is_on_M & (place_M < count_M)  # their next tokens are loaded while these are trained
        next_position_M = tl.load(kept + start_M + place_M, mask=goes_on_M, other=0)
        next_row_M = tl.load(tokens + start_M + next_position_M, mask=goes_on_M, other=0)
        weight_M = 1.0 / (1.0 + (newest_M - position_M).to(tl.float32) * recency_rate)
        gradient_MD = _learn(
            outputs, output_squares, corrections, u_MD, row_M.to(tl.int64), rows_K, turn_M, is_on_M, alpha_M, weight_M,
            l2_M, bias_M, num_items, item_l2, handicap, D, K, NUM_FREE, IS_ADAGRAD, IS_FROZEN, HAS_WIDE_ATOMICS, PRECISION,
        )  # fmt: skip
        u_MD, square_M = _move(u_MD, square_M, gradient_MD, alpha_M, D, IS_ADAGRAD)
        position_M, row_M = next_position_M, next_row_M
        ended_M = is_on_M & (place_M >= count_M)
        if tl.sum(ended_M.to(tl.int32), axis=0) > 0:
            at_MD = users + user_M.to(tl.int64)[:, None] * D + d[None, :]
            tl.store(at_MD, u_MD, mask=ended_M[:, None] & (d < D)[None, :])
            tl.store(user_squares + user_M, square_M, mask=ended_M)
            is_empty_M = ended_M & (_rank(ended_M, turn_M) >= num_users - taken)
            taken, user_M, start_M, count_M, newest_M, alpha_M, l2_M, bias_M, square_M, position_M, row_M, u_MD = _fill(
                users, user_squares, tokens, starts, ends, order, alphas, kept, num_kept, coming + first, num_users, l2,
                ended_M, turn_M, taken, user_M, start_M, count_M, newest_M, alpha_M, l2_M, bias_M, square_M,
                position_M, row_M, u_MD, D,
            )  # fmt: skip
            place_M, num_lanes = tl.where(ended_M, 0, place_M), num_lanes - tl.sum(is_empty_M.to(tl.int32), axis=0)
            turn_M = _close_ranks(turn_M, is_empty_M, num_lanes)


@triton.jit
def _lanes(n: tl.constexpr):
    """Return 0, 1, ... up to n's next power of two, 16 or more."""
    return tl.arange(0, max(16, triton.next_power_of_2(n)))


@triton.jit
def _draw_step(key, step, thresholds, aliases, num_items, K: tl.constexpr):
    """Return the items drawn at a step."""
    k = _lanes(K)
    return _draw_negatives(_draw(key, step, _TILE, k.to(tl.uint64)), k < K, thresholds, aliases, num_items)


@triton.jit
def _rank(is_one_M, turn_M):
    """Return how many of the marked lanes have an earlier turn than each lane."""
    marked_M = tl.where(is_one_M, turn_M, _NO_TURN)
    return tl.sum((marked_M[:, None] < turn_M[None, :]).to(tl.int32), axis=0)


@triton.jit
def _fill(
    users, user_squares, tokens, starts, ends, order, alphas, kept, num_kept, coming, num_users, l2,
    is_free_M, turn_M, taken, user_M, start_M, count_M, newest_M, alpha_M, l2_M, bias_M, square_M, position_M, row_M,
    u_MD, D: tl.constexpr,
):  # fmt: skip
    """Let the free lanes, in turn, take the users that come next. Returns how many are taken now, and the lanes' state."""
    d = _lanes(D)
    next_M = taken + _rank(is_free_M, turn_M)
    is_new_M = is_free_M & (next_M < num_users)
    at_M = tl.load(coming + next_M, mask=is_new_M, other=0)
    new_M = tl.load(order + at_M, mask=is_new_M, other=0)
    new_start_M = tl.load(starts + new_M, mask=is_new_M, other=0)
    length_M = (tl.load(ends + new_M, mask=is_new_M, other=1) - new_start_M).to(tl.int32)
    new_position_M = tl.load(kept + new_start_M, mask=is_new_M, other=0)
    new_row_M = tl.load(tokens + new_start_M + new_position_M, mask=is_new_M, other=0)
    has_MD = is_new_M[:, None] & (d < D)[None, :]
    new_MD = tl.load(users + new_M[:, None] * D + d[None, :], mask=has_MD, other=0.0)
    return (
        taken + tl.sum(is_new_M.to(tl.int32), axis=0),
        tl.where(is_new_M, new_M.to(tl.int32), user_M),
        tl.where(is_new_M, new_start_M, start_M),
        tl.where(is_new_M, tl.load(num_kept + at_M, mask=is_new_M, other=0), count_M),
        tl.where(is_new_M, length_M - 1, newest_M),
        tl.where(is_new_M, tl.load(alphas + at_M, mask=is_new_M, other=0.0), alpha_M),
        tl.where(is_new_M, l2 / tl.sqrt(tl.maximum(length_M, 1).to(tl.float32)), l2_M),
        tl.where(is_new_M, tl.load(users + new_M * D + D - 1, mask=is_new_M, other=0.0), bias_M),
        tl.where(is_new_M, tl.load(user_squares + new_M, mask=is_new_M, other=0.0), square_M),
        tl.where(is_new_M, new_position_M, position_M),
        tl.where(is_new_M, new_row_M, row_M),
        tl.where(is_new_M[:, None], new_MD, u_MD),
    )


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
def _learn(
    outputs, squares, corrections, u_MD, row_M, rows_K, turn_M, is_on_M, alpha_M, weight_M, l2_M, bias_M,
    num_items, item_l2, handicap,
    D: tl.constexpr, K: tl.constexpr, NUM_FREE: tl.constexpr,
    IS_ADAGRAD: tl.constexpr, IS_FROZEN: tl.constexpr, HAS_WIDE_ATOMICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A token of each lane against the negatives: moves the outputs, returns the gradients of the lanes' users."""
    d, k = _lanes(D), _lanes(K)
    atomic_d = consecutive(d, num_items, HAS_WIDE_ATOMICS)
    has_D, has_K = d < D, k < K
    starts_K, starts_M = outputs + rows_K * D, outputs + row_M * D
    has_KD, has_MD = has_K[:, None] & has_D[None, :], is_on_M[:, None] & has_D[None, :]
    v_KD = tl.load(starts_K[:, None] + d[None, :], mask=has_KD, other=0.0, cache_modifier=".cg")
    own_MD = tl.load(starts_M[:, None] + d[None, :], mask=has_MD, other=0.0, cache_modifier=".cg")
    score_M = tl.sum(u_MD * own_MD, axis=1) - tl.load(corrections + row_M, mask=is_on_M, other=0.0) - handicap
    scores_KM = tl.dot(v_KD, tl.trans(u_MD), input_precision=PRECISION)
    scores_KM -= tl.load(corrections + rows_K, mask=has_K, other=0.0)[:, None]
    counts_KM = has_K[:, None] & (rows_K[:, None] != row_M[None, :])
    pull_M, pulls_KM = _pulls(score_M, tl.where(counts_KM, scores_KM, float("-inf")), is_on_M)
    now_MD = own_MD
    if not IS_FROZEN:
        l2_D = tl.where(d < NUM_FREE, item_l2, 0.0)
        own_gradient_MD = pull_M[:, None] * u_MD - l2_D[None, :] * own_MD
        same_MM, before_MM = _same_rows(tl.where(is_on_M, row_M.to(tl.int32), -1), turn_M)
        own_square_M = tl.sum(own_gradient_MD * own_gradient_MD, axis=1) / D
        rate_M = _rates(squares, row_M, own_square_M, same_MM, before_MM, is_on_M, alpha_M, IS_ADAGRAD)
        steps_KD = tl.dot(pulls_KM, u_MD, input_precision=PRECISION)
        alpha_K = tl.sum(tl.where(turn_M == 0, alpha_M, 0.0), axis=0) + k * 0.0
        same_KK, before_KK = _same_rows(tl.where(has_K, rows_K.to(tl.int32), -1), k)
        square_K = tl.sum(steps_KD * steps_KD, axis=1) / D
        rates_K = _rates(squares, rows_K, square_K, same_KK, before_KK, has_K, alpha_K, IS_ADAGRAD)
        now_MD = _own_rows_in_turn(own_MD, u_MD, pull_M, rate_M, before_MM, bias_M, item_l2, D, NUM_FREE, PRECISION)
        moved_MD = now_MD + rate_M[:, None] * (pull_M[:, None] * u_MD - l2_D[None, :] * now_MD)
        is_last_M = is_on_M & (tl.sum(same_MM - before_MM, axis=0) == 1)
        is_moved_MD = is_last_M[:, None] & (atomic_d < D)[None, :]
        tl.atomic_add(starts_M[:, None] + atomic_d[None, :], moved_MD - own_MD, mask=is_moved_MD, sem="relaxed")
        is_moved_KD = has_K[:, None] & (atomic_d < D)[None, :]
        tl.atomic_add(
            starts_K[:, None] + atomic_d[None, :], rates_K[:, None] * steps_KD, mask=is_moved_KD, sem="relaxed"
        )
    steps_MD = tl.dot(tl.trans(pulls_KM), v_KD, pull_M[:, None] * now_MD, input_precision=PRECISION)
    gradient_MD = weight_M[:, None] * (steps_MD - l2_M[:, None] * u_MD)
    return tl.where((d < NUM_FREE)[None, :], gradient_MD, 0.0)


@triton.jit
def _move(u_MD, square_M, gradient_MD, alpha_M, D: tl.constexpr, IS_ADAGRAD: tl.constexpr):
    """Return the users' rows after a step, and Adagrad's sums."""
    rate_M = alpha_M
    if IS_ADAGRAD:
        square_M += tl.sum(gradient_MD * gradient_MD, axis=1) / D
        rate_M = alpha_M / tl.sqrt(square_M + _EPSILON)
    return u_MD + rate_M[:, None] * gradient_MD, square_M


@triton.jit
def _pulls(score_M, scores_KM, is_on_M):
    """Return 1 - probability of each lane's token, and minus the probabilities of the negatives."""
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
    own_MD, u_MD, pull_M, rate_M, before_MM, bias_M, item_l2,
    D: tl.constexpr, NUM_FREE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the lanes' own rows as they are at their turns, after the lanes before them moved the same rows.

    A lane makes shrink v + rate pull u of v, but for the bias, where nothing shrinks. So lane m sees v times the product of the
    shrinks before it, and u of each lane j before it times the product of those between j and m. Products by logarithms.
    A row that would shrink past zero counts as zero for the lanes after it.
    """
    grow_M = rate_M * pull_M
    log_M = tl.log2(tl.maximum(1.0 - rate_M * item_l2, _TINY))
    logs_M = tl.sum(before_MM * log_M[:, None], axis=0)
    logs_MM = before_MM * (logs_M[None, :] - (logs_M + log_M)[:, None])
    grows_MM = before_MM * tl.exp2(logs_MM) * grow_M[:, None]
    now_MD = tl.exp2(logs_M)[:, None] * own_MD + tl.dot(tl.trans(grows_MM), u_MD, input_precision=PRECISION)
    if NUM_FREE < D:
        biases_M = tl.sum(before_MM * (grow_M * bias_M)[:, None], axis=0)
        now_MD = tl.where((_lanes(D) < NUM_FREE)[None, :], now_MD, own_MD + biases_M[:, None])
    return now_MD
