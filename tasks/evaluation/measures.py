"""Figures of ranks, user by user, and how certain their mean is."""

import numpy as np
from numpy.typing import NDArray

TOP = 20


def hits(ranks: NDArray[np.floating], top: int) -> NDArray[np.float64]:
    """Return 1 where the rank is at most `top`, else 0, float64[m]."""
    return (ranks <= top).astype(np.float64)


def reciprocals(ranks: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return 1 / rank where the rank is at most TOP, else 0. MRR is the mean of these."""
    return np.where(ranks <= TOP, 1 / ranks.astype(np.float64), 0.0)


def measure_gain(differences: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of the differences of the same users, float64[m], and its standard error; 0 for one user."""
    error = float(differences.std(ddof=1)) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return float(differences.mean()), error
