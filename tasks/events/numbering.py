"""Strings as numbers: what is done once a distinct string need not be done once an event, and numbers sort fast."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def number_strings(strings: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.int32], pa.Array]:
    """The number of each of n strings, int32[n], and the distinct strings by their numbers; null is one of them.

    Numbers are in the order of first appearance. The distinct strings are large ones: together they may have over 2 GiB.
    """
    whole = strings if isinstance(strings, pa.ChunkedArray) else pa.chunked_array([strings])
    encoded = whole.cast(pa.large_string()).dictionary_encode(null_encoding="encode")
    if not encoded.num_chunks:
        return np.empty(0, dtype=np.int32), pa.array([], pa.large_string())
    return np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks]), encoded.chunk(0).dictionary


def sort_by(*keys: NDArray[Any]) -> NDArray[np.int64]:
    """The order of rows by keys, the last one first: `np.lexsort`, but a key that is in order costs next to nothing."""
    order = np.arange(len(keys[0]))
    for key in keys:
        order = order[np.argsort(key[order], kind="stable")]
    return order
