"""One space from night to night: where new items begin, and how a training that began anew is turned into the champion's space.

Vectors of releases that share a `space_id` may be compared: of an incremental night because it went on from the vectors there
were, of a full night because a rotation laid its most frequent items upon the same items of the champion.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tasks.corpus_folder import VOCABULARY
from trainer.align import Rotation, find_rotation
from trainer.corpus import Corpus
from trainer.store import Generation

ALIGN_ITEMS = 100_000
"""The rotation is fitted to items among the first so many of both vocabularies: of 128 dimensions far more than it needs."""
BATCH_ITEMS = 65_536
_SECTION = r"^([a-z][a-z0-9+.-]*://[^/]*/[^/]+|/[^/]+)/"
_HOST = r"^([a-z][a-z0-9+.-]*://[^/]*)"


def find_space_rotation(base: tuple[Corpus, Generation], new: tuple[Corpus, Generation]) -> Rotation:
    """The rotation from a new generation's space into the base's; of the identity where they share no item."""
    size = new[1].vector_size
    before, now = (_read_urls(corpus.folder, 0, ALIGN_ITEMS).with_row_index("row") for corpus, _ in (base, new))
    rows = now.join(before, on="url", how="inner", suffix="_base", maintain_order="left")

    def pairs() -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        newer, older = new[1].read_items(0, len(now)), base[1].read_items(0, len(before))
        yield newer[rows["row"].to_numpy()], older[rows["row_base"].to_numpy()]

    return find_rotation(pairs() if len(rows) else [], size)


def match_items(base: Path, new: Path) -> NDArray[np.int64]:
    """The row that each item of a new corpus's vocabulary has in the base's, int64[V]; -1 for items that it does not have."""
    before = pl.scan_parquet(base / VOCABULARY).select("url").with_row_index("row")
    found = pl.scan_parquet(new / VOCABULARY).select("url").join(before, on="url", how="left", maintain_order="left")
    return found.select(pl.col("row").cast(pl.Int64).fill_null(-1)).collect()["row"].to_numpy()


def begin_new_items(corpus: Corpus, base: Generation) -> NDArray[np.float32]:
    """First vectors of the items that the base does not have, float32[k, D]: the mean of those of their section that it has,
    of their host's where the section is new as well, otherwise zero, as items always begin.

    A section is a host and the first part of the path, or of a path alone its first part.
    """
    num_before = base.num_items
    new = _places_of(_read_urls(corpus.folder, num_before, corpus.num_items))
    means = np.zeros((len(new), base.vector_size), dtype=np.float32)
    for kind in ("host", "section"):  # the section's mean, where there is one, comes last
        wanted = new[kind].drop_nulls().unique(maintain_order=True)
        sums, counts = _sum_places(corpus.folder, base, kind, wanted, num_before)
        places = _number(new[kind], wanted)
        known = np.flatnonzero(places >= 0)
        known = known[counts[places[known]] > 0]
        means[known] = sums[places[known]] / counts[places[known], None]
    return means


def _sum_places(
    folder: Path, base: Generation, kind: str, wanted: pl.Series, num_items: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sums of the base's item vectors by section or host, float64[w, D], and how many they are, int64[w]."""
    sums, counts = np.zeros((len(wanted), base.vector_size)), np.zeros(len(wanted), dtype=np.int64)
    for start in range(0, num_items if len(wanted) else 0, BATCH_ITEMS):
        stop = min(start + BATCH_ITEMS, num_items)
        places = _number(_places_of(_read_urls(folder, start, stop))[kind], wanted)
        known = np.flatnonzero(places >= 0)
        np.add.at(sums, places[known], base.read_items(start, stop)[known])
        counts += np.bincount(places[known], minlength=len(wanted))
    return sums, counts


def _number(values: pl.Series, wanted: pl.Series) -> NDArray[np.int64]:
    """The place of each value among those wanted, int64[n]; -1 for others."""
    numbers = pl.DataFrame({"value": wanted}).with_row_index("number")
    found = pl.DataFrame({"value": values}).join(numbers, on="value", how="left", maintain_order="left")
    return found["number"].cast(pl.Int64).fill_null(-1).to_numpy()


def _places_of(urls: pl.DataFrame) -> pl.DataFrame:
    return urls.select(section=pl.col("url").str.extract(_SECTION), host=pl.col("url").str.extract(_HOST))


def _read_urls(folder: Path, start: int, stop: int) -> pl.DataFrame:
    """The urls of items `start` to `stop` of a corpus, by item_ix."""
    urls = pl.scan_parquet(folder / VOCABULARY).select("url").slice(start, max(stop - start, 0))
    return urls.collect()
