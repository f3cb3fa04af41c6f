"""Keeps one space from night to night: first vectors of new items, and the rotation of a full night into the champion's space.

Vectors of releases with the same `space_id` can be compared. An incremental night continues from the existing vectors. A full
night is rotated so that its most frequent items lie near the same items of the champion.
"""

from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_array

from surf2vec.trainer.model.rows import PER_ITEM
from surf2vec.trainer.store.align import Rotation, find_rotation
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.tokens import Corpus

ALIGN_ITEMS = 100_000
"""The rotation is fitted to common items among the first so many of both vocabularies: far more than 128 dimensions need."""
BATCH_ITEMS = 65_536
Side = tuple[Corpus, Generation]
Read = Callable[[int, int], NDArray[np.float32]]
"""Reads the vectors of items from and up to."""
_SECTION = r"^([a-z][a-z0-9+.-]*://[^/]*/[^/]+|/[^/]+)/"
_HOST = r"^([a-z][a-z0-9+.-]*://[^/]*)"


def find_space_rotations(base: Side, new: Side) -> dict[str, Rotation]:
    """Return the rotation of each part from a new generation's space into the base's; the identity if they share no item."""
    before, now = (_read_urls(corpus, 0, ALIGN_ITEMS).with_row_index("row") for corpus, _ in (base, new))
    rows = now.join(before, on="url", how="inner", suffix="_base", maintain_order="left")
    own, other = rows["row"].to_numpy(), rows["row_base"].to_numpy()
    older, newer, config = _tables_of(base[1]), _tables_of(new[1]), new[1].config
    rotations = {}
    for part, size in config.part_sizes.items():
        pairs = [
            (read(0, len(now))[own], older[part][name](0, len(before))[other]) for name, read in newer[part].items()
        ]
        rotations[part] = find_rotation(pairs, size, max(0, size - config.num_biases[part]))
    return rotations


def begin_new_items(corpus: Corpus, base: Generation) -> dict[str, dict[str, NDArray[np.float32]]]:
    """Return first vectors of the items that the base does not have, by part and table."""
    return {
        part: {name: _begin_from_means(corpus, base.num_items, read) for name, read in tables.items()}
        for part, tables in _tables_of(base).items()
    }


def _tables_of(generation: Generation) -> dict[str, dict[str, Read]]:
    """Return how to read the item vectors of each part that are in its space: of the interest those that rank items."""

    def reader(part: str, name: str) -> Read:
        return lambda start, stop: getattr(generation.map_items(part), name).vectors[start:stop]

    tables = {part: {name: reader(part, name) for name in PER_ITEM} for part in generation.manifest["items"]}
    return tables | {"interest": {"outputs": generation.read_items}}


def _begin_from_means(corpus: Corpus, num_known: int, read: Read) -> NDArray[np.float32]:
    """Return first vectors of items after the first `num_known`, float32[k, D]: the mean of the known items in their section,
    else in their host, else zero, the usual first vector of items.

    A section is the host and the first part of the path; without a host, only the first part of the path.
    """
    new, size = _read_places(corpus, num_known, corpus.num_items), read(0, 0).shape[1]
    means = np.zeros((len(new), size), dtype=np.float32)
    for kind in ("host", "section"):  # the section comes last, as its mean replaces that of the host
        known = pl.Enum(new[kind].drop_nulls().unique(maintain_order=True))
        num_names = len(known.categories)
        sums, counts = np.zeros((num_names, size)), np.zeros(num_names)
        for start in range(0, num_known if num_names else 0, BATCH_ITEMS):
            stop = min(start + BATCH_ITEMS, num_known)
            numbers = _number(_read_places(corpus, start, stop)[kind], known)
            rows = np.flatnonzero(numbers >= 0)
            pick = csr_array((np.ones(len(rows)), (numbers[rows], rows)), shape=(num_names, len(numbers)))
            sums += pick @ read(start, stop)
            counts += pick.sum(axis=1)
        numbers = _number(new[kind], known)
        found = np.flatnonzero((numbers >= 0) & (np.append(counts, 0)[numbers] > 0))
        means[found] = sums[numbers[found]] / counts[numbers[found], None]
    return means


def _number(names: pl.Series, known: pl.Enum) -> NDArray[np.int64]:
    """Return the position of each name among the known ones, int64[n]; -1 for others."""
    return names.cast(known, strict=False).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()


def _read_places(corpus: Corpus, start: int, stop: int) -> pl.DataFrame:
    """Return section and host of items `start` to `stop`, null if there is none."""
    urls = _read_urls(corpus, start, stop)
    return urls.select(section=pl.col("url").str.extract(_SECTION), host=pl.col("url").str.extract(_HOST))


def _read_urls(corpus: Corpus, start: int, stop: int) -> pl.DataFrame:
    """Return the urls of items `start` to `stop` of a corpus, by item_ix."""
    urls = pl.scan_parquet(corpus.vocabulary).select("url").slice(start, max(stop - start, 0))
    return urls.collect()
