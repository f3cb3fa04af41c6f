"""Sums up trails from the last pages of users: a vector of this minute, with nothing trained.

With the input vectors c, the weights a of the lags and the pages that a user saw last, nearest first,

    trail = w (Σ_k a_k c_k / (Σ_k a_k²)^¼ + bias)

as the trainer does (trainer/kernels/README.md). A page that repeats the page before it and a page that the release does not know
are left out, as from a corpus. Of the others the newest W count, one for each lag.

MLflow copies this file beside the registered model. So it imports numpy only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_USERS = 512
"""Users summed up together: their sums stay in the cache."""


@dataclass(frozen=True)
class FoundPages:
    """Pages of n users, one after another: rows intp[m], the numbers of their items, -1 if unknown; ends intp[n+1]."""

    rows: NDArray[np.intp]
    ends: NDArray[np.intp]

    def count_unknown(self) -> NDArray[np.intp]:
        """Return the number of each user's pages that the release does not know, intp[n]."""
        return np.diff(np.concatenate(([0], np.cumsum(self.rows < 0)))[self.ends])

    def list_known(self) -> list[NDArray[np.intp]]:
        """Return the items of each user's pages that the release knows, in order."""
        known, ends = self.rows[self.rows >= 0], self.ends - np.concatenate(([0], np.cumsum(self.rows < 0)))[self.ends]
        return [known[start:end] for start, end in pairwise(ends.tolist())]


def find_pages(
    pages: Sequence[Sequence[str]], numbers: Mapping[str, int], find: Callable[[str], int], column: str = "pages"
) -> FoundPages:
    """Look up n lists of pages. numbers: of items; find: returns the number of a page that is none of them, or -1.

    Raises ValueError for pages that are no list of strings; it names the row and no page.
    """
    check_pages(pages, column)
    ends = np.cumsum([0, *map(len, pages)])
    rows = np.fromiter(map(numbers.get, chain.from_iterable(pages), repeat(-1)), np.intp, ends[-1])
    others = np.flatnonzero(rows < 0)
    if len(others):
        flat = list(chain.from_iterable(pages))
        found = {page: find(page) for page in {flat[place] for place in others}}
        rows[others] = [found[flat[place]] for place in others]
    return FoundPages(rows, ends)


@dataclass(frozen=True)
class TrailSums:
    """What a release needs to sum up trails.

    inputs float32[V+1, D2]: by the number of an item, the last row is zeros; lags float32[W]: a_k, nearest first; bias
    float32[D2]; weight: w; columns: those of a vector that a trail replaces, all of them if the release was reduced, as its
    dimensions mix both parts.
    """

    inputs: NDArray[np.float32]
    lags: NDArray[np.float32]
    bias: NDArray[np.float32]
    weight: np.float32
    columns: slice

    @classmethod
    def of_release(cls, manifest: dict[str, Any], inputs: NDArray[np.float32]) -> "TrailSums":
        """Return the sums of a release. inputs float32[V, D2]: a column of the file in its manifest's entry `trail`."""
        about = trail_of_release(manifest)
        lags, bias = (np.array(about[name], np.float32) for name in ("lags", "bias"))
        rows = np.concatenate([inputs, np.zeros((1, inputs.shape[1]), np.float32)])
        return cls(rows, lags, bias, np.float32(about["weight"]), slice(*about["columns"]))

    def renew(self, vectors: NDArray[np.float32], pages: FoundPages) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return vectors float32[n, D] with the trails of the last pages, and whose are renewed, bool[n].

        vectors float32[n, D]: last night's; zeros for a user without one, who then has no interest and is ranked for by the
        trail alone. pages: of these n users, oldest first. A user without a known page keeps the vector.
        Raises ValueError for vectors of another shape.
        """
        if vectors.shape != (num_users := len(pages.ends) - 1, self.columns.stop):
            raise ValueError(
                f"vectors of shape {vectors.shape} are given, where the pages need {(num_users, self.columns.stop)}"
            )
        chosen = self.choose_last(pages)
        is_known = chosen[:, 0] < len(self.inputs) - 1
        renewed = vectors.astype(np.float32)
        renewed[is_known, self.columns] = self.sum_pages(chosen[is_known])
        return renewed, is_known

    def choose_last(self, pages: FoundPages) -> NDArray[np.intp]:
        """Return the last W known pages of each user, nearest first, intp[n, W]; V where there are fewer."""
        rows, ends, num_users = pages.rows, pages.ends, len(pages.ends) - 1
        is_kept = rows >= 0
        is_first = np.zeros(len(rows) + 1, dtype=bool)
        is_first[ends[:-1]] = True
        is_kept[1:] &= (rows[1:] != rows[:-1]) | is_first[1:-1]
        kept = np.concatenate(([0], np.cumsum(is_kept)))
        users = np.repeat(np.arange(num_users), np.diff(ends))
        lags = kept[ends[1:]][users] - kept[1:]
        is_near = is_kept & (lags < len(self.lags))
        chosen = np.full((num_users, len(self.lags)), len(self.inputs) - 1, np.intp)
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


def trail_of_release(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest's entry `trail`. Raises ValueError for a release without one."""
    if "trail" not in manifest:
        raise ValueError(f"release {manifest['release']} cannot sum up pages: its vectors have no trail")
    return manifest["trail"]


def scale_of(squares: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 over the fourth root of sums of squared weights, float32[n]."""
    return (1 / np.sqrt(np.sqrt(np.maximum(squares, np.float32(1e-12))))).astype(np.float32)


def check_pages(pages: Sequence[Any], column: str) -> None:
    """Raise ValueError unless all are lists of strings. The message has no page: a URL may be private."""
    if any(not issubclass(kind, (list, tuple, np.ndarray)) for kind in set(map(type, pages))):
        row, given = next(one for one in enumerate(pages) if not isinstance(one[1], (list, tuple, np.ndarray)))
        what = "null" if given is None or isinstance(given, float) else f"of type {type(given).__name__}"
        raise ValueError(
            f"{column} in row {row:,} is {what}: give a list of URLs, oldest first, empty if there are none"
        )
    if any(not issubclass(kind, str) for kind in set(map(type, chain.from_iterable(pages)))):
        row = next(row for row, urls in enumerate(pages) if not all(isinstance(url, str) for url in urls))
        raise ValueError(
            f"{column} in row {row:,} has an entry that is not a string: give a list of URLs, oldest first"
        )
