"""Vectors with a name each, and gensim's models in memory: without pickle, and without gensim but where it is asked for."""

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


@dataclass(frozen=True)
class ModelVectors:
    """What a gensim model has learned. `outputs` has the names of `items`: with dm=0 and dbow_words=0 it alone is trained."""

    items: NamedVectors
    outputs: NamedVectors | None
    users: NamedVectors | None


def named_vectors_of(model: Any) -> ModelVectors:
    """The vectors of a gensim Doc2Vec, Word2Vec or KeyedVectors. Raises ConfigError when it is none or has faulty numbers.

    Items are `wv`, outputs `syn1neg` (None without negative sampling), users `dv` (None but for Doc2Vec; integer tags
    become their digits). The arrays are the model's own where they are float32 already.
    """
    word_vectors = getattr(model, "wv", model)
    if not (hasattr(word_vectors, "index_to_key") and hasattr(word_vectors, "vectors")):
        raise ConfigError(f"a {type(model).__name__} is no model of gensim 4: give a Doc2Vec, Word2Vec or KeyedVectors")
    items = name_vectors(word_vectors.index_to_key, word_vectors.vectors, "wv")
    output_vectors, user_vectors = getattr(model, "syn1neg", None), getattr(model, "dv", None)
    outputs = None if output_vectors is None else name_vectors(items.names, output_vectors, "syn1neg")
    if user_vectors is None:
        return ModelVectors(items, outputs, None)
    tags = [str(tag) for tag in user_vectors.index_to_key]
    return ModelVectors(items, outputs, name_vectors(tags, user_vectors.vectors, "dv"))


def to_keyed_vectors(names: Names, vectors: NDArray[np.float32]) -> Any:
    """A gensim KeyedVectors of names[n] and float32[n, D]. Raises ConfigError where gensim is missing."""
    try:
        from gensim.models import KeyedVectors
    except ImportError:
        raise ConfigError("gensim is not installed: pip install gensim, or use a word2vec-format file") from None
    named = name_vectors(names, vectors, "the vectors")
    keyed = KeyedVectors(vectors.shape[1])
    keyed.add_vectors(named.names.to_pylist(), named.vectors)
    return keyed


def name_vectors(names: Names, vectors: NDArray[Any], what: str) -> NamedVectors:
    """Put names[n] and finite numbers[n, D] together. Raises ConfigError, speaking of `what`, where they do not fit."""
    array, vectors = as_names(names), as_float32(vectors)
    if vectors.ndim != 2 or len(vectors) != len(array):
        raise ConfigError(f"{what}: vectors of shape {vectors.shape} for {len(array):,} names; each needs a row")
    bad = first_not_finite(vectors)
    if bad is not None:
        raise ConfigError(f"{what}: row {bad + 1:,} of {len(array):,} has a number that is not finite; train it again")
    repeat = first_repeat(array)
    if repeat:
        raise ConfigError(f"{what}: {repeat}; names must be distinct")
    return NamedVectors(array, vectors)


def align_rows(named: NamedVectors, urls: Names) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each of `urls`[m] stands in `named`: rows int64[m], -1 where nowhere, and found bool[m].

    A url is also found under the name that `write_word2vec` gives it.
    """
    wanted = as_names(urls)
    rows = _index_in(wanted, named.names)
    missing = np.flatnonzero(rows < 0)
    encoded, count = encode_names(wanted.take(pa.array(missing)))
    if count:
        rows[missing] = _index_in(encoded, named.names)
    return rows, rows >= 0


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


def as_float32(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers as contiguous float32, the same array where they are; those beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(vectors, dtype=np.float32)


def _index_in(wanted: pa.LargeStringArray, names: pa.LargeStringArray) -> NDArray[np.int64]:
    return pc.fill_null(pc.index_in(wanted, value_set=names), -1).to_numpy(zero_copy_only=False).astype(np.int64)


def first_not_finite(vectors: NDArray[Any]) -> int | None:
    """The first row that has a number that is not finite."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    return int(bad[0]) if len(bad) else None


def first_repeat(names: pa.LargeStringArray) -> str | None:
    """What to say of names that occur more than once."""
    num_repeats = len(names) - pc.count_distinct(names).as_py()
    if not num_repeats:
        return None
    codes = (
        names.dictionary_encode().indices.to_numpy()
    )  # in order of first appearance: a new one is the greatest so far
    repeat = int(np.flatnonzero(codes[1:] <= np.maximum.accumulate(codes)[:-1])[0]) + 1
    first = int(np.flatnonzero(codes == codes[repeat])[0])
    return f"{num_repeats:,} rows repeat a name, the first of them row {repeat + 1:,} that of row {first + 1:,}"
