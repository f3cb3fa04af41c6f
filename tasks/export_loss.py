"""What a reduced or narrower release loses of hit@10, measured on the held-out users.

By the time of the export the held-out users have been fitted again on all they did, the held-out item with it. So they
are inferred here once more from what training had seen of them, and ranked twice: in full, and as the release stores them.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.evaluate import Question, Score, questions, rank_held_out, score_by_tree, score_by_vectors
from tasks.export import MANIFEST
from tasks.reduction import project, read_projection
from tasks.vector_files import decode_vectors, encode_vectors
from trainer.corpus import Corpus
from trainer.events import OnEvent, ignore_event
from trainer.files import read_json
from trainer.infer import FrozenItems, freeze_items, infer_vectors
from trainer.store import Generation


def measure_loss(
    corpus: Corpus, generation: Generation, export_dir: Path, threads: int, on_event: OnEvent = ignore_event
) -> dict[str, float]:
    """`export_hit_at_10`, by the vectors as stored in `export_dir`, and `export_hit_at_10_loss`, against those in full.

    Empty for a release that is neither reduced nor narrower, and where no user was held out.
    """
    manifest = read_json(export_dir / MANIFEST)
    num_users = corpus.manifest["num_held_out"]
    if "storage" not in manifest or not num_users:
        return {}
    projection = read_projection(export_dir / manifest["projection"]["file"]) if "projection" in manifest else None
    frozen = freeze_items(generation, corpus.count_training_tokens(), threads)
    in_full, as_stored = _score(frozen, None), _score(frozen, projection)
    hits = np.zeros((0, 2), dtype=bool)
    for question in questions(corpus, _Unseen(corpus, frozen)):
        stored = _store(project(question.vectors, projection), manifest["storage"]["dtype"])
        ours = Question(stored, question.items, question.seen_rows, question.seen_items)
        answers = (rank_held_out(question, in_full, corpus.num_items), rank_held_out(ours, as_stored, corpus.num_items))
        hits = np.vstack([hits, np.stack([answer.ranks <= 10 for answer in answers], axis=1)])
        on_event("progress", {"step": "loss", "done": len(hits), "total": num_users, "unit": "users"})
    full, stored_hit = hits.mean(axis=0)
    return {"export_hit_at_10": float(stored_hit), "export_hit_at_10_loss": float(full - stored_hit)}


class _Unseen:
    """The held-out users as training saw them, inferred with the items frozen; other users are rows of zeros."""

    def __init__(self, corpus: Corpus, frozen: FrozenItems) -> None:
        self.corpus, self.frozen = corpus, frozen

    def read_users(self, partition: int, /) -> NDArray[np.float32]:
        histories = self.corpus.read(partition)
        held = np.flatnonzero(histories.is_held_out)
        spans = list(zip(histories.starts[held].tolist(), histories.ends[held].tolist(), strict=True))
        tokens = np.concatenate([histories.tokens[start:end] for start, end in spans])
        offsets = np.concatenate(([0], np.cumsum([end - start for start, end in spans]))).astype(np.int64)
        vectors = np.zeros((histories.num_users, self.frozen.config.vector_size), dtype=np.float32)
        vectors[held] = infer_vectors(self.frozen, tokens, offsets, histories.hashes[held]).vectors
        return vectors


def _score(frozen: FrozenItems, projection: NDArray[np.float32] | None) -> Score:
    """How items, or the rows of a tree, rank for users that were multiplied by the same projection."""
    outputs = project(frozen.items.outputs.vectors, projection)
    return score_by_vectors(outputs) if frozen.tree is None else score_by_tree(frozen.tree, outputs)


def _store(vectors: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """The vectors as a reader of an export gets them."""
    return vectors if dtype == "float32" else decode_vectors(pa.table(encode_vectors(vectors, dtype)))
