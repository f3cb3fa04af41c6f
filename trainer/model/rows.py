"""The parameters in memory: rows of vectors, each with one number of optimizer state, and how they begin.

Row-wise Adagrad keeps for a row the sum over its steps of the mean squared gradient: one float32 instead of one a
dimension (Duchi, Hazan and Singer, JMLR 2011; by rows as in FBGEMM's and PyTorch-BigGraph's tables).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def widen(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 numbers that bfloat16 halves stand for."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
