"""User vectors in half the bytes: bfloat16 at rest, float32 whenever there is arithmetic.

bfloat16 is the upper half of a float32. Rounding down a change smaller than half a unit would lose it every epoch, so
rounding is stochastic: up with the probability of what is cut off, which keeps the mean (Gupta et al., ICML 2015).
The random bits are draws of (seed, epoch, user, dimension), so a resumed run rounds the same way.
"""

import numpy as np
from numpy.typing import NDArray

from trainer.draws import ROUND, counter, draws, user_keys

BLOCK_ROWS = 8192  # rounded at a time: the draws take two bytes a number


def widen(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 numbers that bfloat16 halves stand for."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bfloat16(
    vectors: NDArray[np.float32], seed: int, epoch: int, hashes: NDArray[np.uint64]
) -> NDArray[np.uint16]:
    """bfloat16 halves, uint16[n, D], of user vectors float32[n, D]; one 64-bit draw rounds four numbers."""
    num_users, num_dims = vectors.shape
    counters = np.array([counter(d, ROUND, 0) for d in range(-(-num_dims // 4))], dtype=np.uint64)
    keys = user_keys(seed, epoch, hashes)
    halves = np.empty((num_users, num_dims), dtype=np.uint16)
    for start in range(0, num_users, BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        noise = draws(keys[block, None], counters[None, :]).view(np.uint16)[:, :num_dims]
        halves[block] = (vectors[block].view(np.uint32) + noise) >> np.uint32(16)
    return halves
