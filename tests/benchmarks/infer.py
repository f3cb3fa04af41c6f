"""Inference beside training: every user of a log inferred anew from the very tokens that training saw, items frozen.

Measured on the shipped defaults: the share of users whose nearest trained user (cosine, exact) is themself, among those
with at least 5 training tokens, beside the share that chance would give; hit@10 of inferred vectors beside trained ones;
users a second; and whether two calls give the same bytes.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.evaluate import measure, rank_held_out
from tasks.export.export import unit_rows
from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import MEMORY_BYTES, THREADS, held_out_question, held_out_rows, make_corpus
from tests.scored import score_by_vectors
from trainer.config import TrainConfig
from trainer.store.generation import open_generation
from trainer.store.tokens import Corpus, Histories
from trainer.training.infer import FrozenItems, freeze_items, infer_vectors
from trainer.training.job import Job
from trainer.training.loop import train

LOGS = ("wikispeedia_unfinished", "yoochoose_100k")
MIN_TOKENS = 5
MARK = 0.5
BATCH = 1024


def training_histories(corpus: Corpus, partition: int) -> Histories:
    """The histories of a micro-partition without what was held out of training."""
    whole = corpus.read(partition)
    lengths = whole.ends - whole.starts
    tokens = [whole.tokens[start:end] for start, end in zip(whole.starts, whole.ends, strict=True)]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    joined = np.concatenate([*tokens, np.empty(0, np.int32)])
    return Histories(whole.hashes, joined, offsets, offsets[1:], np.zeros(len(lengths), dtype=bool))


def infer_all(histories: list[Histories], items: FrozenItems) -> NDArray:
    """The vectors of all users, float32[N, D], micro-partition after micro-partition."""
    return np.concatenate([infer_vectors(items, part.tokens, part.offsets, part.hashes).vectors for part in histories])


def share_nearest_itself(inferred: NDArray[np.float32], trained: NDArray[np.float32], rows: NDArray[np.int64]) -> float:
    """Of the users in `rows`, the share whose inferred vector has their own trained one as its nearest of all users."""
    targets = unit_rows(trained)
    num_right = 0
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        num_right += int(((unit_rows(inferred[batch]) @ targets.T).argmax(axis=1) == batch).sum())
    return num_right / len(rows)


def measure_log(log: Path) -> dict[str, Any]:
    """The case of one log."""
    config = TrainConfig(threads=THREADS)
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(log, Path(folder) / "root")
        train(Job(corpus.folder, Path(folder) / "store", config, MEMORY_BYTES))
        generation = open_generation(Path(folder) / "store")
        trained = np.concatenate([generation.read_users(p) for p in range(corpus.num_partitions)])
        histories = [training_histories(corpus, p) for p in range(corpus.num_partitions)]
        frozen = freeze_items(generation, corpus.count_training_tokens(), THREADS)
        calls, seconds = [], []
        for _ in range(2):
            started = time.perf_counter()
            calls.append(infer_all(histories, frozen))
            seconds.append(time.perf_counter() - started)
        rows, items = held_out_rows(corpus), generation.read_items()
        score = score_by_vectors(items)
        answers = [rank_held_out(held_out_question(corpus, vectors[rows]), score) for vectors in (calls[0], trained)]
        hits = [measure(answer, corpus.num_items)["hit_at_10"] for answer in answers]
    lengths = np.concatenate([np.diff(part.offsets) for part in histories])
    long = np.flatnonzero(lengths >= MIN_TOKENS)
    share = share_nearest_itself(calls[0], trained, long)
    is_same = calls[0].tobytes() == calls[1].tobytes()
    return {
        "case": f"{log.stem} nearest is itself", "ratio": share, "mark": f">= {MARK}, same bytes twice",
        "passed": share >= MARK and is_same, "random": 1 / len(trained),
        "all_users": share_nearest_itself(calls[0], trained, np.arange(len(trained))), "users": len(trained),
        "users_measured": len(long), "hit_at_10_inferred": hits[0], "hit_at_10_trained": hits[1],
        "users_per_second": len(trained) / min(seconds), "same_bytes": is_same,
    }  # fmt: skip


def measure_inference(data: Path) -> list[dict[str, Any]]:
    """A case a log; users a second are those of the faster of two calls."""
    return [measure_log(data / f"{log}.parquet") for log in LOGS]


if __name__ == "__main__":
    sys.exit(run_benchmark("infer", __doc__ or "", measure_inference))
