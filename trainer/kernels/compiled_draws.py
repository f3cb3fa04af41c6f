"""The draws of trainer/draws.py, compiled: for training, users' first vectors, rounding, and the curve's negatives."""
# mypy: no-check-untyped-defs

import numba
import numpy as np

from surf2vec.trainer import draws
from surf2vec.trainer.draws import INIT, ORDER, ROUND
from surf2vec.trainer.kernels.llvm import OPTIONS, inlined, prefer_wide_vectors, prefetch_row

_GAMMA = np.uint64(draws.GAMMA)
_MIX_1 = np.uint64(draws.MIX_1)
_MIX_2 = np.uint64(draws.MIX_2)
_DRAW_BITS = np.uint64(draws.DRAW_BITS)
_PURPOSE_BITS = np.uint64(draws.PURPOSE_BITS)
_ONE = np.uint64(1)
_16, _27, _30, _31, _32, _40 = (np.uint64(bits) for bits in (16, 27, 30, 31, 32, 40))
_LOW_16, _LOW_32 = np.uint64(2**16 - 1), np.uint64(2**32 - 1)


@inlined
def mix(x):
    x = (x ^ (x >> _30)) * _MIX_1
    x = (x ^ (x >> _27)) * _MIX_2
    return x ^ (x >> _31)


@inlined
def draw(key, position, purpose, number):
    """Return one 64-bit draw, as surf2vec.trainer.draws defines it."""
    count = ((((np.uint64(position) << _PURPOSE_BITS) | np.uint64(purpose)) << _DRAW_BITS) | np.uint64(number)) + _ONE
    return mix(key + _GAMMA * count)


@inlined
def draw_negative(bits, noise):
    """Return the item of the noise distribution for 64 random bits."""
    slot = np.int64(((bits >> _32) * np.uint64(noise.aliases.shape[0])) >> _32)
    alias = np.int64(noise.aliases[slot])  # always read: a random branch is mispredicted half of the time
    return slot if (bits & _LOW_32) < noise.thresholds[slot] else alias


@numba.njit(nogil=True, cache=True, **OPTIONS | {"fastmath": False})
def draw_vectors(keys, half_range, vectors):
    """Fill vectors float32[n, D], the first of users with keys uint64[n], uniform in ±half_range."""
    for i in range(vectors.shape[0]):
        for d in range(vectors.shape[1]):
            steps = np.float32(np.int32(draw(keys[i], d, INIT, 0) >> _40))
            vectors[i, d] = (steps * np.float32(2**-23) - np.float32(1)) * half_range


@numba.njit(nogil=True, cache=True, **OPTIONS)
def round_vectors(keys, numbers, halves):
    """Fill halves uint16[n, D] with the upper halves of float32 bits uint32[n, D], rounded at random by users' keys.

    The random bits of number d are the quarter d % 4 of draw d // 4, so that one draw suffices for four.
    """
    for i in range(numbers.shape[0]):
        for d in range(numbers.shape[1]):
            noise = (draw(keys[i], d >> 2, ROUND, 0) >> np.uint64(16 * (d & 3))) & _LOW_16
            halves[i, d] = np.uint16((np.uint64(numbers[i, d]) + noise) >> _16)


@numba.njit(nogil=True, cache=True, **OPTIONS)
def draw_each(keys, purpose, noise, items):
    """Fill items int64[n, K] with draws from the noise, one row for each key uint64[n], at position 0."""
    for i in range(items.shape[0]):
        for k in range(items.shape[1]):
            items[i, k] = draw_negative(draw(keys[i], 0, purpose, k), noise)


@numba.njit(nogil=True, cache=True, **OPTIONS)
def score_each(users, outputs, rows, scores):
    """Fill scores float32[n, K]: dot products of users float32[n, D] with the rows int64[n, K] of outputs float32[V, D]."""
    prefer_wide_vectors()
    for i in range(rows.shape[0]):
        if i + 1 < rows.shape[0]:
            for k in range(rows.shape[1]):
                prefetch_row(outputs, rows[i + 1, k])
        for k in range(rows.shape[1]):
            row, score = rows[i, k], np.float32(0)
            for d in range(users.shape[1]):
                score += users[i, d] * outputs[row, d]
            scores[i, k] = score


@numba.njit(nogil=True, cache=True, **OPTIONS)
def draw_order(hashes, epoch_key, bits, packed):
    """Fill packed uint64[n] with the users' draws for their order, whose lowest bits are the user's number instead."""
    for i in range(len(hashes)):
        packed[i] = (draw(mix(hashes[i] ^ epoch_key), 0, ORDER, 0) >> bits << bits) | np.uint64(i)


@numba.njit(nogil=True, cache=True, **OPTIONS | {"fastmath": False})
def fill_rates(lengths, first_token, total_tokens, alpha, fall, rates):
    """Fill rates float32[n], as surf2vec.trainer.plan.schedule.learning_rates defines them."""
    before = 0.0
    for i in range(len(lengths)):
        before += lengths[i]
        rates[i] = np.float32(alpha - (before + first_token - lengths[i]) / total_tokens * fall)


@numba.njit(nogil=True, cache=True, **OPTIONS)
def take_numbers(packed, bits):
    """Leave the users' numbers in packed uint64[n], which is sorted. Returns whether any two draws were the same."""
    is_same, before, lowest = False, ~np.uint64(0), (np.uint64(1) << bits) - np.uint64(1)
    for i in range(len(packed)):
        upper = packed[i] >> bits
        is_same |= upper == before
        before = upper
        packed[i] &= lowest
    return is_same
