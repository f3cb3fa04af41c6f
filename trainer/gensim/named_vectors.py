"""Vectors with a name each: put together, checked, and found by name."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainer.errors import ConfigError

Names: TypeAlias = Sequence[str] | pa.Array | pa.ChunkedArray

_BREAKING = r"[\x00-\x20]"


@dataclass(frozen=True)
class NamedVectors:
    """Vectors with a name each: names large_string[n], distinct; vectors float32[n, D], finite."""

    names: pa.LargeStringArray
    vectors: NDArray[np.float32]


def name_vectors(names: Names, vectors: NDArray[Any], what: str) -> NamedVectors:
    """Put names[n] and finite numbers[n, D] together. Raises ConfigError, speaking of `what`, where they do not fit."""
    array = as_names(names)
    with np.errstate(over="ignore"):  # numbers beyond the range of float32 become infinite
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(array):
        raise ConfigError(f"{what}: vectors of shape {vectors.shape} for {len(array):,} names; each needs a row")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise ConfigError(
            f"{what}: row {bad[0] + 1:,} has a number that is not finite; train again, with a lower alpha"
        )
    _, first = np.unique(array.dictionary_encode().indices.to_numpy(), return_index=True)
    if len(first) < len(array):
        repeat = np.setdiff1d(np.arange(len(array)), first)[0] + 1
        raise ConfigError(
            f"{what}: {len(array) - len(first):,} rows repeat a name, the first of them row {repeat:,}; names must be distinct"
        )
    return NamedVectors(array, vectors)


def align_rows(named: NamedVectors, urls: Names) -> NDArray[np.int64]:
    """Where each of `urls`[m] stands in `named`: int64[m], -1 where nowhere.

    A url is also found under the name that `write_word2vec` gives it.
    """
    wanted = as_names(urls)
    rows = pc.index_in(wanted, value_set=named.names)
    rows = pc.coalesce(rows, pc.index_in(encode_names(wanted)[0], value_set=named.names), pa.scalar(-1, pa.int32()))
    return rows.to_numpy(zero_copy_only=False).astype(np.int64)


def encode_names(names: pa.LargeStringArray) -> tuple[pa.LargeStringArray, int]:
    """The names as `write_word2vec` writes them, and how many of them differ."""
    count = pc.sum(pc.match_substring_regex(names, _BREAKING)).as_py() or 0
    if not count:
        return names, 0
    encoded = [re.sub(_BREAKING, lambda match: f"%{ord(match[0]):02X}", name) for name in names.to_pylist()]
    return pa.array(encoded, pa.large_string()), count


def as_names(names: Names) -> pa.LargeStringArray:
    """Any sequence of strings as one Arrow array. Raises ConfigError for anything else in it."""
    try:
        array = names if isinstance(names, pa.Array | pa.ChunkedArray) else pa.array(names, pa.large_string())
        array = (array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array).cast(pa.large_string())
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise ConfigError(f"names must be Unicode strings, not all of these are ({type(error).__name__})") from None
    if array.null_count:
        raise ConfigError(f"{array.null_count:,} of {len(array):,} names are missing: each row needs one")
    return array
