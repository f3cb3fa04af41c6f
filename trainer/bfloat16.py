"""User vectors in half the bytes: bfloat16 at rest, float32 whenever there is arithmetic.

bfloat16 is the upper half of a float32. Rounding down a change smaller than half a unit would lose it every epoch, so
rounding is stochastic: up with the probability of what is cut off, which keeps the mean (Gupta et al., ICML 2015).
The random bits are draws of (seed, epoch, user, dimension), so a resumed run rounds the same way.
"""

import numpy as np
from numpy.typing import NDArray

from trainer.draws import user_keys


def widen(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 numbers that bfloat16 halves stand for."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bfloat16(
    vectors: NDArray[np.float32], seed: int, epoch: int, hashes: NDArray[np.uint64]
) -> NDArray[np.uint16]:
    """bfloat16 halves, uint16[n, D], of user vectors float32[n, D]; one 64-bit draw rounds four numbers."""
    from trainer.kernels.compiled_draws import round_vectors  # numba takes half a second to import

    halves = np.empty(vectors.shape, dtype=np.uint16)
    round_vectors(user_keys(seed, epoch, hashes), np.ascontiguousarray(vectors).view(np.uint32), halves)
    return halves
