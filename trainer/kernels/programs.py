"""What Triton compiles beside the tile: the small programs, which list a user's targets and a stream's users and round a user's
vector; and for a step of the tile its draws, Adagrad's rates, and how inputs move.

Shapes: D dims, K negatives. Arrays in a program are padded to powers of two, the rest masked.
"""

import triton
import triton.language as tl

from surf2vec.trainer import draws
from surf2vec.trainer.config import TRAIL_BIASES
from surf2vec.trainer.kernels.signature import L2_WINDOW, NEWEST_SHARE
from surf2vec.trainer.model.rows import EPSILON

_GAMMA, _MIX_1, _MIX_2 = tl.constexpr(draws.GAMMA), tl.constexpr(draws.MIX_1), tl.constexpr(draws.MIX_2)
_SUBSAMPLE, _ROUND, _WINDOW = tl.constexpr(draws.SUBSAMPLE), tl.constexpr(draws.ROUND), tl.constexpr(draws.WINDOW)
_DRAW_BITS, _PURPOSE_BITS = tl.constexpr(draws.DRAW_BITS), tl.constexpr(draws.PURPOSE_BITS)
_LOW_32 = tl.constexpr(2**32 - 1)
_TILE, _EPSILON, _NUM_BIASES = tl.constexpr(draws.TILE), tl.constexpr(EPSILON), tl.constexpr(TRAIL_BIASES)
_L2_WINDOW, _NEWEST_SHARE = tl.constexpr(L2_WINDOW), tl.constexpr(NEWEST_SHARE)


@triton.jit
def _lanes(n: tl.constexpr):
    """Return 0, 1, ... up to n's next power of two, 16 or more."""
    return tl.arange(0, max(16, triton.next_power_of_2(n)))


@triton.jit
def consecutive(d, num_items, HAS_WIDE_ATOMICS: tl.constexpr):
    """Return d, so that a warp's atomic adds go to addresses in a row.

    From sm_90 on a thread adds 16 bytes at once. Before, Triton would let a thread add four numbers that follow each other, one
    after the other, while the threads beside it are 16 bytes away. So this hides from it that they follow each other.
    """
    return d if HAS_WIDE_ATOMICS else d + tl.minimum(num_items, 0)


@triton.jit
def as_loaded(x_MD):
    """Return x_MD, the result of a product of matrices, in the layout of rows that are loaded.

    Otherwise Triton brings each row that meets it into the layout of products, and back, which takes barriers.
    """
    d, m = tl.arange(0, x_MD.shape[1]), tl.arange(0, x_MD.shape[0])
    return tl.gather(x_MD, d[None, :] + m[:, None] * 0, axis=1)


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


@triton.jit(do_not_specialize=["backward"])
def list_targets(
    tokens, starts, ends, keys, order, shares, listed, targets, num_targets, backward,
    IS_TRAIL: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write a user's targets to targets[start:] as in kernels/model.py, and their number to num_targets; listed: scratch.

    Of the interest: tokens that subsampling keeps; shares: its thresholds, int64. Of the trail: as compiled_trail.list_targets;
    backward: the share of rare items that are predicted backward, of 2**30; shares float32: how much of it an item has.
    """
    user = tl.load(order + tl.program_id(0))
    start = tl.load(starts + user)
    length = (tl.load(ends + user) - start).to(tl.int32)
    key = _mix(tl.load(keys + user).to(tl.uint64))
    num, most = 0, backward.to(tl.float64) * 4.0  # of 2**32
    for first in range(0, length, CHUNK):
        positions = first + tl.arange(0, CHUNK)
        is_inside = positions < length
        item = tl.load(tokens + start + positions, mask=is_inside, other=0)
        share = tl.load(shares + item, mask=is_inside, other=0)
        number = tl.full((CHUNK,), 0, tl.uint64)
        if IS_TRAIL:
            bits = _draw(key, positions.to(tl.uint64), _WINDOW, number) >> 32
            is_backward = bits.to(tl.float64) < most * share.to(tl.float64)
            is_short = (_draw(key, positions.to(tl.uint64), _WINDOW, number + 1) >> 32) < _NEWEST_SHARE
            is_target = is_inside & tl.where(is_backward, positions + 1 < length, positions > 0)
            for earlier in range(0, first + 1, CHUNK):
                before = earlier + tl.arange(0, CHUNK)
                other = tl.load(tokens + start + before, mask=before < length, other=-1)
                is_same = (other[:, None] == item[None, :]) & (before[:, None] < positions[None, :])
                is_target = is_target & (tl.max(is_same.to(tl.int32), axis=0) == 0)
        else:
            bits = _draw(key, positions.to(tl.uint64), _SUBSAMPLE, number) >> 32
            is_backward = positions < 0
            is_short = is_backward
            is_target = is_inside & (bits < share.to(tl.uint64))
        ones = is_target.to(tl.int32)
        found = 4 * positions + 2 * is_short + is_backward
        tl.store((listed if IS_TRAIL else targets) + start + num + tl.cumsum(ones, axis=0) - 1, found, mask=is_target)
        num += tl.sum(ones, axis=0)
    tl.store(num_targets + tl.program_id(0), num)
    if IS_TRAIL:
        _shuffle(listed + start, targets + start, num, _draw(key, tl.full((), 0, tl.uint64), _WINDOW, 2), CHUNK)


@triton.jit
def _shuffle(listed, targets, num, bits, CHUNK: tl.constexpr):
    """Write a user's `num` targets in another order, as compiled_trail.list_targets."""
    size, done = 1, 0
    while size < num:
        size *= 2
    factor, first = (bits >> 32).to(tl.int64) | 1, (bits & _LOW_32).to(tl.int64)
    tl.debug_barrier()  # other threads have written what these read
    for start in range(0, size, CHUNK):
        i = start + tl.arange(0, CHUNK)
        number = (factor * i + first) & (size - 1)
        is_one = (i < size) & (number < num)
        ones = is_one.to(tl.int32)
        found = tl.load(listed + number, mask=is_one, other=0)
        tl.store(targets + done + tl.cumsum(ones, axis=0) - 1, found, mask=is_one)
        done += tl.sum(ones, axis=0)


@triton.jit
def list_users(streams, num_targets, coming, num_coming, CHUNK: tl.constexpr):
    """Write the places of a stream's users with targets to coming[first:], and their number to num_coming."""
    first = tl.load(streams + tl.program_id(0))
    length = (tl.load(streams + tl.program_id(0) + 1) - first).to(tl.int32)
    num = 0
    for start in range(0, length, CHUNK):
        places = start + tl.arange(0, CHUNK)
        has_targets = tl.load(num_targets + first + places, mask=places < length, other=0) > 0
        ones = has_targets.to(tl.int32)
        tl.store(coming + first + num + tl.cumsum(ones, axis=0) - 1, (first + places).to(tl.int32), mask=has_targets)
        num += tl.sum(ones, axis=0)
    tl.store(num_coming + tl.program_id(0), num)


@triton.jit
def _draw_negatives(bits_K, has_K, thresholds, aliases, num_items):
    """Return the items of the noise distribution for 64 random bits each, int64."""
    slots_K = (((bits_K >> 32) * num_items) >> 32).to(tl.int64)
    thresholds_K = tl.load(thresholds + slots_K, mask=has_K, other=0).to(tl.uint64)
    aliases_K = tl.load(aliases + slots_K, mask=has_K, other=0).to(tl.int64)
    return tl.where((bits_K & _LOW_32) < thresholds_K, slots_K, aliases_K)


@triton.jit
def round_user(numbers, keys, halves, D: tl.constexpr):
    """Write the upper halves of a user's numbers, float32 bits int32[n, D], rounded at random as compiled_draws.round_vectors."""
    user = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, triton.next_power_of_2(D))
    key = _mix(tl.load(keys + user).to(tl.uint64))
    bits_D = tl.load(numbers + user * D + d, mask=d < D, other=0).to(tl.uint32).to(tl.uint64)
    shifts_D = ((d & 3) * 16).to(tl.uint64)
    noise_D = (_draw(key, (d >> 2).to(tl.uint64), _ROUND, tl.full(d.shape, 0, tl.uint64)) >> shifts_D) & 0xFFFF
    tl.store(halves + user * D + d, ((bits_D + noise_D) >> 16).to(tl.int16), mask=d < D)


@triton.jit
def _draw_block(noise, step, first, K: tl.constexpr, B: tl.constexpr):
    """Return the items drawn at a step, from the number `first` on."""
    key, thresholds, aliases, num_items = noise
    k = first + tl.arange(0, B)
    return _draw_negatives(_draw(key, step, _TILE, k.to(tl.uint64)), k < K, thresholds, aliases, num_items)


@triton.jit
def _rates(squares, rows_N, mean_squares_N, is_on_N, alpha_N):
    """Return the learning rates of rows that move at once, by Adagrad's sums after all of them have been added."""
    tl.atomic_add(squares + rows_N, mean_squares_N, mask=is_on_N, sem="relaxed")
    tl.debug_barrier()  # what other threads have added is read
    return _rates_now(squares, rows_N, is_on_N, alpha_N)


@triton.jit
def _rates_now(squares, rows_N, is_on_N, alpha_N):
    return alpha_N / tl.sqrt(tl.load(squares + rows_N, mask=is_on_N, other=1.0, cache_modifier=".cg") + _EPSILON)


@triton.jit
def _move_inputs(inputs, squares, l2s, g_MD, page_M, factor_M, alpha_M, atomic_d, D: tl.constexpr, W: tl.constexpr):
    """Move the inputs of the pages at a lag by the steps of the sums. Returns the products of steps and inputs."""
    d, is_page_M, at_MD = _lanes(D), page_M >= 0, inputs + page_M.to(tl.int64)[:, None] * D
    has_MD = is_page_M[:, None] & (d < D)[None, :]
    c_MD = tl.load(at_MD + d[None, :], mask=has_MD, other=0.0, cache_modifier=".cg")
    rate_M = _rates_now(squares, page_M, is_page_M, alpha_M)
    shrink_M = rate_M * (_L2_WINDOW / W) * tl.load(l2s + page_M, mask=is_page_M, other=0.0)
    step_MD = (rate_M * factor_M)[:, None] * g_MD - shrink_M[:, None] * c_MD
    is_moved_MD = is_page_M[:, None] & (atomic_d < D - _NUM_BIASES)[None, :]
    tl.atomic_add(at_MD + atomic_d[None, :], step_MD, mask=is_moved_MD, sem="relaxed")
    return tl.sum(g_MD * c_MD, axis=1)
