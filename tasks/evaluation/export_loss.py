"""What a reduced or narrower release loses of hit@10, measured on the held-out users.

By the time of the export the held-out users have been fitted again on all they did, the held-out item with it. So they
are inferred here once more from what training had seen of them, and ranked twice: in full, and as the release stores them.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.evaluation.evaluate import Question, join_questions, questions, rank_held_out
from tasks.evaluation.scores import score_of
from tasks.export.export import EXPORT_MANIFEST, path_of
from tasks.export.reduction import project, read_projection
from tasks.export.vector_files import decode_vectors, encode_vectors
from trainer.events import OnEvent, ignore_event
from trainer.store.generation import Generation
from trainer.store.tokens import Corpus, Histories
from trainer.system.files import read_json
from trainer.training.infer import FrozenItems, freeze_items, infer_parts, take_histories


def measure_loss(
    corpus: Corpus, generation: Generation, export_dir: Path, threads: int, on_event: OnEvent = ignore_event
) -> dict[str, float]:
    """`export_hit_at_10`, by the vectors as stored in `export_dir`, and `export_hit_at_10_loss`, against those in full.

    Empty for a release that is neither reduced nor narrower, and where no user was held out.
    """
    manifest = read_json(export_dir / EXPORT_MANIFEST)
    num_users = corpus.manifest["num_held_out"]
    if "storage" not in manifest or not num_users:
        return {}
    projection = (
        read_projection(path_of(export_dir, manifest, manifest["projection"]["file"]))
        if "projection" in manifest
        else None
    )
    frozen = freeze_items(generation, corpus.count_training_tokens(), threads)
    in_full = score_of(generation, frozen.blocks.counts)
    as_stored = score_of(generation, frozen.blocks.counts, partial(project, projection=projection))
    hits = np.zeros((0, 2), dtype=bool)
    for question in join_questions(_ask_unseen(corpus, frozen)):
        stored = _store(project(question.vectors, projection), manifest["storage"]["dtype"])
        ours = replace(question, vectors=stored)
        answers = (rank_held_out(question, in_full), rank_held_out(ours, as_stored))
        hits = np.vstack([hits, np.stack([answer.ranks <= 10 for answer in answers], axis=1)])
        on_event("progress", {"step": "loss", "done": len(hits), "total": num_users, "unit": "users"})
    full, stored_hit = hits.mean(axis=0)
    return {"export_hit_at_10": float(stored_hit), "export_hit_at_10_loss": float(full - stored_hit)}


def _ask_unseen(corpus: Corpus, frozen: FrozenItems) -> Iterator[Question]:
    """The questions of the held-out users as training saw them: inferred with the items frozen."""
    fitted = infer_parts(frozen, ((None, histories) for histories in _read_held_out(corpus)))
    for question, (_, rows) in zip(questions(corpus, None), fitted, strict=True):
        yield replace(question, vectors=rows.vectors)


def _read_held_out(corpus: Corpus) -> Iterator[Histories]:
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        held = np.flatnonzero(histories.is_held_out)
        if len(held):
            yield take_histories(histories, held, histories.ends[held])


def _store(vectors: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """The vectors as a reader of an export gets them."""
    return vectors if dtype == "float32" else decode_vectors(pa.table(encode_vectors(vectors, dtype)))
