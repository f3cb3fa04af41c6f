"""The corpora that the steps train: planted topics, and a real log where its file is at hand."""

import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.benchmarks.acceptance.report import Report

if TYPE_CHECKING:
    from surf2vec.trainer.store.tokens import Corpus

DATA = Path(os.environ.get("SURF2VEC_DATA", Path(__file__).parents[4] / "shared" / "data"))
REAL_LOG = DATA / "wikispeedia_unfinished.parquet"


def write_planted(report: Report, name: str) -> "Corpus":
    """A corpus of users who each visit the items of one topic."""
    from tests.data.corpora import planted_histories, write_corpus

    histories = planted_histories(num_users=report.size(20_000, 12), num_items=report.size(600, 12))
    return write_corpus(report.folder / name, histories, partitions=report.size(4, 2))


def write_real(report: Report) -> "Corpus":
    """A corpus of the real log in its own order of time, of pages with five visits or more; without the cleaning of an ingest."""
    import pyarrow.parquet as pq

    from tests.data.corpora import write_corpus

    events = pq.read_table(REAL_LOG).sort_by([("user_id", "ascending"), ("ts", "ascending")])
    users, urls = (np.array(events[column].to_pylist()) for column in ("user_id", "url"))
    _, items, counts = np.unique(urls, return_inverse=True, return_counts=True)
    is_kept = counts[items] >= 5
    numbers = np.cumsum(counts >= 5) - 1
    users, items = users[is_kept], numbers[items[is_kept]]
    bounds = np.flatnonzero(np.concatenate(([True], users[1:] != users[:-1], [True])))[: report.size(10**9, 20)]
    histories = {
        str(users[start]): items[start:end].tolist() for start, end in pairwise(bounds.tolist()) if end - start > 1
    }
    return write_corpus(report.folder / "real", histories, partitions=report.size(8, 2), num_items=int(numbers[-1]) + 1)
