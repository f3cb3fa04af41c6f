"""What user vectors tell beyond the next page: three questions about each user, answered by logistic regression.

    returns   Does the user come back?
    page      Which of the most visited pages does the user visit most?
    heavy     Is the use heavier than the median of those who come back?

A night predicts from the champion's vectors what its users did on the days since its window: a future that it has not seen.
Beside it stands the same regression on counts of each user. The benchmark `probes` does so with logs that are cut at an event.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.corpus.cleaning import Tokens
from surf2vec.tasks.corpus.window import select_window
from surf2vec.tasks.evaluation.evaluate import UserReader
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.store.tokens import Corpus, gather_spans
from surf2vec.trainer.system.files import verify_all

QUESTIONS = ("returns", "page", "heavy")
SAMPLE_USERS, TOP_PAGES = 1_000, 10
FOLDS, DRAWS, SEED = 5, 100, 1
LEAST_OF_CLASS = 20


@dataclass(frozen=True)
class Task:
    """A question: users by their rows, int64[m], and their answers, int64[m], numbered from 0."""

    rows: NDArray[np.int64]
    answers: NDArray[np.int64]

    @property
    def can_be_asked(self) -> bool:
        """Whether there are two answers or more, and enough users of each."""
        counts = np.bincount(self.answers, minlength=2)
        return int(counts.min()) >= LEAST_OF_CLASS


@dataclass(frozen=True)
class Sample:
    """Users drawn by the hash of their ids: their vectors float32[m, D], and the tokens that training knew of them.

    num_partitions: they are in the first so many micro-partitions.
    """

    num_partitions: int
    ids: pl.Series
    vectors: NDArray[np.float32]
    tokens: Tokens


def probe_release(root: Root, now: Corpus, before: Corpus, users: UserReader) -> list[dict[str, Any]]:
    """Return for each question the number of `users`, and the AUC of `vectors` and `counts`, each with its 95 % interval.

    before, users: of the champion. Questions that too few users can answer are missing; all are if there is no day since its
    window, or the micro-partitions have changed. Raises DamageError for altered events.
    """
    files = _find_files_since(root, now, before) if now.num_partitions == before.num_partitions else []
    if not files:
        return []
    sample = _draw_users(before, users)
    pages = _find_top_pages(before)
    # By micro-partition first: row groups of others are not read.
    is_theirs = (pl.col("micro_partition") < sample.num_partitions) & pl.col("user_id").is_in(sample.ids.implode())
    events = pl.scan_parquet(files, hive_partitioning=False).filter(is_theirs)
    after = events.select("user_id", "url", is_new_session=True).collect(engine="streaming")
    tasks = {name: ask(name, after, sample.ids, pl.Series(list(pages.values()))) for name in QUESTIONS}
    counts = np.log1p(_count_features(sample.tokens, list(pages)))
    return [
        {"question": name, "users": len(task.rows)}
        | {"vectors": measure_auc(task, sample.vectors), "counts": measure_auc(task, counts)}
        for name, task in tasks.items()
        if task.can_be_asked
    ]


def _find_files_since(root: Root, now: Corpus, before: Corpus) -> list[Path]:
    """Return the events files of the days since the champion's window."""
    last, until = (corpus.manifest.get("made_from", {}).get("days", [None, None])[1] for corpus in (before, now))
    if not last or not until or last >= until:
        return []
    window = select_window(root, date.fromisoformat(last) + timedelta(days=1), date.fromisoformat(until), None)
    files = [file for file in window.files if file.day]
    verify_all((file.path, file.about, file.way_out) for file in files)
    return [file.path for file in files]


def _draw_users(corpus: Corpus, users: UserReader) -> Sample:
    ids, vectors, tokens, lengths, num_users = [], [], [], [], 0
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        known = histories.offsets[1:] > histories.offsets[:-1]  # no holes
        rows = np.argsort(histories.hashes)
        rows = rows[known[rows]][: SAMPLE_USERS - num_users]
        ids.append(pl.Series(corpus.read_ids(partition).take(pa.array(rows)), dtype=pl.String))
        vectors.append(users.read_users(partition)[rows])
        lengths.append(np.diff(histories.offsets)[rows])
        tokens.append(gather_spans(histories.tokens, histories.offsets[rows], lengths[-1])[1])
        num_users += len(rows)
        if num_users == SAMPLE_USERS:
            break
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(lengths))))
    return Sample(len(ids), pl.concat(ids), np.concatenate(vectors), Tokens(offsets, np.concatenate(tokens)))


def _find_top_pages(corpus: Corpus) -> dict[int, str]:
    """Return the item numbers and urls of the pages with most tokens, the most first."""
    top = np.argsort(-corpus.count_training_tokens(), kind="stable")[:TOP_PAGES].tolist()
    named = pq.read_table(corpus.vocabulary, columns=["item_ix", "url"], filters=[("item_ix", "in", top)])
    urls = dict(zip(named["item_ix"].to_pylist(), named["url"].to_pylist(), strict=True))
    return {item: urls[item] for item in top}


def _count_features(tokens: Tokens, pages: list[int]) -> NDArray[np.int64]:
    """Return each user's tokens, distinct items, and visits of the pages, int64[m, 2 + P]."""
    lengths = np.diff(tokens.offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    pairs = pl.DataFrame({"row": rows, "item": tokens.tokens}).unique()
    seen = [np.bincount(rows[tokens.tokens == page], minlength=len(lengths)) for page in pages]
    return np.column_stack((lengths, np.bincount(pairs["row"], minlength=len(lengths)), *seen))


def ask(question: str, after: pl.DataFrame, ids: pl.Series, pages: pl.Series) -> Task:
    """Return a question, and the answers of the users with these ids.

    after: the events of the time asked about, with user_id, url, is_new_session. pages: those that can be an answer.
    """
    if question == "returns":
        returned = after.filter("is_new_session")["user_id"].unique()
        return Task(np.arange(len(ids)), ids.is_in(returned.implode()).to_numpy().astype(np.int64))
    rows = pl.DataFrame({"user_id": ids, "row": np.arange(len(ids))})
    known = after.join(rows, on="user_id")
    if question == "heavy":
        use = known.group_by("row").len().sort("row").select("row", is_heavy=pl.col("len") > pl.col("len").median())
        return Task(use["row"].to_numpy(), use["is_heavy"].cast(pl.Int64).to_numpy())
    places = pl.DataFrame({"url": pages, "answer": np.arange(len(pages))})
    visits = known.join(places, on="url").group_by("row", "answer").len()
    most = visits.sort("row", "len", "answer", descending=[False, True, False]).unique("row", keep="first").sort("row")
    common = most.group_by("answer").len().filter(pl.col("len") >= LEAST_OF_CLASS)["answer"]
    most = most.filter(pl.col("answer").is_in(common.implode()))
    return Task(most["row"].to_numpy(), np.unique(most["answer"].to_numpy(), return_inverse=True)[1])


def measure_auc(task: Task, features: NDArray[Any], model: Any = None) -> tuple[float, float, float]:
    """Return the AUC of a model's answers to a question, out of fold, and the ends of its 95 % interval by drawing users.

    features: of all users, [n, F]. model: of scikit-learn; by default logistic regression of the standardised features.
    """
    # imported here: it takes two seconds
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = model or make_pipeline(StandardScaler(), LogisticRegression(C=0.03, max_iter=500))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    scores = cross_val_predict(model, features[task.rows], task.answers, cv=folds, method="predict_proba")
    drawn = list(_draw_aucs(task.answers, scores))
    return auc_of(task.answers, scores), float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


def _draw_aucs(answers: NDArray[np.int64], scores: NDArray[np.float64]) -> Iterator[float]:
    rng = np.random.default_rng(SEED)
    for _ in range(DRAWS):
        users = rng.integers(0, len(scores), len(scores))
        yield auc_of(answers[users], scores[users])


def auc_of(answers: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    """Return the mean AUC of each answer against the rest; with two answers that of the second.

    From the ranks (Mann and Whitney, 1947), as it is computed for each draw of users.
    """
    from scipy.stats import rankdata

    is_one = answers[:, None] == np.arange(scores.shape[1])
    num_ones = is_one.sum(axis=0)
    above = (rankdata(scores, axis=0) * is_one).sum(axis=0) - num_ones * (num_ones + 1) / 2
    aucs = above / (num_ones * (len(answers) - num_ones))
    return float(aucs[1] if len(aucs) == 2 else aucs.mean())
