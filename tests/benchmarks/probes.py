"""What user vectors tell about people beyond the next page: three questions, answered by logistic regression.

Each user's history is cut at an event drawn at random. What came before trains the vectors, and is all that their activity is
counted from, by the product's own step. Three things are predicted of the time within HORIZONS after it: whether the user
returns (in a session that begins after a gap of SESSION_GAP, or of SESSION_GAPS), which of the TOP_PAGES most visited pages is
visited most, and whether the use is heavier than the median. The last two are predicted for users with an event in that time.
Beside: gradient boosting on counts of each user (events, pages, sessions, days, gaps, hours, and visits of the TOP_PAGES), and
logistic regression on our vectors without activity and on gensim's. Scores are out of fold, five folds. AUC, of several pages
the mean of one against the rest; its interval is the middle 95 % of 100 draws of users with replacement.
Passed: the counts' AUC is not above our interval, and for the next page nor is that of our vectors without activity.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from surf2vec.tasks.activity.count import read_activity
from surf2vec.tasks.activity.scale import scale_activity, settle_activity
from surf2vec.trainer.config import TrainConfig
from tests.benchmarks.defaults import GENSIM_SETTINGS
from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import THREADS, make_corpus, make_corpus_of
from tests.benchmarks.peers import train_gensim, train_ours
from tests.roots.ingest import events_files

QUESTIONS = ("returns", "page", "heavy")
FOLDS, DRAWS, SEED = 5, 100, 1
LEAST_OF_CLASS = 20
HORIZONS = {
    "entree": timedelta(days=7),
    "wikispeedia_unfinished": timedelta(days=7),
    "nasa_19950801": timedelta(hours=3),
    "yoochoose_100k": timedelta(days=1),
}
"""The time asked about. A day's log cannot tell of a week: there it is an eighth of it."""
SESSION_GAP = timedelta(minutes=30)
SESSION_GAPS = {"yoochoose_100k": timedelta(minutes=5)}
"""Where a user is one visit, which only shorter gaps divide."""
TOP_PAGES = 20


@dataclass(frozen=True)
class Task:
    """A question: users by their rows, int64[m], and their answers, int64[m], numbered from 0."""

    rows: NDArray[np.int64]
    answers: NDArray[np.int64]


def measure_probes(data: Path, log: str = "all") -> list[dict[str, Any]]:
    """A case a log and question; `log` names one of HORIZONS, or all."""
    return [case for name in (HORIZONS if log == "all" else (log,)) for case in probe(name, data)]


def probe(log: str, data: Path) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        gap = SESSION_GAPS.get(log, SESSION_GAP)
        before, after = cut(read_clean(log, data, Path(folder)), HORIZONS[log], gap)
        before.write_parquet(Path(folder) / "before.parquet")
        corpus = make_corpus(Path(folder) / "before.parquet", Path(folder) / "cut", max_users=0)
        ids = pl.concat([pl.DataFrame(corpus.read_users(p)) for p in range(corpus.num_partitions)])["user_id"]
        config = TrainConfig(seed=SEED, threads=THREADS)
        trained = train_ours(corpus, config, Path(folder) / "store").users
        activity = np.concatenate([read_activity(corpus, partition) for partition in range(corpus.num_partitions)])
        ours = np.hstack([trained, scale_activity(activity, settle_activity(corpus, {})["quantiles"])])
        gensim = train_gensim(corpus, vector_size=config.vector_size, seed=SEED, **GENSIM_SETTINGS).users[:, :-1]
    pages = before["url"].value_counts().sort("count", "url", descending=[True, False])["url"].head(TOP_PAGES)
    counts = count_features(before, ids, pages)
    features = {"ours": ours, "without activity": trained, "gensim": gensim, "counts": counts}
    return judge(log, {name: ask(name, after, ids, pages) for name in QUESTIONS}, features)


def read_clean(log: str, data: Path, folder: Path) -> pl.DataFrame:
    """Events of a log as ingest cleans them: user_id, url, ts; sorted by user and time."""
    make_corpus_of(log, data, folder)
    events = pl.concat(
        [pl.read_parquet(path, columns=["user_id", "url", "ts"]) for path in events_files(folder / "root")]
    )
    return events.sort("user_id", "ts", maintain_order=True)


def cut(events: pl.DataFrame, horizon: timedelta, gap: timedelta = SESSION_GAP) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return each user's events up to one drawn at random, and those after it within `horizon`, with `is_new_session`.

    Users whose time would end after the log are left out, as nobody knows whether they return.
    """
    end = events["ts"].max()
    rng = np.random.default_rng(SEED)
    users = events.group_by("user_id", maintain_order=True).len()
    users = users.with_columns(cut=pl.Series(rng.integers(0, users["len"].to_numpy())))
    events = events.with_columns(
        number=pl.int_range(pl.len()).over("user_id"),
        session=(pl.col("ts").diff().over("user_id") >= gap).fill_null(False).cum_sum().over("user_id"),
    )
    events = events.join(users.select("user_id", "cut"), on="user_id", maintain_order="left")
    at = events.filter(pl.col("number") == pl.col("cut")).select("user_id", cut_at="ts", cut_session="session")
    events = events.join(at.filter(pl.col("cut_at") + horizon <= end), on="user_id", maintain_order="left")
    is_before = pl.col("number") <= pl.col("cut")
    is_near = ~is_before & (pl.col("ts") <= pl.col("cut_at") + horizon)
    known = events.filter(pl.col("cut_at").is_not_null())
    after = known.filter(is_near).with_columns(is_new_session=pl.col("session") > pl.col("cut_session"))
    return known.filter(is_before).select("user_id", "url", "ts", "session"), after


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
    is_one = answers[:, None] == np.arange(scores.shape[1])
    num_ones = is_one.sum(axis=0)
    above = (rankdata(scores, axis=0) * is_one).sum(axis=0) - num_ones * (num_ones + 1) / 2
    aucs = above / (num_ones * (len(answers) - num_ones))
    return float(aucs[1] if len(aucs) == 2 else aucs.mean())


def count_features(before: pl.DataFrame, ids: pl.Series, pages: pl.Series) -> NDArray[np.float64]:
    """What a data scientist would count first, float64[n, 10 + pages]."""
    seconds = pl.col("ts").dt.epoch("s")
    counted = before.group_by("user_id").agg(
        pl.len().alias("events"),
        pl.col("url").n_unique().alias("pages"),
        pl.col("session").max().alias("sessions"),
        pl.col("ts").dt.date().n_unique().alias("days"),
        (seconds.max() - seconds.min()).alias("span"),
        seconds.diff().mean().alias("mean_gap"),
        seconds.diff().last().alias("last_gap"),
        (pl.col("session") == pl.col("session").max()).sum().alias("last_session"),
        pl.col("ts").max().dt.hour().alias("hour"),
        pl.col("ts").max().dt.weekday().alias("weekday"),
        *((pl.col("url") == page).sum().alias(f"page {number}") for number, page in enumerate(pages)),
    )
    rows = pl.DataFrame({"user_id": ids}).join(counted, on="user_id", how="left", maintain_order="left")
    return rows.drop("user_id").to_numpy().astype(np.float64)


def judge(log: str, tasks: dict[str, Task], features: dict[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """A case a question: passed if no other AUC that counts there is above the interval of ours."""
    rivals = (("counts",), ("counts", "without activity"))
    aucs = {name: {side: measure(side, task, rows) for side, rows in features.items()} for name, task in tasks.items()}
    return [
        {
            "case": f"{log}, {name}",
            "ratio": sides["ours"][0] / sides["counts"][0],
            "mark": "in the interval",
            "passed": all(sides[side][0] <= sides["ours"][2] for side in rivals[name == "page"]),
            "users": len(tasks[name].rows),
            "answers": int(tasks[name].answers.max()) + 1,
            "share of the first": float((tasks[name].answers == 0).mean()),
        }
        | {side: "{:.3f} ({:.3f} to {:.3f})".format(*auc) for side, auc in sides.items()}
        for name, sides in aucs.items()
    ]


def measure(side: str, task: Task, features: NDArray[Any]) -> tuple[float, float, float]:
    """Return the AUC of one side, and the ends of its interval."""
    return measure_auc(task, features, HistGradientBoostingClassifier(random_state=SEED) if side == "counts" else None)


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_probes, small={"log": "nasa_19950801"}))
