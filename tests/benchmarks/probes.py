"""What user vectors tell about people beyond the next page: three questions, answered by logistic regression.

Each user's history is cut at an event drawn at random. What came before trains the vectors. Three things are predicted
of the time within HORIZONS after it: whether the user returns (in a session that begins after a gap of half an hour), which of
the TOP_PAGES most visited pages is visited most, and whether the use is heavier than the median. The last two are predicted
for users with an event in that time.
Beside: gradient boosting on counts of each user (events, pages, sessions, days, gaps, hours, and visits of the TOP_PAGES), and
logistic regression on gensim's vectors. Scores are out of fold, five folds. AUC, of several pages the mean of one against the
rest; its interval is the middle 95 % of 100 draws of users with replacement.
Passed: our AUC is above that of the counts in at least two of the three questions of a log.
"""

import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from surf2vec.tasks.evaluation.probes import QUESTIONS, Task, ask, measure_auc
from surf2vec.trainer.config import TrainConfig
from tests.benchmarks.defaults import GENSIM_SETTINGS
from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import THREADS, make_corpus, make_corpus_of
from tests.benchmarks.peers import train_gensim, train_ours
from tests.ingested import events_files

SEED = 1
HORIZONS = {
    "entree": timedelta(days=7),
    "wikispeedia_unfinished": timedelta(days=7),
    "nasa_19950801": timedelta(hours=3),
}
"""The time asked about. A day's log cannot tell of a week: there it is an eighth of it."""
SESSION_GAP = timedelta(minutes=30)
TOP_PAGES = 20


def measure_probes(data: Path, log: str = "all") -> list[dict[str, Any]]:
    """A case a log and question; `log` names one of HORIZONS, or all."""
    return [case for name in (HORIZONS if log == "all" else (log,)) for case in probe(name, data)]


def probe(log: str, data: Path) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        before, after = cut(read_clean(log, data, Path(folder)), HORIZONS[log])
        before.write_parquet(Path(folder) / "before.parquet")
        corpus = make_corpus(Path(folder) / "before.parquet", Path(folder) / "cut", max_users=0)
        ids = pl.concat([pl.DataFrame(corpus.read_users(p)) for p in range(corpus.num_partitions)])["user_id"]
        config = TrainConfig(seed=SEED, threads=THREADS)
        ours = train_ours(corpus, config, Path(folder) / "store").users
        gensim = train_gensim(corpus, vector_size=config.vector_size, seed=SEED, **GENSIM_SETTINGS).users[:, :-1]
    pages = before["url"].value_counts().sort("count", "url", descending=[True, False])["url"].head(TOP_PAGES)
    features = {"ours": ours, "gensim": gensim, "counts": count_features(before, ids, pages)}
    return judge(log, {name: ask(name, after, ids, pages) for name in QUESTIONS}, features)


def read_clean(log: str, data: Path, folder: Path) -> pl.DataFrame:
    """Events of a log as ingest cleans them: user_id, url, ts; sorted by user and time."""
    make_corpus_of(log, data, folder)
    events = pl.concat(
        [pl.read_parquet(path, columns=["user_id", "url", "ts"]) for path in events_files(folder / "root")]
    )
    return events.sort("user_id", "ts", maintain_order=True)


def cut(events: pl.DataFrame, horizon: timedelta) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return each user's events up to one drawn at random, and those after it within `horizon`, with `is_new_session`.

    Users whose time would end after the log are left out, as nobody knows whether they return.
    """
    end = events["ts"].max()
    rng = np.random.default_rng(SEED)
    users = events.group_by("user_id", maintain_order=True).len()
    users = users.with_columns(cut=pl.Series(rng.integers(0, users["len"].to_numpy())))
    events = events.with_columns(
        number=pl.int_range(pl.len()).over("user_id"),
        session=(pl.col("ts").diff().over("user_id") >= SESSION_GAP).fill_null(False).cum_sum().over("user_id"),
    )
    events = events.join(users.select("user_id", "cut"), on="user_id", maintain_order="left")
    at = events.filter(pl.col("number") == pl.col("cut")).select("user_id", cut_at="ts", cut_session="session")
    events = events.join(at.filter(pl.col("cut_at") + horizon <= end), on="user_id", maintain_order="left")
    is_before = pl.col("number") <= pl.col("cut")
    is_near = ~is_before & (pl.col("ts") <= pl.col("cut_at") + horizon)
    known = events.filter(pl.col("cut_at").is_not_null())
    after = known.filter(is_near).with_columns(is_new_session=pl.col("session") > pl.col("cut_session"))
    return known.filter(is_before).select("user_id", "url", "ts", "session"), after


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
    """A case a question. A log has passed if ours is above the counts in two of three."""
    aucs = {name: {side: measure(side, task, rows) for side, rows in features.items()} for name, task in tasks.items()}
    num_above = sum(sides["ours"][0] > sides["counts"][0] for sides in aucs.values())
    return [
        {
            "case": f"{log}, {name}",
            "ratio": sides["ours"][0] / sides["counts"][0],
            "mark": "> 1 in 2 of 3",
            "passed": num_above >= 2,
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
    sys.exit(run_benchmark("probes", __doc__ or "", measure_probes, {"log": "all"}))
