"""Fresh within the day: what the last pages of users are worth if they are only summed up, and how fast that is.

Every fifth of the evaluated users is here today. Their TODAY events before the held-out item are today's: last night's training
does not see them, and a user with no other event is a stranger to it. hit@20 of the held-out next new item, among all items that
are new to the user with today's:

    last night    last night's vectors; a stranger gets what is popular
    fresh         the same release, with the last pages summed up by tasks/release/trail_sums.py; nothing is trained
    retrained     a training with today's events, by everybody's whole history

Marks: fresh is above last night, and sums up 200,000 users a second on one core, from lists of URLs. `predict` is the registered
model with columns `user_id` and `pages`. Shown without a mark: hit@20 if everybody were a stranger, by the last pages alone.
"""

import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.evaluation.evaluate import TOP, rank_held_out
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.release.trail_sums import TrailSums
from surf2vec.tasks.training.choice import choose_by_log
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.trail import trail_vectors
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.tokens import Corpus, Histories, open_corpus, partition_name
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import LOGS, MEMORY_BYTES, THREADS, held_out_question, make_corpus_of
from tests.benchmarks.peers import difference_in_errors, train_ours
from tests.data.corpora import describe_anew
from tests.roots.releases import read_items, read_users
from tests.roots.scores import score_by_vectors
from tests.tasks.registry.test_serving_model import load

SEED, TODAY, EVERY = 1, 3, 5
MARK_USERS = 200_000
SUMMED_USERS, PREDICTED_USERS = 400_000, 50_000
DEFAULT_LOGS = ("wikispeedia_unfinished", "yoochoose_100k")


def is_here(histories: Histories) -> NDArray[np.bool_]:
    """Whether users are evaluated and here today, bool[n]."""
    return histories.is_evaluated & (histories.hashes % np.uint64(EVERY) == 0)


def without_today(corpus: Corpus, folder: Path, most: int = TODAY) -> Corpus:
    """A copy of a corpus in `folder` without today's events, `most` of each, of the users who are here today."""
    shutil.copytree(corpus.folder, folder)
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        held = np.where(histories.is_held_out, histories.ends - histories.starts, -1)
        num_today = np.where(is_here(histories), np.minimum(held, most), 0)
        is_today = np.zeros(len(histories.tokens), dtype=bool)
        for end, number in zip(histories.ends, num_today, strict=True):
            is_today[end - number : end] = True
        name = partition_name(partition)
        kept = np.concatenate(([0], np.cumsum(~is_today)))
        np.save(folder / f"{name}.tokens.npy", histories.tokens[~is_today])
        np.save(folder / f"{name}.offsets.npy", kept[histories.offsets])
        np.save(folder / f"{name}.held_out.npy", (held - num_today).astype(np.int32))
    return describe_anew(open_corpus(folder))


def train_last_night(corpus: Corpus, config: TrainConfig, folder: Path) -> Generation:
    """The generation of a training, with the weight of the trail that the log chooses."""
    train(Job(corpus.folder, folder, config, MEMORY_BYTES))
    generation = open_generation(folder)
    return replace(generation, manifest=generation.manifest | {"choice": choose_by_log(corpus, generation)})


def read_asked(corpus: Corpus) -> tuple[list[str], list[list[str]], NDArray[np.int64]]:
    """Return of each evaluated user, micro-partition after micro-partition: the id, the pages up to the held-out one, and the
    number of events before today's; -1 for who is not here today.
    """
    urls = np.array(pq.read_table(corpus.vocabulary, columns=["url"])["url"].to_pylist(), dtype=object)
    ids, pages, numbers = [], [], []
    for partition in range(corpus.num_partitions):
        histories, names = corpus.read(partition), corpus.read_ids(partition).to_pylist()
        for user in np.flatnonzero(histories.is_evaluated):
            tokens = histories.tokens[histories.starts[user] : histories.ends[user]]
            ids.append(names[user])
            pages.append(urls[tokens].tolist())
            numbers.append(max(0, len(tokens) - TODAY) if is_here(histories)[user] else -1)
    return ids, pages, np.array(numbers)


def measure_log(log: str, data: Path, folder: Path) -> list[dict[str, Any]]:
    """The cases of one log."""
    corpus, config = make_corpus_of(log, data, folder), TrainConfig(seed=SEED, threads=THREADS)
    before = without_today(corpus, folder / "before")
    export_dir = folder / "release"
    generation = train_last_night(before, config, folder / "store")
    export_vectors(Export(before.folder, export_dir, "last night", "run", "space"), generation)
    ids, pages, numbers = read_asked(corpus)
    sums, users, (_, items) = open_folder(export_dir).trail_sums, read_users(export_dir), read_items(export_dir)
    nobody = np.zeros(items.shape[1], np.float32)
    known = np.stack([users[one] if number else nobody for one, number in zip(ids, numbers, strict=True)])
    popular = nobody.copy()
    popular[sums.columns] = sums.bias
    retrained = train_ours(corpus, config, folder / "retrained")
    is_asked = np.concatenate([corpus.read(p).is_evaluated for p in range(corpus.num_partitions)])
    sides = {
        "last night": (np.where(numbers[:, None], known, popular), items),
        "fresh": (sums.renew(known, pages)[0], items),
        "retrained": (retrained.users[is_asked], retrained.items),
        "all as strangers": (sums.renew(np.zeros_like(known), pages)[0], items),
    }
    hits = {name: ask(corpus, *side)[numbers >= 0] for name, side in sides.items()}
    return [
        judge_quality(log, hits, numbers[numbers >= 0] > 0),
        judge_speed(log, sums, generation, export_dir, ids, pages),
    ]


def ask(corpus: Corpus, users: NDArray[np.float32], items: NDArray[np.float32]) -> NDArray[np.float64]:
    """Whether each evaluated user's held-out item is among the first TOP."""
    question = held_out_question(corpus, users)
    return (rank_held_out(question, score_by_vectors(items)).ranks <= TOP).astype(float)


def judge_quality(log: str, hits: dict[str, NDArray[np.float64]], is_known: NDArray[np.bool_]) -> dict[str, Any]:
    """The case of what fresh pages are worth."""
    means = {name: float(found.mean()) for name, found in hits.items()}
    figures: dict[str, Any] = {f"hit@{TOP} {name}": mean for name, mean in means.items()}
    for kind, rows in (("known", is_known), ("strangers", ~is_known)):
        figures[kind] = int(rows.sum())
        figures |= {f"{name}, {kind}": float(hits[name][rows].mean()) for name in ("last night", "fresh", "retrained")}
    figures["standard errors above"] = difference_in_errors(hits["fresh"], hits["last night"])
    ratio = means["fresh"] / means["last night"]
    return {"case": f"{log}: quality", "ratio": ratio, "mark": "> last night", "passed": ratio > 1} | figures


def judge_speed(
    log: str, sums: TrailSums, generation: Generation, export_dir: Path, ids: list[str], pages: list[list[str]]
) -> dict[str, Any]:
    """The case of the users summed up a second, by the processor's time: threads would count against it."""
    window = len(sums.lags)
    last = [one[-window:] for one in pages]
    many = (last * (SUMMED_USERS // len(last) + 1))[:SUMMED_USERS]
    vectors = np.zeros((len(many), sums.columns.stop), np.float32)
    sums_second = fastest(lambda: sums.renew(vectors, many), SUMMED_USERS)
    chosen, trail = sums.find_pages(many), generation.trail
    assert trail is not None
    is_page = chosen[:, ::-1] < len(sums.numbers)
    ends = np.cumsum(is_page.sum(axis=1))
    tokens, starts = chosen[:, ::-1][is_page].astype(np.int32), np.concatenate(([0], ends[:-1]))
    model, asked = load(export_dir), (last * (PREDICTED_USERS // len(last) + 1))[:PREDICTED_USERS]
    names = (ids * (PREDICTED_USERS // len(ids) + 1))[:PREDICTED_USERS]
    known, strangers = pd.DataFrame({"user_id": names, "pages": asked}), pd.DataFrame({"pages": asked})
    ratio = sums_second / MARK_USERS
    return (
        make_case(f"{log}: users a second of a core", ratio, f">= {MARK_USERS:,}", ratio >= 1)
        | {"summed from URLs": sums_second}
        | {"from rows of pages": fastest(lambda: sums.sum_pages(chosen), SUMMED_USERS)}
        | {"by the trainer's kernel": fastest(lambda: trail_vectors(trail, tokens, starts, ends, window), SUMMED_USERS)}
        | {"predict, strangers": fastest(lambda: model.predict(None, strangers), PREDICTED_USERS)}
        | {"predict, known": fastest(lambda: model.predict(None, known), PREDICTED_USERS)}
        | {
            "predict with 10 items, strangers": fastest(
                lambda: model.predict(None, strangers[:5000], {"items": 10}), 5000
            )
        }
    )


def fastest(call: Any, num_users: int) -> float:
    """Users a second of the processor's time, by the fastest of three calls."""
    seconds = []
    for _ in range(3):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return num_users / min(seconds)


def measure_fresh(data: Path, log: str = "both") -> list[dict[str, Any]]:
    """Two cases a log; `log` names one of LOGS, or "both" for DEFAULT_LOGS."""
    cases = []
    for name in DEFAULT_LOGS if log == "both" else (LOGS[LOGS.index(log)],):
        with tempfile.TemporaryDirectory() as folder:
            cases += measure_log(name, data, Path(folder))
    return cases


if __name__ == "__main__":
    sys.exit(
        run_benchmark(
            measure_fresh, small={"log": "wikispeedia_unfinished", "SUMMED_USERS": 10_000, "PREDICTED_USERS": 1_000}
        )
    )
