"""The kernel for CPUs: numba, a thread takes users, a user's row stays in the cache over all of its tokens.

No two threads write one user's row. Item rows are shared without locks (Hogwild, Recht et al., NIPS 2011): with
several threads an update may now and then be lost, and the result differs in its last digits from run to run. One thread
is deterministic and does what `reference.py` does, up to the rounding of reordered sums.
"""

import math

import numba
import numpy as np

from trainer import draws
from trainer.kernels.signature import Pass

numba.config.THREADING_LAYER = "omp"  # type: ignore[attr-defined]  # the layer that lives beside torch's OpenMP

_GAMMA = np.uint64(draws.GAMMA)
_MIX_1 = np.uint64(draws.MIX_1)
_MIX_2 = np.uint64(draws.MIX_2)
_DRAW_BITS = np.uint64(draws.DRAW_BITS)
_PURPOSE_BITS = np.uint64(draws.PURPOSE_BITS)
_SUBSAMPLE = np.uint64(draws.SUBSAMPLE)
_NEGATIVE = np.uint64(draws.NEGATIVE)
_ONE = np.uint64(1)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_LOW_32 = np.uint64(2**32 - 1)


def max_threads() -> int:
    """Threads that this process may use."""
    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


def train_users(user_vectors: np.ndarray, item_vectors: np.ndarray, work: Pass) -> int:
    """Train the users `work.order` once, in place; answers how many tokens were kept by subsampling."""
    numba.set_num_threads(min(work.threads, max_threads()) if work.threads else max_threads())
    return _train_users(
        user_vectors,
        item_vectors,
        work.tokens,
        work.starts,
        work.ends,
        work.hashes,
        work.order,
        work.alphas,
        work.sampling.thresholds,
        work.sampling.aliases,
        work.sampling.keep,
        np.uint64(work.epoch_key),
        work.negative,
        work.update_items,
    )


@numba.njit(inline="always")
def _mix(x):
    x = (x ^ (x >> _30)) * _MIX_1
    x = (x ^ (x >> _27)) * _MIX_2
    return x ^ (x >> _31)


@numba.njit(inline="always")
def _draw(key, position, purpose, number):
    count = ((((np.uint64(position) << _PURPOSE_BITS) | purpose) << _DRAW_BITS) | np.uint64(number)) + _ONE
    return _mix(key + _GAMMA * count)


@numba.njit(inline="always")
def _draw_negative(bits, num_items, thresholds, aliases):
    slot = np.int64(((bits >> _32) * np.uint64(num_items)) >> _32)
    return slot if (bits & _LOW_32) < thresholds[slot] else np.int64(aliases[slot])


@numba.njit(fastmath=True, nogil=True, inline="always")
def _train_item(u, gradient, v, label, alpha, update_items):
    """One pair: u·v, the step, and both gradients (float32[D] each)."""
    dot = np.float32(0)
    for d in range(u.shape[0]):
        dot += u[d] * v[d]
    step = np.float32(alpha * (label - np.float32(1) / (np.float32(1) + math.exp(-dot))))
    for d in range(u.shape[0]):
        gradient[d] += step * v[d]
    if update_items:
        for d in range(u.shape[0]):
            v[d] += step * u[d]


@numba.njit(parallel=True, fastmath=True, nogil=True, cache=True)
def _train_users(
    user_vectors,
    item_vectors,
    tokens,
    starts,
    ends,
    hashes,
    order,
    alphas,
    thresholds,
    aliases,
    keep,
    epoch_key,
    negative,
    update_items,
):
    num_items, num_dims = item_vectors.shape
    num_kept = 0
    for i in numba.prange(order.shape[0]):
        user = order[i]
        alpha = alphas[i]
        key = _mix(hashes[user] ^ epoch_key)
        u = user_vectors[user]
        gradient = np.empty(num_dims, np.float32)
        kept = 0
        for position in range(ends[user] - starts[user]):
            positive = np.int64(tokens[starts[user] + position])
            if (_draw(key, position, _SUBSAMPLE, 0) >> _32) >= keep[positive]:
                continue
            kept += 1
            gradient[:] = np.float32(0)
            _train_item(u, gradient, item_vectors[positive], np.float32(1), alpha, update_items)
            for k in range(1, negative + 1):
                item = _draw_negative(_draw(key, position, _NEGATIVE, k), num_items, thresholds, aliases)
                if item != positive:
                    _train_item(u, gradient, item_vectors[item], np.float32(0), alpha, update_items)
            for d in range(num_dims):
                u[d] += gradient[d]
        num_kept += kept
    return num_kept
