"""Quality beside gensim's Doc2Vec: same users, dimension, epochs, negatives, exponent and learning rate; three seeds.

Every user that has a held-out item is ranked, by one function for both. "No lower" means: the mean difference a user is not
below zero by more than two of its standard errors. On wikispeedia hit@10 must also be twice popularity's.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gensim.models.doc2vec import Doc2Vec, TaggedDocument

from tasks.config import EvaluateConfig, IngestConfig
from tasks.corpus import build_corpus
from tasks.evaluate import Answer, Question, measure, popularity_vectors, rank_held_out
from tasks.ingest import ingest
from tasks.run import open_root
from tests.benchmarks.harness import run_benchmark
from trainer.config import TrainConfig
from trainer.corpus import Corpus, open_corpus
from trainer.events import ignore_event
from trainer.loop import Job, train
from trainer.store import open_generation

LOG = "wikispeedia_unfinished"
SEEDS = (1, 2, 3)
THREADS = 2
MEMORY_BYTES = 4 * 10**9


def make_corpus(log: Path, folder: Path) -> Corpus:
    """The corpus of one log by our own ingest, with every user that has one held out."""
    root, settings, evaluation = open_root(folder), IngestConfig(), EvaluateConfig(max_users=10**9)
    ingest(root, [str(log)], settings, None, MEMORY_BYTES, THREADS, ignore_event)
    built = build_corpus(root, settings, evaluation, None, None, None, MEMORY_BYTES, THREADS, ignore_event)
    return open_corpus(root.corpus(built["window_id"]))


def held_out_question(corpus: Corpus, vectors: np.ndarray) -> Question:
    """The question for all held-out users, whose vectors stand in `vectors`, micro-partition after micro-partition."""
    items, seen_rows, seen_items = [], [], []
    row = 0
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        for user in np.flatnonzero(histories.is_held_out):
            seen = np.unique(histories.tokens[histories.starts[user] : histories.ends[user]])
            items.append(int(histories.tokens[histories.ends[user]]))
            seen_rows.append(np.full(len(seen), row))
            seen_items.append(seen.astype(np.int64))
            row += 1
    return Question(vectors, np.array(items), np.concatenate(seen_rows), np.concatenate(seen_items))


def held_out_rows(corpus: Corpus) -> np.ndarray:
    """Rows of the held-out users when all micro-partitions stand one after the other."""
    return np.flatnonzero(np.concatenate([corpus.read(p).is_held_out for p in range(corpus.num_partitions)]))


def our_answer(corpus: Corpus, config: TrainConfig, folder: Path) -> Answer:
    """Ranks from our trainer."""
    train(Job(corpus.folder, folder, config, MEMORY_BYTES))
    generation = open_generation(folder)
    vectors = np.concatenate([generation.read_users(p) for p in range(corpus.num_partitions)])
    return rank_held_out(held_out_question(corpus, vectors[held_out_rows(corpus)]), generation.read_items())


def gensim_answer(corpus: Corpus, config: TrainConfig) -> Answer:
    """Ranks from gensim's Doc2Vec (dm=0) on the very same training tokens."""
    documents = []
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        for user in range(histories.num_users):
            words = histories.tokens[histories.starts[user] : histories.ends[user]]
            documents.append(TaggedDocument([str(word) for word in words], [len(documents)]))
    model = Doc2Vec(
        documents, dm=0, hs=0, min_count=1, workers=THREADS, vector_size=config.vector_size, epochs=config.epochs,
        negative=config.negative, ns_exponent=config.ns_exponent, sample=config.sample, alpha=config.alpha,
        min_alpha=config.min_alpha, seed=config.seed,
    )  # fmt: skip
    items = np.zeros((corpus.num_items, config.vector_size), dtype=np.float32)
    items[[int(word) for word in model.wv.index_to_key]] = model.syn1neg
    return rank_held_out(held_out_question(corpus, model.dv.vectors[held_out_rows(corpus)]), items)


def is_no_lower(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether the mean of `ours - theirs`, a value a user, is not below zero by more than two standard errors."""
    difference = ours - theirs
    return bool(difference.mean() >= -2 * difference.std(ddof=1) / np.sqrt(len(difference)))


def measure_quality(data: Path) -> list[dict[str, Any]]:
    """hit@10 and MRR of the shipped defaults beside gensim's with the same settings, mean over the seeds."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(data / f"{LOG}.parquet", Path(folder) / "root")
        ours, theirs = [], []
        for seed in SEEDS:
            config = TrainConfig(seed=seed, threads=THREADS)
            ours.append(our_answer(corpus, config, Path(folder) / f"store-{seed}").ranks)
            theirs.append(gensim_answer(corpus, config).ranks)
        ones, places = popularity_vectors(corpus.count_training_tokens(), len(ours[0]))
        popularity = measure(rank_held_out(held_out_question(corpus, ones), places), corpus.num_items)
    values = {
        "hit_at_10": lambda ranks: np.mean(np.array(ranks) <= 10, axis=0),
        "mrr": lambda ranks: np.mean(1 / np.array(ranks), axis=0),
    }
    cases = []
    for name, value in values.items():
        a, b = value(ours), value(theirs)
        case = {
            "case": f"{LOG} {name}", "ratio": float(a.mean() / b.mean()), "mark": "no lower than gensim (2 s.e., paired)",
            "passed": is_no_lower(a, b), "ours": float(a.mean()), "gensim": float(b.mean()),
        }  # fmt: skip
        cases.append(case)
    hit, popular = cases[0]["ours"], popularity["hit_at_10"]
    cases.append(
        {
            "case": f"{LOG} hit_at_10 over popularity", "ratio": hit / popular, "mark": ">= 2 x popularity",
            "passed": hit >= 2 * popular, "ours": hit, "gensim": cases[0]["gensim"],
        }
    )  # fmt: skip
    return cases


if __name__ == "__main__":
    sys.exit(run_benchmark("gensim_quality", __doc__ or "", measure_quality))
