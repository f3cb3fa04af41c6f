"""Our trainer and the peers it is measured beside, each trained on the very same tokens of a corpus.

The peers: gensim's Doc2Vec, implicit's ALS, and popularity. Each answers user and item vectors whose dot product
ranks, so that one function asks all of them. `KernelTraining` is our kernel without the trainer around it.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gensim.models.doc2vec import Doc2Vec, TaggedDocument
from implicit.cpu.als import AlternatingLeastSquares
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from surf2vec.tasks.evaluation.evaluate import Answer, Question, rank_held_out
from surf2vec.tasks.training.choice import choose_by_log, commit_popularity, list_values
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import epoch_key
from surf2vec.trainer.kernels import pick_kernel
from surf2vec.trainer.kernels.cpu import train_trail
from surf2vec.trainer.kernels.first_rows import begin_items, begin_trail, begin_users
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import make_sampling, make_trail_tables
from surf2vec.trainer.model.trees import make_tree
from surf2vec.trainer.plan.schedule import learning_rates, user_order
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.training.job import Job, effective_recency
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.vectors import BothParts, read_item_vectors
from surf2vec.trainer.training.warm_up import warm_up
from tests.benchmarks.logs import ALL_USERS, MEMORY_BYTES, THREADS, held_out_question, held_out_rows
from tests.roots.scores import RowScores, ScoreRows, score_by_vectors

ASKED_SEED = 1
LAST = -1e6
"""A score below any that training makes."""


@dataclass(frozen=True)
class Vectors:
    """users float32[n, D], micro-partition after micro-partition; items float32[V, D], and what they took.

    seconds: with everything that comes before and after training, such as a scan of the vocabulary or a commit;
    training_seconds: of training alone, where the side has such a clock.
    """

    users: NDArray[np.float32]
    items: NDArray[np.float32]
    seconds: float
    training_seconds: float = float("nan")


@dataclass(frozen=True)
class RowPeer:
    """A peer that is no dot product: how it scores all items for rows of the held-out users, and the seconds it took."""

    score_rows: ScoreRows
    seconds: float


def train_ours(corpus: Corpus, config: TrainConfig, folder: Path) -> Vectors:
    """Our trainer, as shipped, with what the log chooses, into a store in `folder`; its training alone is without compiling
    and commits.
    """
    start = time.perf_counter()
    result = train(Job(corpus.folder, folder, config, MEMORY_BYTES))
    seconds = time.perf_counter() - start
    generation = open_generation(folder)
    if list_values(generation.config)[1]:
        choice, counts = choose_by_log(corpus, generation), corpus.count_training_tokens()
        generation = commit_popularity(folder, generation, choice["popularity"], counts, choice)
    both = BothParts(generation, corpus)
    users = np.concatenate([both.read_users(p) for p in range(corpus.num_partitions)])
    return Vectors(users, read_item_vectors(generation), seconds, result["tokens"] / result["tokens_per_second"])


class KernelTraining:
    """The kernels over all users, an epoch a call, both parts: our trainer without its store, micro-partitions and curve.

    tokens int32[T]; offsets int64[n + 1] into them; hashes uint64[n]; counts int64[V] of the items in the tokens.
    """

    def __init__(
        self,
        tokens: NDArray[np.int32],
        offsets: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        counts: NDArray[np.int64],
        config: TrainConfig,
    ) -> None:
        self.tokens, self.offsets, self.hashes, self.config = tokens, offsets, hashes, config
        self.sampling, self.tree = make_sampling(counts, config), make_tree(config, counts)
        self.kernel = pick_kernel("cpu", config)
        self.users = begin_users(config, hashes)
        self.items = begin_items(config, len(counts), self.tree.num_rows if self.tree else len(counts))
        self.trail = begin_trail(config, len(counts)) if config.trail_size else None
        self.trail_tables = make_trail_tables(counts, config)
        warm_up(self.kernel, config)

    def train_epoch(self, epoch: int) -> float:
        """Train every user once, the rates falling over `config.epochs`; returns the seconds of the kernels."""
        config = self.config
        order = user_order(config.seed, epoch, self.hashes)
        total = config.epochs * len(self.tokens)
        lengths = np.diff(self.offsets)[order]
        alphas = learning_rates(config.alpha, config.min_alpha, epoch * len(self.tokens), lengths, total)
        work = Pass(
            config=config, tokens=self.tokens, starts=self.offsets[:-1], ends=self.offsets[1:], hashes=self.hashes,
            order=order, alphas=alphas, sampling=self.sampling, tree=self.tree, recency=config.used_recency,
            epoch_key=epoch_key(config.seed, epoch),
        )  # fmt: skip
        start = time.perf_counter()
        self.kernel.train_users(self.users, self.items, work)
        if self.trail:
            train_trail(self.trail, work, self.trail_tables, config.trail_backward * (1 - epoch / config.epochs))
        return time.perf_counter() - start


def begin_kernel_training(corpus: Corpus, config: TrainConfig) -> KernelTraining:
    """The kernel before its first epoch on what training sees of a corpus."""
    hashes = np.concatenate([corpus.read(partition).hashes for partition in range(corpus.num_partitions)])
    histories = list(training_histories(corpus))
    offsets = np.concatenate(([0], np.cumsum([len(history) for history in histories]))).astype(np.int64)
    tokens = np.concatenate(histories)
    config = replace(config, recency=effective_recency(config, corpus))
    return KernelTraining(tokens, offsets, hashes, np.bincount(tokens, minlength=corpus.num_items), config)


def train_popularity(corpus: Corpus) -> Vectors:
    """Ranks by the counts that training sees: vectors of one number, a user's 1, an item's its place among the counts."""
    # Not counts: float32 holds places exactly.
    places = np.unique(corpus.count_training_tokens(), return_inverse=True)[1]
    users = np.ones((int(corpus.users.sum()), 1), dtype=np.float32)
    return Vectors(users, places.astype(np.float32)[:, None], seconds=0.0)


def train_gensim(corpus: Corpus, corpus_file: Path | None = None, **settings: float) -> Vectors:
    """Doc2Vec by negative sampling; `settings` bear its own names, and its own defaults hold for all others.

    One more dimension ranks items last that training does not see: gensim leaves them out, and a vector of zeros would
    stand above all items whose scores are negative.
    """
    model, seconds, training_seconds = fit_gensim(corpus, corpus_file, **settings)
    words = [int(word) for word in model.wv.index_to_key]
    items = np.zeros((corpus.num_items, model.vector_size + 1), dtype=np.float32)
    items[:, -1] = LAST
    items[words, :-1], items[words, -1] = model.syn1neg, 0
    users = np.column_stack((model.dv.vectors, np.ones(len(model.dv), dtype=np.float32)))
    return Vectors(users, items, seconds, training_seconds)


def fit_gensim(corpus: Corpus, corpus_file: Path | None = None, **settings: float) -> tuple[Doc2Vec, float, float]:
    """A trained Doc2Vec, its seconds, and those of training alone, without the scan of the vocabulary.

    It is fed documents in memory, or, by its other way, `corpus_file`, which is written here.
    """
    documents = [[str(token) for token in history] for history in training_histories(corpus)]
    source: dict[str, Any] = {"corpus_iterable": [TaggedDocument(words, [row]) for row, words in enumerate(documents)]}
    if corpus_file is not None:
        corpus_file.write_text("".join(" ".join(words) + "\n" for words in documents), encoding="ascii")
        source = {"corpus_file": str(corpus_file)}
    start = time.perf_counter()
    model = Doc2Vec(min_count=1, workers=THREADS, **settings)
    model.build_vocab(**source)
    training_start = time.perf_counter()
    model.train(**source, total_examples=model.corpus_count, total_words=model.corpus_total_words, epochs=model.epochs)
    end = time.perf_counter()
    return model, end - start, end - training_start


def train_als(corpus: Corpus, num_dimensions: int, seed: int, alpha: float, regularization: float) -> Vectors:
    """implicit's ALS with its own defaults, but for the weight of a count (`alpha`) and the regularization."""
    settings = {"factors": num_dimensions, "num_threads": THREADS, "random_state": seed}
    counts = training_counts(corpus)
    with threadpool_limits(1, "blas"):  # as implicit asks
        model = AlternatingLeastSquares(**settings, alpha=alpha, regularization=regularization)
        start = time.perf_counter()
        model.fit(counts, show_progress=False)
        seconds = time.perf_counter() - start
    return Vectors(model.user_factors, model.item_factors, seconds)


def training_histories(corpus: Corpus) -> Iterator[NDArray[np.int32]]:
    """What training sees of each user, micro-partition after micro-partition."""
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        for start, end in zip(histories.starts, histories.ends, strict=True):
            yield histories.tokens[start:end]


def training_counts(corpus: Corpus) -> csr_matrix:
    """How often training sees each item of each user, float32[n, V]."""
    histories = list(training_histories(corpus))
    rows = np.repeat(np.arange(len(histories)), [len(history) for history in histories])
    items = np.concatenate(histories)
    ones = np.ones(len(items), dtype=np.float32)
    return csr_matrix((ones, (rows, items)), shape=(len(histories), corpus.num_items))  # repeated pairs add up


def answer_held_out(corpus: Corpus, side: Vectors | RowPeer, most: int = ALL_USERS) -> Answer:
    """The ranks of all held-out items, or of `most` of them drawn at random, one function and one draw for every side."""
    rows = held_out_rows(corpus)
    if isinstance(side, Vectors):
        question = held_out_question(corpus, side.users[rows])
        return rank_held_out(sample_question(question, most), score_by_vectors(side.items))
    question = held_out_question(corpus, np.arange(len(rows))[:, None])
    return rank_held_out(sample_question(question, most), RowScores(side.score_rows, corpus.num_items))


def sample_question(question: Question, most: int) -> Question:
    """The question for `most` of its users, the same ones in each call; all, if they are no more."""
    num_users = len(question.items)
    if num_users <= most:
        return question
    chosen = np.sort(np.random.default_rng(ASKED_SEED).choice(num_users, most, replace=False))
    new_rows = np.full(num_users, -1)
    new_rows[chosen] = np.arange(most)
    seen_rows = new_rows[question.seen_rows]
    is_kept = seen_rows >= 0
    return Question(question.vectors[chosen], question.items[chosen], seen_rows[is_kept], question.seen_items[is_kept])


def is_no_lower(ours: NDArray[np.floating], theirs: NDArray[np.floating]) -> bool:
    """Whether the mean of `ours - theirs`, a value a user, is not below zero by more than two standard errors."""
    return difference_in_errors(ours, theirs) >= -2


def difference_in_errors(ours: NDArray[np.floating], theirs: NDArray[np.floating]) -> float:
    """The mean of `ours - theirs`, a value a user, in units of its standard error; infinite when that is zero."""
    difference = ours - theirs
    mean, error = float(difference.mean()), float(difference.std(ddof=1)) / len(difference) ** 0.5
    return mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
