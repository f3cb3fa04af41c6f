"""One space from night to night: where new items begin, and how a training that began anew is turned into the champion's space.

Vectors of releases that share a `space_id` may be compared: of an incremental night because it went on from the vectors there
were, of a full night because a rotation laid its most frequent items upon the same items of the champion.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trainer.store.align import Rotation, find_rotation
from trainer.store.generation import Generation
from trainer.store.tokens import Corpus

ALIGN_ITEMS = 100_000
"""The rotation is fitted to items among the first so many of both vocabularies: of 128 dimensions far more than it needs."""
BATCH_ITEMS = 65_536
_SECTION = r"^([a-z][a-z0-9+.-]*://[^/]*/[^/]+|/[^/]+)/"
_HOST = r"^([a-z][a-z0-9+.-]*://[^/]*)"


def find_space_rotation(base: tuple[Corpus, Generation], new: tuple[Corpus, Generation]) -> Rotation:
    """The rotation from a new generation's space into the base's; of the identity where they share no item."""
    before, now = (_read_urls(corpus, 0, ALIGN_ITEMS).with_row_index("row") for corpus, _ in (base, new))
    rows = now.join(before, on="url", how="inner", suffix="_base", maintain_order="left")

    def pairs() -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        newer, older = new[1].read_items(0, len(now)), base[1].read_items(0, len(before))
        yield newer[rows["row"].to_numpy()], older[rows["row_base"].to_numpy()]

    return find_rotation(pairs() if len(rows) else [], new[1].vector_size, new[1].config.num_free)


def begin_new_items(corpus: Corpus, base: Generation) -> NDArray[np.float32]:
    """First vectors of the items that the base does not have, float32[k, D]: the mean of those of their section that it has,
    of their host's where the section is new as well, otherwise zero, as items always begin.

    A section is a host and the first part of the path, or of a path alone its first part.
    """
    num_before = base.num_items
    new = _read_places(corpus, num_before, corpus.num_items)
    means = np.zeros((len(new), base.vector_size), dtype=np.float32)
    if not len(new):
        return means
    groups = [_Group(new[kind], base.vector_size) for kind in ("host", "section")]
    for start in range(0, num_before, BATCH_ITEMS):
        stop = min(start + BATCH_ITEMS, num_before)
        places, vectors = _read_places(corpus, start, stop), base.read_items(start, stop)
        for group in groups:
            group.add(places[group.kind], vectors)
    for group in groups:  # the section's mean, where there is one, comes last
        known, found = group.means()
        means[known] = found
    return means


class _Group:
    """Sums of the base's item vectors by host or by section, of those that new items have: new, a column of n names."""

    def __init__(self, new: pl.Series, vector_size: int) -> None:
        self.kind, self.wanted = new.name, new.drop_nulls().unique(maintain_order=True)
        self.places = _number(new, self.wanted)
        self.sums, self.counts = np.zeros((len(self.wanted), vector_size)), np.zeros(len(self.wanted), dtype=np.int64)

    def add(self, names: pl.Series, vectors: NDArray[np.float32]) -> None:
        """Count items in by their names; vectors float32[m, D]."""
        places = _number(names, self.wanted)
        rows = np.flatnonzero(places >= 0)
        rows = rows[np.argsort(places[rows], kind="stable")]
        found, starts, counts = np.unique(places[rows], return_index=True, return_counts=True)
        if len(rows):
            self.sums[found] += np.add.reduceat(vectors[rows], starts, axis=0, dtype=np.float64)
            self.counts[found] += counts

    def means(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The new items whose host or section has items, int64[k], and the mean of these, float64[k, D]."""
        known = np.flatnonzero(self.places >= 0)
        known = known[self.counts[self.places[known]] > 0]
        places = self.places[known]
        return known, self.sums[places] / self.counts[places, None]


def _number(values: pl.Series, wanted: pl.Series) -> NDArray[np.int64]:
    """The place of each value among those wanted, int64[n]; -1 for others."""
    numbers = pl.DataFrame({"value": wanted}).with_row_index("number")
    found = pl.DataFrame({"value": values}).join(numbers, on="value", how="left", maintain_order="left")
    return found["number"].cast(pl.Int64).fill_null(-1).to_numpy()


def _read_places(corpus: Corpus, start: int, stop: int) -> pl.DataFrame:
    """Section and host of items `start` to `stop`, null where there is none."""
    urls = _read_urls(corpus, start, stop)
    return urls.select(section=pl.col("url").str.extract(_SECTION), host=pl.col("url").str.extract(_HOST))


def _read_urls(corpus: Corpus, start: int, stop: int) -> pl.DataFrame:
    """The urls of items `start` to `stop` of a corpus, by item_ix."""
    urls = pl.scan_parquet(corpus.vocabulary).select("url").slice(start, max(stop - start, 0))
    return urls.collect()
