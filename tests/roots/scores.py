"""Scores by vectors in memory, in place of a generation's, and scores that are no dot product."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surf2vec.tasks.evaluation.scores import Piece, VectorScores

ScoreRows = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Maps rows of asked users, int64[B], to the scores of all items, float32[B, V], the best highest."""


def score_by_vectors(item_vectors: NDArray[np.float32]) -> VectorScores:
    """Scores of all items as dot products with item vectors float32[V, D]."""
    return VectorScores(lambda start, stop: item_vectors[start:stop], *item_vectors.shape)


@dataclass(frozen=True)
class RowScores:
    """Scores of all items in one piece, for a question whose "vectors" are the users' rows, int64[m, 1]."""

    score_rows: ScoreRows
    num_items: int
    num_pieces: int = 1

    @property
    def piece_items(self) -> int:
        return self.num_items

    def pieces(self) -> Iterator[Piece]:
        yield Piece(np.arange(self.num_items), lambda rows: self.score_rows(rows[:, 0]))
