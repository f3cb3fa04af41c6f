"""Rows of a micro-partition beside its file: what a night changed, without the others being written again.

In a manifest a delta stands in the entry of the file that it belongs to, so whoever reads rows by their entry gets both. Rows
beyond the file's are those of users who came since.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.model.rows import Rows
from trainer.store.images import Arrays


@dataclass(frozen=True)
class Delta:
    """places uint32[k], ascending: which rows of a micro-partition these are."""

    places: NDArray[np.uint32]
    rows: Rows

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As its file has it."""
        return {"rows": self.places, "vectors": self.rows.vectors, "squares": self.rows.squares}


def delta_in(arrays: Arrays) -> Delta:
    """The delta in the arrays of its file."""
    return Delta(arrays["rows"], Rows(arrays["vectors"], arrays["squares"]))


def lay_over(rows: Rows, delta: Delta) -> Rows:
    """The rows with those of the delta in their places; as many as either has."""
    num_rows = max(len(rows.squares), int(delta.places[-1]) + 1 if len(delta.places) else 0)
    vectors = np.zeros((num_rows, delta.rows.vectors.shape[1]), dtype=delta.rows.vectors.dtype)
    squares = np.zeros(num_rows, dtype=np.float32)
    vectors[: len(rows.squares)], squares[: len(rows.squares)] = rows.vectors, rows.squares
    vectors[delta.places], squares[delta.places] = delta.rows.vectors, delta.rows.squares
    return Rows(vectors, squares)


def merge_deltas(older: Delta, newer: Delta) -> Delta:
    """One delta that does what laying over the older and then the newer does."""
    is_left = ~np.isin(older.places, newer.places)
    places = np.concatenate((older.places[is_left], newer.places))
    order = np.argsort(places)
    vectors = np.concatenate((older.rows.vectors[is_left], newer.rows.vectors))[order]
    squares = np.concatenate((older.rows.squares[is_left], newer.rows.squares))[order]
    return Delta(places[order], Rows(vectors, squares))
