"""Draws as Triton compiles them: one program subsamples a user's tokens, one rounds a user's vector.

Shapes: D dims, K negatives. Arrays in a program are padded to powers of two, the rest masked.
"""

import triton
import triton.language as tl

from surf2vec.trainer import draws

_GAMMA, _MIX_1, _MIX_2 = tl.constexpr(draws.GAMMA), tl.constexpr(draws.MIX_1), tl.constexpr(draws.MIX_2)
_SUBSAMPLE, _ROUND = tl.constexpr(draws.SUBSAMPLE), tl.constexpr(draws.ROUND)
_DRAW_BITS, _PURPOSE_BITS = tl.constexpr(draws.DRAW_BITS), tl.constexpr(draws.PURPOSE_BITS)
_LOW_32 = tl.constexpr(2**32 - 1)


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
    d = _range(D)
    key = _mix(tl.load(keys + user).to(tl.uint64))
    bits_D = tl.load(numbers + user * D + d, mask=d < D, other=0).to(tl.uint32).to(tl.uint64)
    shifts_D = ((d & 3) * 16).to(tl.uint64)
    noise_D = (_draw(key, (d >> 2).to(tl.uint64), _ROUND, tl.full(d.shape, 0, tl.uint64)) >> shifts_D) & 0xFFFF
    tl.store(halves + user * D + d, ((bits_D + noise_D) >> 16).to(tl.int16), mask=d < D)
