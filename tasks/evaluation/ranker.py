"""The release that serves, as another one meets it: the tokens that it has seen, its users' vectors, and how it ranks items.

They come from the generation that is pinned under its name, or else, without a tree, from its export.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.corpus.folder import CORPUS_MANIFEST
from tasks.evaluation.evaluate import UserReader
from tasks.evaluation.scores import Scores, VectorScores, score_of
from tasks.export.export import EXPORT_MANIFEST, ITEM_ROW_GROUP_ROWS, path_of, read_part_of
from tasks.export.vector_files import decode_vectors
from tasks.root.run import Root
from trainer.store.generation import Generation
from trainer.store.tokens import Corpus, open_corpus
from trainer.store.writer import find_pinned
from trainer.system.files import read_json
from trainer.training.infer import FrozenItems, freeze_items


@dataclass(frozen=True)
class Ranker:
    """What ranks items for users: `users` has their vectors, a micro-partition of `corpus` at a time.

    frozen: its items, to fit vectors to; None where users' vectors are to be taken as they are.
    """

    corpus: Corpus
    users: UserReader
    scores: Scores
    vector_size: int
    frozen: FrozenItems | None = None


def side_of(corpus: Corpus, generation: Generation) -> Ranker:
    """A generation and the corpus that it was trained on."""
    has_vectors = generation.has_item_vectors  # then only the number of counts is looked at
    counts = np.zeros(corpus.num_items, np.int64) if has_vectors else corpus.count_training_tokens()
    return Ranker(corpus, generation, score_of(generation, counts), generation.vector_size)


def open_side(root: Root, release: str) -> Ranker | str:
    """A release that was registered, or in words what of it is gone. Raises DamageError for what is there and altered."""
    generation = find_pinned(root.store, release)
    if generation is not None:
        corpus_dir = root.corpus(generation.manifest["window_id"])
        if (corpus_dir / CORPUS_MANIFEST).exists():
            corpus = open_corpus(corpus_dir)
            counts = corpus.count_training_tokens()
            frozen = freeze_items(generation, counts, generation.config.threads)
            return Ranker(corpus, generation, score_of(generation, counts), generation.vector_size, frozen)
    export_dir = root.export(release)
    if not (export_dir / EXPORT_MANIFEST).exists():
        return f"of release {release} neither its pinned generation with its corpus nor its export is left"
    manifest = read_json(export_dir / EXPORT_MANIFEST)
    corpus_dir = root.corpus(manifest["created_from"]["window_id"])
    if not (corpus_dir / CORPUS_MANIFEST).exists():
        return f"the corpus of release {release} is gone, so nobody knows what it has seen"
    if not manifest["item_files"]:
        return f"the pinned generation of release {release} is gone, and a tree's export has no items to rank"
    corpus = open_corpus(corpus_dir)
    exported = Exported(export_dir, manifest, corpus)
    scores = VectorScores(exported.read_items, corpus.num_items, exported.vector_size)
    return Ranker(corpus, exported, scores, exported.vector_size)


@dataclass(frozen=True)
class Exported:
    """The vectors of an export, as readers of a generation get them."""

    export_dir: Path
    manifest: dict[str, Any]
    corpus: Corpus

    @property
    def vector_size(self) -> int:
        return self.manifest["vector_size"]

    def read_users(self, partition: int, /) -> NDArray[np.float32]:
        """float32[n, D] by the rows of the corpus; zeros for a row that the export has not."""
        vectors = np.zeros((int(self.corpus.users[partition]), self.vector_size), np.float32)
        table = read_part_of(self.export_dir, self.manifest, partition)
        if table is not None:
            rows = pc.index_in(table["user_id"], value_set=self.corpus.read_ids(partition)).to_numpy()
            vectors[rows] = decode_vectors(table)
        return vectors

    def read_items(self, start: int, stop: int) -> NDArray[np.float32]:
        """The vectors of items `start` to `stop`, float32[n, D]; whole row groups are read."""
        first, last = start // ITEM_ROW_GROUP_ROWS, -(-stop // ITEM_ROW_GROUP_ROWS)
        table = self._items.read_row_groups(range(first, last), columns=["vector"])
        offset = first * ITEM_ROW_GROUP_ROWS
        return decode_vectors(table)[start - offset : stop - offset].copy()

    @cached_property
    def _items(self) -> pq.ParquetFile:
        return pq.ParquetFile(path_of(self.export_dir, self.manifest, "item_vectors/part-00000.parquet"))
