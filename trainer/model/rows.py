"""The parameters in memory: rows of vectors, each with one number of optimizer state.

For each row, row-wise Adagrad sums the mean squared gradients of its steps: one float32 instead of one for each
dimension (Duchi, Hazan and Singer, JMLR 2011; by rows as in FBGEMM's and PyTorch-BigGraph's tables).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PER_ITEM = ("outputs", "inputs")
"""The tables of Items with a row for each item."""

EPSILON = 1e-10
"""Added to the sum under Adagrad's root, so that a row whose gradient is zero does not divide by zero."""


@dataclass
class Rows:
    """vectors float32[n, D], or uint16[n, D] with bfloat16 bits as stored; squares float32[n], Adagrad's sums."""

    vectors: NDArray[Any]
    squares: NDArray[np.float32]

    @property
    def num_bytes(self) -> int:
        return self.vectors.nbytes + self.squares.nbytes

    def widened(self) -> NDArray[np.float32]:
        """Return the vectors as float32, without a copy if they are."""
        if self.vectors.dtype != np.uint16:
            return self.vectors
        return (self.vectors.astype(np.uint32) << np.uint32(16)).view(np.float32)


@dataclass
class Items:
    """The item table. outputs: the vectors that score items, one row for each item, or the rows of the tree's nodes.

    inputs: the vectors of items as context, one row for each item; no rows without context (PV-DBOW).
    """

    outputs: Rows
    inputs: Rows


@dataclass
class TrailItems(Items):
    """The trail's item table: inputs, the vectors of pages that are looked back at, and outputs, which score items.

    lags: vectors float32[2 W, 1], the weights of the W pages before a target, nearest first, then of the W pages after it.
    """

    lags: Rows
