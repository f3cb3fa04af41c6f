"""Sums up trails from the last pages of users: a vector of this minute, with nothing trained.

With the input vectors c, the weights a of the lags and the pages that a user saw last, nearest first,

    trail = w (Σ_k a_k c_k / (Σ_k a_k²)^¼ + bias)

as the trainer does (trainer/kernels/README.md). A page that repeats the page before it and a page that the release does not know
are left out, as from a corpus. Of the others the newest W count, one for each lag.

MLflow copies this file beside the registered model. So it imports numpy only.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_USERS = 512
"""Users summed up together: their sums stay in the cache."""


@dataclass(frozen=True)
class TrailSums:
    """What a release needs to sum up trails.

    inputs float32[V+1, D2]: by the number of an item, the last row is zeros; lags float32[W]: a_k, nearest first; bias
    float32[D2]; weight: w; columns: those of a vector that a trail replaces: also those of the interest if the release was
    reduced, as its dimensions mix both parts. vector_size: D.
    """

    inputs: NDArray[np.float32]
    lags: NDArray[np.float32]
    bias: NDArray[np.float32]
    weight: np.float32
    columns: slice
    vector_size: int

    @classmethod
    def of_release(cls, manifest: dict[str, Any], inputs: NDArray[np.float32]) -> "TrailSums":
        """Return the sums of a release. inputs float32[V, D2]: a column of the file in its manifest's entry `trail`."""
        about = manifest["trail"]
        lags, bias = (np.array(about[name], np.float32) for name in ("lags", "bias"))
        rows = np.concatenate([inputs, np.zeros((1, inputs.shape[1]), np.float32)])
        return cls(rows, lags, bias, np.float32(about["weight"]), slice(*about["columns"]), manifest["vector_size"])

    def renew(
        self, vectors: NDArray[np.float32], rows: NDArray[np.intp], ends: NDArray[np.intp]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return vectors float32[n, D] with the trails of the last pages, and whose are renewed, bool[n].

        vectors float32[n, D]: last night's; zeros for a user without one, who then has no interest, no activity, and is ranked
        for by the trail alone. rows, ends: as of `FoundPages`. A user without a known page keeps the vector.
        Raises ValueError for vectors of another shape.
        """
        if vectors.shape != (expected := (len(ends) - 1, self.vector_size)):
            raise ValueError(f"vectors of shape {vectors.shape} are given, where the pages need {expected}")
        chosen = self.choose_last(rows, ends)
        is_known = chosen[:, 0] < len(self.inputs) - 1
        renewed = vectors.astype(np.float32)
        renewed[is_known, self.columns] = self.sum_pages(chosen[is_known])
        return renewed, is_known

    def choose_last(self, rows: NDArray[np.intp], ends: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the last W known pages of each user, nearest first, intp[n, W]; V where there are fewer."""
        is_kept = rows >= 0
        is_first = np.zeros(len(rows) + 1, dtype=bool)
        is_first[ends[:-1]] = True
        is_kept[1:] &= (rows[1:] != rows[:-1]) | is_first[1:-1]
        kept = np.concatenate(([0], np.cumsum(is_kept)))
        users = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        lags = kept[ends[1:]][users] - kept[1:]
        is_near = is_kept & (lags < len(self.lags))
        chosen = np.full((len(ends) - 1, len(self.lags)), len(self.inputs) - 1, np.intp)
        chosen[users[is_near], lags[is_near]] = rows[is_near]
        return chosen

    def sum_pages(self, chosen: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the weighted trails float32[n, D2] of pages as `choose_last` returns them, intp[n, W]."""
        scales = self.weight * scale_of(np.sum((chosen < len(self.inputs) - 1) * self.lags**2, axis=1))
        trails = np.empty((len(chosen), self.inputs.shape[1]), np.float32)
        for start in range(0, len(chosen), BLOCK_USERS):
            block = slice(start, start + BLOCK_USERS)
            sums = trails[block]
            np.multiply(self.inputs.take(chosen[block, 0], axis=0), self.lags[0], out=sums)
            for lag in range(1, len(self.lags)):
                rows = self.inputs.take(chosen[block, lag], axis=0)
                rows *= self.lags[lag]
                sums += rows
            sums *= scales[block, None]
            sums += self.weight * self.bias
        return trails


def scale_of(squares: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 over the fourth root of sums of squared weights, float32[n]."""
    return (1 / np.sqrt(np.sqrt(np.maximum(squares, np.float32(1e-12))))).astype(np.float32)
