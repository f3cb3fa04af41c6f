"""Keeps one space from night to night: first vectors of new items, and the rotation of a full night into the champion's space.

Vectors of releases with the same `space_id` can be compared. An incremental night continues from the existing vectors. A full
night is rotated so that its most frequent items lie near the same items of the champion.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_array

from trainer.store.align import Rotation, find_rotation
from trainer.store.generation import Generation
from trainer.store.tokens import Corpus

ALIGN_ITEMS = 100_000
"""The rotation is fitted to common items among the first so many of both vocabularies: far more than 128 dimensions need."""
BATCH_ITEMS = 65_536
_SECTION = r"^([a-z][a-z0-9+.-]*://[^/]*/[^/]+|/[^/]+)/"
_HOST = r"^([a-z][a-z0-9+.-]*://[^/]*)"


def find_space_rotation(base: tuple[Corpus, Generation], new: tuple[Corpus, Generation]) -> Rotation:
    """Return the rotation from a new generation's space into the base's; the identity if they share no item."""
    before, now = (_read_urls(corpus, 0, ALIGN_ITEMS).with_row_index("row") for corpus, _ in (base, new))
    rows = now.join(before, on="url", how="inner", suffix="_base", maintain_order="left")
    newer, older = new[1].read_items(0, len(now)), base[1].read_items(0, len(before))
    pairs = [(newer[rows["row"].to_numpy()], older[rows["row_base"].to_numpy()])]
    return find_rotation(pairs, new[1].vector_size, new[1].config.num_free)


def begin_new_items(corpus: Corpus, base: Generation) -> NDArray[np.float32]:
    """Return first vectors of the items that the base does not have, float32[k, D]: the mean of the base's items in their
    section, else in their host, else zero, the usual first vector of items.

    A section is the host and the first part of the path; without a host, only the first part of the path.
    """
    new = _read_places(corpus, base.num_items, corpus.num_items)
    means = np.zeros((len(new), base.vector_size), dtype=np.float32)
    for kind in ("host", "section"):  # the section comes last, as its mean replaces that of the host
        known = pl.Enum(new[kind].drop_nulls().unique(maintain_order=True))
        num_names = len(known.categories)
        sums, counts = np.zeros((num_names, base.vector_size)), np.zeros(num_names)
        for start in range(0, base.num_items if num_names else 0, BATCH_ITEMS):
            stop = min(start + BATCH_ITEMS, base.num_items)
            numbers = _number(_read_places(corpus, start, stop)[kind], known)
            rows = np.flatnonzero(numbers >= 0)
            pick = csr_array((np.ones(len(rows)), (numbers[rows], rows)), shape=(num_names, len(numbers)))
            sums += pick @ base.read_items(start, stop)
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
