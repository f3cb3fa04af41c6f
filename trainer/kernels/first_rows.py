"""The first vectors of users and items, and user vectors in half the bytes: stored as bfloat16, computed in float32.

bfloat16 is the upper half of a float32. Rounding to nearest would lose changes smaller than half a unit in every epoch. So
rounding is stochastic: up with a probability equal to the cut-off fraction, which keeps the mean (Gupta et al., ICML 2015).
All random bits are draws of (seed, epoch, user or item, dimension), so a resumed run draws the same.
"""

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TRAIL_BIASES, TrainConfig
from surf2vec.trainer.draws import mix_array, user_keys
from surf2vec.trainer.model.rows import Items, Rows, TrailItems
from surf2vec.trainer.system.memory import make_pages

TRAIL_RANGE, TRAIL_SQUARES = 0.1, 1e-4
"""The trail's first rows are uniform in ± this, with this sum of squares: its first steps are then small beside the rows."""


def begin_users(config: TrainConfig, hashes: NDArray[np.uint64]) -> Rows:
    """Return the first rows of users with these hashes; the bias, if any, comes last.

    They are uniform in ± 1 / vector_size with SGD, as in gensim 4, and in ± alpha with Adagrad. Adagrad's first step moves a
    coordinate by about alpha, however small the gradient. Much smaller rows would be overwritten, much larger ones hardly moved.
    """
    from surf2vec.trainer.kernels.compiled_draws import draw_vectors  # numba takes half a second to import

    vectors = _make_vectors(len(hashes), config.interest_size)
    half_range = config.alpha if config.optimizer == "adagrad" else 1 / max(1, config.interest_size)
    draw_vectors(user_keys(config.seed, -1, hashes), np.float32(half_range), vectors)
    vectors[:, config.num_free :] = config.bias
    return Rows(vectors, np.zeros(len(hashes), dtype=np.float32))


def at_rest(config: TrainConfig, epoch: int, hashes: NDArray[np.uint64], rows: Rows) -> Rows:
    """Return users' rows as stored after an epoch (-1: before the first)."""
    if config.dtype == "float32":
        return rows
    return Rows(round_to_bfloat16(rows.vectors, config.seed, epoch, hashes), rows.squares)


def begin_items(config: TrainConfig, num_items: int, num_outputs: int) -> Items:
    """Return the first item table: outputs are zero as in word2vec, inputs are like users."""
    outputs = Rows(_make_vectors(num_outputs, config.interest_size), np.zeros(num_outputs, dtype=np.float32))
    num_inputs = num_items if config.has_inputs else 0
    inputs = begin_users(config, mix_array(np.arange(num_inputs, dtype=np.uint64) + np.uint64(1)))
    return Items(outputs, inputs)


def begin_trail(config: TrainConfig, num_items: int) -> TrailItems:
    """Return the first item table of the trail: rows uniform in ±TRAIL_RANGE, and lag weights 1, 1/2, 1/3, ...

    The last two numbers of a row learn how popular an item is, backward and forward: an input row has zeros there.
    """
    from surf2vec.trainer.kernels.compiled_draws import draw_vectors  # numba takes half a second to import

    def begin(first_key: int) -> Rows:
        keys = mix_array(np.arange(first_key, first_key + 2 * num_items, 2, dtype=np.uint64))
        vectors = _make_vectors(num_items, config.trail_size)
        draw_vectors(user_keys(config.seed, -1, keys), np.float32(TRAIL_RANGE), vectors)
        return Rows(vectors, np.full(num_items, TRAIL_SQUARES, dtype=np.float32))

    outputs, inputs = begin(1), begin(2)
    inputs.vectors[:, -TRAIL_BIASES:] = 0
    lags = np.tile(1 / np.arange(1, config.trail_window + 1, dtype=np.float32), 2)[:, None]
    return TrailItems(outputs, inputs, Rows(lags, np.full(len(lags), TRAIL_SQUARES, dtype=np.float32)))


def _make_vectors(num_rows: int, num_dims: int) -> NDArray[np.float32]:
    """Return zeros, float32[num_rows, D], aligned to a page: rows of 16 n dimensions are then full cache lines, which train up
    to a tenth faster.
    """
    num_floats = num_rows * num_dims
    return make_pages(4 * num_floats).view(np.float32)[:num_floats].reshape(num_rows, num_dims)


def round_to_bfloat16(
    vectors: NDArray[np.float32], seed: int, epoch: int, hashes: NDArray[np.uint64]
) -> NDArray[np.uint16]:
    """Round user vectors float32[n, D] to bfloat16 bits, uint16[n, D]; one 64-bit draw rounds four numbers."""
    from surf2vec.trainer.kernels.compiled_draws import round_vectors  # numba takes half a second to import

    halves = np.empty(vectors.shape, dtype=np.uint16)
    round_vectors(user_keys(seed, epoch, hashes), np.ascontiguousarray(vectors).view(np.uint32), halves)
    return halves
