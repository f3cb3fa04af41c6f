"""Releases whose vectors have a path, and what their generation has seen of each user."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.root.run import Root, open_root
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from tests.roots.ingest import write_log
from tests.roots.releases import export_release
from tests.roots.training import MEMORY_BYTES, train_root

NUM_USERS, NUM_PAGES = 200, 20
STORED: dict[str, dict[str, Any]] = {"whole": {}, "narrow": {"dtype": "float16"}, "reduced": {"pca_dim": 10}}


def corpus_of(root: Root) -> Corpus:
    """The root's only corpus."""
    [folder] = (root.path / "corpus").iterdir()
    return open_corpus(folder)


def make_trail_root(path: Path, parts: str = "both") -> Root:
    """A root with a training of both parts, or of the trail alone, and an export of it for each of STORED.

    Users walk from a page to the next, with a jump here and there.
    """
    root = open_root(path)
    lines = [
        f"user-{n},/page/{(n + step + (n * step) % 11 // 8) % NUM_PAGES},2026-01-01T00:00:{step:02d}Z"
        for n in range(NUM_USERS) for step in range(3 + n % 7)
    ]  # fmt: skip
    log = write_log(path.parent / "walks.csv", *lines)
    ingest(root, [str(log)], IngestConfig(), 4, MEMORY_BYTES, 1, ignore_event)
    built = build_corpus(root, CorpusRequest(IngestConfig(), EvaluateConfig()), MEMORY_BYTES, 1)
    train_root(root, built["window_id"], vector_size=16, parts=parts)
    for name, storage in STORED.items():
        export_release(root, name, corpus_of(root).folder, open_generation(root.store), **storage)
    return root


def histories_of(root: Root) -> dict[str, list[str]]:
    """The pages of each user that the store's generation has seen."""
    corpus = corpus_of(root)
    urls = pq.read_table(corpus.vocabulary)["url"].to_pylist()
    found = {}
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        spans = zip(corpus.read_ids(partition).to_pylist(), histories.starts, histories.ends, strict=True)
        found |= {user: [urls[item] for item in histories.tokens[start:end]] for user, start, end in spans}
    return found
