"""Brings a training that began anew into the space of an older one: the rotation that lays its items best on the older ones.

A rotation changes no dot product and no length, so it ranks, and is as near to its neighbours, as before; row-wise Adagrad's
sums are of squared lengths, and stay too. Source: Schönemann, "A generalized solution of the orthogonal Procrustes
problem", Psychometrika 31, 1966.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.rows import Rows


@dataclass(frozen=True)
class Rotation:
    """matrix float64[D, D], orthogonal: rows times it are in the older space; cosine: mean cosine of the items laid upon
    each other, weighted as they were fitted; num_items: how many there were."""

    matrix: NDArray[np.float64]
    cosine: float
    num_items: int


def find_rotation(pairs: Iterable[tuple[NDArray[np.float32], NDArray[np.float32]]], vector_size: int) -> Rotation:
    """The rotation of new item vectors that brings them nearest to old ones by direction: each item counts the same.

    pairs: (new, old) float32[n, D], as many at a time as the caller likes; only a matrix of D x D is kept. Items without
    a direction on either side count nothing. Without any the rotation is the identity.
    """
    moment, num_items = np.zeros((vector_size, vector_size)), 0
    for new, old in pairs:
        new_units, old_units = (rows.astype(np.float64) for rows in (new, old))
        lengths = np.linalg.norm(new_units, axis=1) * np.linalg.norm(old_units, axis=1)
        is_usable = np.isfinite(lengths) & (lengths > 0)
        moment += (new_units[is_usable] / lengths[is_usable, None]).T @ old_units[is_usable]
        num_items += int(is_usable.sum())
    if not num_items:
        return Rotation(np.eye(vector_size), 0.0, 0)
    left, stretch, right = np.linalg.svd(moment)
    return Rotation(left @ right, float(stretch.sum() / num_items), num_items)


def rotate(rows: Rows, rotation: Rotation) -> Rows:
    """The rows in the older space, float32; the optimizer's sums as they are."""
    vectors = rows.widened().astype(np.float64) @ rotation.matrix
    return Rows(vectors.astype(np.float32), rows.squares)
