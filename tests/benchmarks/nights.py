"""One space for thirty nights: made-up logs day by day, each night `surf2vec run` with a window that ends on its day.

The window has all days before, so that whoever does nothing has the same pages on the last night as on the first. Nights are
incremental but for a full one a week, which begins with the champion's vectors and is then turned into its space. After all
of them the releases are compared: users whose pages did not change, between a night and the one before and between the first
and the last; the items of the trail in full nights; and a small ranker (logistic regression on the products of a user's and an
item's numbers) that was trained on the first release's vectors, on the last one's, beside one that was trained anew there.

    nightly   the lowest percentile 1 of cosines of the interests of a night's unchanged users
    thirty    the median cosine of the interests of users that did not change between the first and the last night; `whole`: of
              both parts together
    trail      the lowest median cosine of the trail's items to the night before, in full nights: of those that score and of those
              that are summed up, without the numbers of popularity
    ranker    AUC of the frozen ranker over that of the new one, on users neither has seen, by both parts
"""

import itertools
import sys
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.sample.logs import FIRST_DAY, write_sample_logs
from surf2vec.trainer.config import TRAIL_BIASES
from surf2vec.trainer.store.tokens import VOCABULARY, Corpus, open_corpus
from surf2vec.trainer.system.files import read_json
from tests.benchmarks.harness import make_case, run_benchmark, run_surf2vec

FIRST_DAYS, ITEMS = 30, 5_000
SETTINGS: dict[str, Any] = {
    "nightly.full_every_days": 7, "publish.keep_releases": 100, "train.epochs": 10,
    "gate.newest_day_events": 0.3,  # made-up logs of few users have days with a third of the events
    "evaluate.max_users": 2_000,  # of 20,000; of 20 million by default one in a thousand
}  # fmt: skip
NIGHTLY_MARK, THIRTY_MARK, TRAIL_MARK, RANKER_MARK = 0.98, 0.90, 0.95, 0.999
L2 = 1e-3


def measure_nights(_: Path, users: int = 20_000, nights: int = 30) -> list[dict[str, Any]]:
    """All nights, then the three comparisons."""
    with tempfile.TemporaryDirectory(prefix="nights.") as name:
        folder = Path(name)
        write_sample_logs(folder / "logs", users, FIRST_DAYS + nights - 1, ITEMS, 1, "parquet")
        root = Root(folder / "root")
        told = [run_night(root, folder / "logs", FIRST_DAYS + night) for night in range(nights)]
        releases = [read_release(root, one) for one in told]
    steps = [compare(*pair, "interest") for pair in itertools.pairwise(releases)]
    p1 = [float(np.percentile(step, 1)) for step in steps]
    worst = int(np.argmin(p1))
    thirty, whole = (compare(releases[0], releases[-1], part) for part in ("interest", "whole"))
    frozen, anew = rank_frozen(releases[0], releases[-1])
    figures = (
        {"nights": nights, "full": sum(one["night"]["kind"] == "full" for one in told)}
        | {"users": told[-1]["users"], "held": sum(one["alias"] != "champion" for one in told)}
        | {"held_by": dict(Counter(rule for one in told for rule in one["gate"]["held_by"]))}
        | {"spaces": len({one["night"]["space_id"] for one in told})}
    )
    return [
        make_case("nightly", p1[worst], f">= {NIGHTLY_MARK}", p1[worst] >= NIGHTLY_MARK)
        | {"worst_night": told[worst + 1]["night"]["kind"], "unchanged": len(steps[worst])}
        | {"incremental_p1": min(p for p, one in zip(p1, told[1:], strict=True) if one["night"]["kind"] != "full")}
        | {"alignments": [one["night"]["alignment"] for one in told if one["night"]["alignment"]]}
        | figures,
        make_case("thirty", float(np.median(thirty)), f">= {THIRTY_MARK}", float(np.median(thirty)) >= THIRTY_MARK)
        | {"unchanged": len(thirty), "p1": float(np.percentile(thirty, 1))}
        | {"whole": float(np.median(whole)), "train_seconds": [one["seconds"]["train"] for one in told]}
        | {"hit_at_10": [one["metrics"].get("hit_at_10") for one in told]}
        | figures,
        *([judge_trail(releases, told) | figures] if figures["full"] > 1 else []),
        make_case("ranker", frozen / anew, f">= {RANKER_MARK}", frozen / anew >= RANKER_MARK)
        | {"frozen_auc": frozen, "new_auc": anew}
        | figures,
    ]


def run_night(root: Root, logs: Path, days: int) -> dict[str, Any]:
    """`surf2vec run` with a window that ends on this day, from 1; what it prints."""
    until = FIRST_DAY + timedelta(days=days - 1)
    return run_surf2vec(
        "run",
        "--root",
        str(root.path),
        "--logs",
        str(logs / "*.parquet"),
        "--until",
        until.isoformat(),
        settings=SETTINGS,
    )


def read_release(root: Root, told: dict[str, Any]) -> dict[str, Any]:
    """The vectors of a release, and of each user the pages in its window, as a frame: user_id, vector, pages, newest."""
    export = Path(told["export_dir"])
    manifest = read_json(export / "manifest.json")
    corpus = open_corpus(root.corpus(manifest["created_from"]["window_id"]))
    users = pl.read_parquet(export / "user_vectors" / "*.parquet")
    items = pl.read_parquet(export / "item_vectors" / "*.parquet")
    return (
        {"users": users.join(read_pages(corpus), on="user_id")}
        | {"items": dict(zip(items["url"], items["vector"].to_numpy(), strict=True))}
        | {"counts": items["count"].to_numpy(), "urls": items["url"].to_list()}
        | {"parts": manifest["parts"], "inputs": dict(zip(*open_folder(export).trail_inputs, strict=True))}
    )


def read_pages(corpus: Corpus) -> pl.DataFrame:
    """Of each user with events in the window: its pages in order as one text, and the newest."""
    urls = pl.read_parquet(corpus.folder / VOCABULARY)["url"].to_numpy()
    frames = []
    for partition in range(corpus.num_partitions):
        histories, ids = corpus.read(partition), corpus.read_ids(partition).to_pylist()
        spans = zip(ids, histories.offsets[:-1].tolist(), histories.offsets[1:].tolist(), strict=True)
        rows = [(user, urls[histories.tokens[start:end]]) for user, start, end in spans if user and end > start]
        columns = {
            "user_id": [user for user, _ in rows],
            "pages": [" ".join(pages) for _, pages in rows],
            "newest": [pages[-1] for _, pages in rows],
        }
        frames.append(pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String)))
    return pl.concat(frames)


def compare(before: dict[str, Any], after: dict[str, Any], part: str) -> NDArray[np.float64]:
    """The cosines of users whose pages are the same in both releases, by one part of their vectors or the whole."""
    both = before["users"].join(after["users"], on=["user_id", "pages"], suffix="_after")
    columns = slice(*after["parts"].get(part, (0, None)))
    return cosines(both["vector"].to_numpy()[:, columns], both["vector_after"].to_numpy()[:, columns])


def cosines(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float64]:
    """The cosine of each row of one with that row of the other, float64[n]."""
    return np.asarray((one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1), float)


def judge_trail(releases: list[dict[str, Any]], told: list[dict[str, Any]]) -> dict[str, Any]:
    """The case of the trail's items, of each full night after the first the median cosine with the night before."""
    full = [place for place, one in enumerate(told) if place and one["night"]["kind"] == "full"]
    medians = {
        table: [float(np.median(compare_trail(releases[place - 1], releases[place], table))) for place in full]
        for table in ("items", "inputs")
    }
    worst = min(itertools.chain(*medians.values()))
    return make_case("trail", worst, f">= {TRAIL_MARK}", worst >= TRAIL_MARK) | {
        "items that score": medians["items"],
        "items summed up": medians["inputs"],
    }


def compare_trail(before: dict[str, Any], after: dict[str, Any], table: str) -> NDArray[np.float64]:
    """The cosines of the trail's vectors of items that both releases have, without those of popularity and rows of zeros."""
    urls = [url for url in after["urls"] if url in before["items"]]
    rows = [path_rows(release, table, urls)[:, :-TRAIL_BIASES] for release in (before, after)]
    is_trained = rows[0].any(axis=1) & rows[1].any(axis=1)
    return cosines(rows[0][is_trained], rows[1][is_trained])


def path_rows(release: dict[str, Any], table: str, urls: list[str]) -> NDArray[np.float32]:
    """The trail's vectors of these items, float32[n, D2]: as they score (`items`), or as they are summed up (`inputs`)."""
    if table == "inputs":
        return np.stack([release["inputs"][url] for url in urls])
    return np.stack([release["items"][url] for url in urls])[:, slice(*release["parts"]["trail"])]


def rank_frozen(first: dict[str, Any], last: dict[str, Any]) -> tuple[float, float]:
    """AUC on the last release's users of odd numbers: of a ranker of the first release, and of one of the last."""
    old_features, old_labels, old_odd = draw_pairs(first)
    features, labels, odd = draw_pairs(last)
    rankers = fit(old_features[~old_odd], old_labels[~old_odd]), fit(features[~odd], labels[~odd])
    frozen, anew = (float(roc_auc_score(labels[odd], features[odd] @ weights)) for weights in rankers)
    return frozen, anew


def draw_pairs(release: dict[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """A user's newest page, and one drawn by popularity: products of their numbers and a constant, label, odd user."""
    rng = np.random.default_rng(1)
    users, vectors = release["users"].sort("user_id"), release["items"]
    counts = np.maximum(release["counts"], 0)
    drawn = rng.choice(len(counts), len(users), p=counts / counts.sum())
    positive = np.stack([vectors[url] for url in users["newest"]])
    negative = np.stack([vectors[release["urls"][place]] for place in drawn])
    mine = users["vector"].to_numpy()
    features = np.concatenate((mine * positive, mine * negative)).astype(np.float64)
    features = np.hstack((features, np.ones((len(features), 1))))
    labels = np.repeat([1.0, 0.0], len(users))
    is_odd = (users["user_id"].hash(7).to_numpy() % 2).astype(bool)
    return features, labels, np.tile(is_odd, 2)


def fit(features: NDArray[np.float64], labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of a logistic regression: mean loss and L2 times their squares."""
    model = LogisticRegression(C=1 / (2 * L2 * len(labels)), fit_intercept=False, tol=1e-6, max_iter=1000)
    return np.asarray(model.fit(features, labels).coef_[0])


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_nights, small={"users": 3_000, "nights": 2}))
