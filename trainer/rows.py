"""The parameters in memory: rows of vectors, each with one number of optimizer state, and how they begin.

Row-wise Adagrad keeps for a row the sum over its steps of the mean squared gradient: one float32 instead of one a
dimension (Duchi, Hazan and Singer, JMLR 2011; by rows as in FBGEMM's and PyTorch-BigGraph's tables).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.bfloat16 import round_to_bfloat16, widen
from trainer.config import TrainConfig
from trainer.draws import mix_array, user_keys
from trainer.images import make_pages

EPSILON = 1e-10
"""Added to the sum under Adagrad's root, so that a row whose gradient is zero does not divide by zero."""


@dataclass
class Rows:
    """vectors float32[n, D], or at rest uint16[n, D] that hold bfloat16; squares float32[n], Adagrad's sums."""

    vectors: NDArray[Any]
    squares: NDArray[np.float32]

    @property
    def num_bytes(self) -> int:
        return self.vectors.nbytes + self.squares.nbytes

    def widened(self) -> NDArray[np.float32]:
        """The vectors to compute with: themselves, or bfloat16 ones as float32."""
        return widen(self.vectors) if self.vectors.dtype == np.uint16 else self.vectors

    def copy(self) -> "Rows":
        return Rows(self.vectors.copy(), self.squares.copy())


@dataclass
class Items:
    """The item table. outputs: what predicts an item, one row an item, or a row a node of the tree.

    inputs: items as context, one row an item; no rows where there is no context (PV-DBOW).
    """

    outputs: Rows
    inputs: Rows

    @property
    def num_bytes(self) -> int:
        return self.outputs.num_bytes + self.inputs.num_bytes

    def copy(self) -> "Items":
        return Items(self.outputs.copy(), self.inputs.copy())


def join_rows(parts: list[Rows]) -> Rows:
    """The same rows, one part after the other."""
    return Rows(np.concatenate([part.vectors for part in parts]), np.concatenate([part.squares for part in parts]))


def begin_users(config: TrainConfig, hashes: NDArray[np.uint64]) -> Rows:
    """The first rows of users with these hashes, uniform in ±`first_range`; the bias, where there is one, comes last."""
    from trainer.kernels.compiled_draws import draw_vectors  # numba takes half a second to import

    vectors = _make_vectors(len(hashes), config)
    draw_vectors(user_keys(config.seed, -1, hashes), np.float32(first_range(config)), vectors)
    vectors[:, config.num_free :] = config.bias
    return Rows(vectors, np.zeros(len(hashes), dtype=np.float32))


def at_rest(config: TrainConfig, epoch: int, hashes: NDArray[np.uint64], rows: Rows) -> Rows:
    """Users' rows as they are stored after an epoch (-1: before the first)."""
    if config.dtype == "float32":
        return rows
    return Rows(round_to_bfloat16(rows.vectors, config.seed, epoch, hashes), rows.squares)


def begin_items(config: TrainConfig, num_items: int, num_outputs: int) -> Items:
    """The first item table: outputs begin at zero as in word2vec, inputs like users."""
    outputs = Rows(_make_vectors(num_outputs, config), np.zeros(num_outputs, dtype=np.float32))
    num_inputs = num_items if config.has_inputs else 0
    inputs = begin_users(config, mix_array(np.arange(num_inputs, dtype=np.uint64) + np.uint64(1)))
    return Items(outputs, inputs)


def _make_vectors(num_rows: int, config: TrainConfig) -> NDArray[np.float32]:
    """Zeros, float32[num_rows, D], from the beginning of a page, as in images: rows of a multiple of 16 dimensions are then
    whole cache lines, where rows across their borders take up to a tenth longer to train.
    """
    num_floats = num_rows * config.vector_size
    return make_pages(4 * num_floats).view(np.float32)[:num_floats].reshape(num_rows, config.vector_size)


def first_range(config: TrainConfig) -> float:
    """The first vectors are uniform in ± this: gensim 4's 1 / vector_size with SGD, alpha with Adagrad.

    Adagrad's first step moves a coordinate by about alpha, however small the gradient is: a row that began far below would
    be thrown, one that began far above would hardly move.
    """
    return config.alpha if config.optimizer == "adagrad" else 1 / config.vector_size
