"""Counts the scores above a held-out item's and finds the best, compiled: numpy passes over all scores once for each."""
# mypy: no-check-untyped-defs

import numba
import numpy as np

from surf2vec.trainer.kernels.llvm import OPTIONS, prefer_wide_vectors

_EXACT = OPTIONS | {"fastmath": False}  # the lowest score is minus infinity


@numba.njit(nogil=True, cache=True, **_EXACT)
def count_scores(scores, held, least, above, ties, reached):
    """Add to above and ties int64[m] how many of the scores float32[m, n] of each row are above held float32[m], or equal; set
    reached int64[m] to how many are at least `least` float32[m].
    """
    prefer_wide_vectors()
    for i in range(scores.shape[0]):
        num_above = num_equal = num_reached = np.int32(0)
        for j in range(scores.shape[1]):
            num_above += np.int32(scores[i, j] > held[i])
            num_equal += np.int32(scores[i, j] == held[i])
            num_reached += np.int32(scores[i, j] >= least[i])
        above[i] += num_above
        ties[i] += num_equal
        reached[i] = num_reached


@numba.njit(nogil=True, cache=True, **_EXACT)
def find_reached(scores, least, reached, columns):
    """Fill columns int64[sum(reached)] with those of the scores of at least `least` float32[m], row by row."""
    at = 0
    for i in range(scores.shape[0]):
        j, end = 0, at + reached[i]
        while at < end:
            columns[at] = j
            at += scores[i, j] >= least[i]
            j += 1
