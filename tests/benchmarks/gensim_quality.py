"""Quality beside gensim's Doc2Vec, like for like: PV-DBOW and PV-DM by negative sampling with plain gradient steps.

Both sides get the same users, dimension, epochs, negatives and their exponent, subsampling, learning rate and window, and
rank by the dot product of a user's vector with the output vectors of the items; L2, recency and Adagrad, which gensim
does not have, are off. Three seeds, two threads each. The settings are those under which gensim ranked best among a few
(exponent .1, .5, .75; alpha .05, .1, .2; sample .001, .01): 128 dimensions, window 5, mean of the context, and on

    wikispeedia  20 epochs, 20 negatives, exponent .1; PV-DBOW alpha .05, sample .01; PV-DM alpha .1, sample .001
    yoochoose    20 epochs, 20 negatives, exponent .1, sample .01; PV-DBOW alpha .2, PV-DM .1
    gowalla      10 epochs, 5 negatives, alpha .1, sample .01; PV-DBOW exponent .75, PV-DM .1

Every user that has a held-out item is ranked, by one function for both; a user's value is the mean of the seeds. "No lower"
means: the mean difference a user (ours - gensim's) is not below zero by more than two of its standard errors.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.tokens import Corpus
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import THREADS, find_log, make_corpus
from tests.benchmarks.peers import answer_held_out, difference_in_errors, train_gensim, train_ours

SEEDS = (1, 2, 3)


def settings(**values: Any) -> dict[str, Any]:
    """Settings by gensim's names, which are also ours; alpha falls to a hundredth."""
    return values | {"min_alpha": values["alpha"] / 100}


COMMON: dict[str, Any] = {"vector_size": 128, "window": 5}
SETTINGS: dict[tuple[str, int], dict[str, Any]] = {
    ("wikispeedia_unfinished", 0): settings(epochs=20, negative=20, alpha=0.05, ns_exponent=0.1, sample=1e-2),
    ("wikispeedia_unfinished", 1): settings(epochs=20, negative=20, alpha=0.1, ns_exponent=0.1, sample=1e-3),
    ("yoochoose_100k", 0): settings(epochs=20, negative=20, alpha=0.2, ns_exponent=0.1, sample=1e-2),
    ("yoochoose_100k", 1): settings(epochs=20, negative=20, alpha=0.1, ns_exponent=0.1, sample=1e-2),
    ("gowalla_train", 0): settings(epochs=10, negative=5, alpha=0.1, ns_exponent=0.75, sample=1e-2),
    ("gowalla_train", 1): settings(epochs=10, negative=5, alpha=0.1, ns_exponent=0.1, sample=1e-2),
}
"""Of each log and dm."""
LIKE_GENSIM: dict[str, Any] = {
    "objective": "negative_sampling",
    "optimizer": "sgd",
    "l2": 0,
    "item_l2": 0,
    "recency": 0,
    "bias": 0,
}
METRICS = {"hit@10": lambda ranks: ranks <= 10, "MRR": lambda ranks: 1 / ranks}


def like_gensim(dm: int, seed: int, same: dict[str, Any]) -> TrainConfig:
    """Our configuration for what gensim does with these settings."""
    return TrainConfig(**LIKE_GENSIM | COMMON | same | {"dm": dm, "seed": seed, "threads": THREADS})


def measure_quality(data: Path) -> list[dict[str, Any]]:
    """hit@10 and MRR of both sides, a case a log, model and metric."""
    cases = []
    for log in dict.fromkeys(log for log, _ in SETTINGS):
        with tempfile.TemporaryDirectory() as folder:
            corpus = make_corpus(find_log(data, log, Path(folder)), Path(folder) / "root")
            for dm in (dm for name, dm in SETTINGS if name == log):
                ours, theirs, seconds = train_both(corpus, dm, SETTINGS[log, dm], Path(folder))
                name = f"{log} {'PV-DM' if dm else 'PV-DBOW'}"
                cases += [judge(f"{name} {metric}", metric, ours, theirs) | seconds for metric in METRICS]
    return cases


def train_both(
    corpus: Corpus, dm: int, same: dict[str, Any], folder: Path
) -> tuple[NDArray[np.float64], NDArray[np.float64], dict[str, float]]:
    """The held-out ranks of both sides, float64[seeds, m] each, and the seconds of training of their fastest seeds."""
    ours, theirs = [], []
    for seed in SEEDS:
        config = like_gensim(dm, seed, same)
        ours.append(train_ours(corpus, config, folder / f"store-{dm}-{seed}"))
        theirs.append(train_gensim(corpus, dm=dm, dm_mean=1, seed=seed, **COMMON, **same))
    seconds = [min(vectors.training_seconds for vectors in side) for side in (ours, theirs)]
    ranks = [np.array([answer_held_out(corpus, vectors).ranks for vectors in side]) for side in (ours, theirs)]
    return ranks[0], ranks[1], {"our seconds": seconds[0], "gensim seconds": seconds[1]}


def judge(case: str, metric: str, ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> dict[str, Any]:
    """One case, from ranks float64[seeds, m]."""
    a, b = (METRICS[metric](ranks).mean(axis=0) for ranks in (ours, theirs))
    errors = difference_in_errors(a, b)
    return make_case(case, float(a.mean() / b.mean()), "no lower than gensim (2 s.e., paired)", errors >= -2) | {
        "ours": float(a.mean()),
        "gensim": float(b.mean()),
        "difference in s.e.": errors,
    }


if __name__ == "__main__":
    quick = {("wikispeedia_unfinished", 0): settings(epochs=1, negative=5, alpha=0.05, ns_exponent=0.1, sample=1e-2)}
    sys.exit(run_benchmark(measure_quality, small={"SEEDS": (1,), "SETTINGS": quick}))
