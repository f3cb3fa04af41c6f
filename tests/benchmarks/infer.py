"""Inference beside training, on the shipped defaults.

nearest is itself   Every user's interest inferred anew from the very tokens that training saw, items frozen: the share of users
                    whose nearest trained user (cosine, exact) is themself, among those with at least 5 training tokens, beside
                    the share that chance would give; hit@10 of inferred interests beside trained ones; users a second; and
                    whether two calls give the same bytes.
never seen          Every fifth of the evaluated users is unknown to a training. Its interests are inferred, and its trails summed
                    up, from what comes before the held-out item: hit@20 beside the same users' in a training that has them.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.tasks.evaluation.evaluate import measure, rank_held_out
from surf2vec.tasks.release.release_reader import unit_rows
from surf2vec.tasks.training.choice import choose_by_log
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.tokens import Corpus, Histories, open_corpus, partition_name
from surf2vec.trainer.training.infer import FrozenItems, freeze_items, infer_vectors, take_histories
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.vectors import join_parts, read_item_vectors
from tests.benchmarks.defaults import METRICS
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import MEMORY_BYTES, THREADS, held_out_question, held_out_rows, make_corpus, make_corpus_of
from tests.benchmarks.peers import difference_in_errors, train_ours
from tests.data.corpora import describe_anew
from tests.roots.scores import score_by_vectors

LOGS = ("wikispeedia_unfinished", "yoochoose_100k")
MIN_TOKENS = 5
MARK, UNSEEN_MARK = 0.5, 0.95
BATCH = 1024
EVERY = 5


def is_unseen(histories: Histories) -> NDArray[np.bool_]:
    """Whether users are evaluated and unknown to the training, bool[n]."""
    return histories.is_evaluated & (histories.hashes % np.uint64(EVERY) == 0)


def without_unseen(corpus: Corpus, folder: Path) -> Corpus:
    """A copy of a corpus in `folder` without what training would see of the users who are unknown to it."""
    shutil.copytree(corpus.folder, folder)
    for partition in range(corpus.num_partitions):
        histories, name = corpus.read(partition), partition_name(partition)
        unseen, is_kept = np.flatnonzero(is_unseen(histories)), np.ones(len(histories.tokens), dtype=bool)
        for user in unseen:
            is_kept[histories.starts[user] : histories.ends[user]] = False
        held = np.where(histories.is_held_out, histories.ends - histories.starts, -1)
        held[unseen] = 0
        np.save(folder / f"{name}.tokens.npy", histories.tokens[is_kept])
        np.save(folder / f"{name}.offsets.npy", np.concatenate(([0], np.cumsum(is_kept)))[histories.offsets])
        np.save(folder / f"{name}.held_out.npy", held.astype(np.int32))
    return describe_anew(open_corpus(folder))


def train_last_night(corpus: Corpus, config: TrainConfig, folder: Path) -> Generation:
    """The generation of a training, with the weight of the trail that the log chooses."""
    train(Job(corpus.folder, folder, config, MEMORY_BYTES))
    generation = open_generation(folder)
    return replace(generation, manifest=generation.manifest | {"choice": choose_by_log(corpus, generation)})


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
    return (
        make_case(f"{log.stem} nearest is itself", share, f">= {MARK}, same bytes twice", share >= MARK and is_same)
        | {"random": 1 / len(trained)}
        | {"all_users": share_nearest_itself(calls[0], trained, np.arange(len(trained)))}
        | {"users": len(trained), "users_measured": len(long), "hit_at_10_inferred": hits[0]}
        | {"hit_at_10_trained": hits[1], "users_per_second": len(trained) / min(seconds)}
        | {"same_bytes": is_same}
    )


def measure_unseen(name: str, data: Path) -> dict[str, Any]:
    """The case of a log's users that no training saw."""
    config = TrainConfig(threads=THREADS)
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus_of(name, data, Path(folder))
        before = without_unseen(corpus, Path(folder) / "before")
        generation = train_last_night(before, config, Path(folder) / "store")
        unseen = [np.flatnonzero(is_unseen(corpus.read(p))) for p in range(corpus.num_partitions)]
        vectors = np.concatenate(list(infer_unseen(corpus, before, generation, unseen)))
        trained = train_ours(corpus, config, Path(folder) / "trained")
        sides = {
            "never seen": ask(corpus, unseen, vectors, read_item_vectors(generation)),
            "trained with": ask(corpus, unseen, trained.users[global_rows(corpus, unseen)], trained.items),
        }
    means = {side: {metric: float(of(ranks).mean()) for metric, of in METRICS.items()} for side, ranks in sides.items()}
    hits = {side: METRICS["hit@20"](ranks) for side, ranks in sides.items()}
    ratio = means["never seen"]["hit@20"] / means["trained with"]["hit@20"]
    return (
        make_case(
            f"{name} never seen", ratio, f">= {UNSEEN_MARK} of hit@20 of users trained with", ratio >= UNSEEN_MARK
        )
        | {"users": len(vectors)}
        | means
        | {"standard errors above": difference_in_errors(hits["never seen"], hits["trained with"])}
    )


def infer_unseen(
    corpus: Corpus, before: Corpus, generation: Generation, unseen: list[NDArray[np.int64]]
) -> Iterator[NDArray[np.float32]]:
    """Vectors of both parts of these users of each micro-partition, which the generation of `before` has not seen."""
    frozen = freeze_items(generation, before.count_training_tokens(), THREADS)
    for partition, rows in enumerate(unseen):
        histories = corpus.read(partition)
        own = take_histories(histories, rows, histories.ends[rows])
        interests = infer_vectors(frozen, own.tokens, own.offsets, own.hashes).vectors
        yield join_parts(generation, interests, own.tokens, own.starts, own.ends)


def global_rows(corpus: Corpus, rows: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The rows of users of each micro-partition when all micro-partitions stand one after the other."""
    firsts = np.concatenate(([0], np.cumsum(corpus.users)))
    return np.concatenate([first + own for first, own in zip(firsts, rows, strict=False)])


def ask(
    corpus: Corpus, rows: list[NDArray[np.int64]], users: NDArray[np.float32], items: NDArray[np.float32]
) -> NDArray[np.float64]:
    """The ranks of the held-out items of these evaluated users, float64[m], whose vectors are `users`."""
    evaluated = held_out_rows(corpus)
    asked = np.searchsorted(evaluated, global_rows(corpus, rows))
    vectors = np.zeros((len(evaluated), users.shape[1]), np.float32)
    vectors[asked] = users
    return rank_held_out(held_out_question(corpus, vectors), score_by_vectors(items)).ranks[asked]


def measure_inference(data: Path, log: str = "both") -> list[dict[str, Any]]:
    """Two cases a log; users a second are those of the faster of two calls. `log` names one of LOGS, or both."""
    logs = LOGS if log == "both" else (LOGS[LOGS.index(log)],)
    return [case for name in logs for case in (measure_log(data / f"{name}.parquet"), measure_unseen(name, data))]


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_inference, small={"log": "wikispeedia_unfinished"}))
