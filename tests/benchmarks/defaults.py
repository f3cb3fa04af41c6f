"""Our shipped defaults, the same on every log, beside gensim's best exponent, implicit's BPR and its best ALS; one seed.

Every user that has a held-out item is ranked, by one function for all. Of each peer the best of a few settings counts, by
hit@20 on the very items that are asked, which favours the peers. Passed: hit@20 and MRR above gensim's and BPR's, and no
lower than ALS's, that is, the mean difference a user is not below zero by more than two of its standard errors.
The ratio is the lower of the two of hit@20 and MRR, ours by the best peer's. Shown without a mark: what fewer negatives of more
weight are for, the same training with HEAVY.
"""

import dataclasses
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import LOGS, THREADS, find_log, make_corpus
from tests.benchmarks.peers import (
    Vectors,
    answer_held_out,
    is_no_lower,
    train_als,
    train_bpr,
    train_gensim,
    train_ours,
    train_popularity,
)
from trainer.config import TrainConfig
from trainer.store.tokens import Corpus

SEED = 1
HEAVY: dict[str, Any] = {"negative": 20, "negative_weight": 1}
GENSIM_EXPONENTS = (0.75, 0.0, -0.5)
GENSIM_SETTINGS: dict[str, Any] = {"dm": 0, "negative": 5, "epochs": 20}  # its default of 10 epochs is less
ALS_ALPHAS = (1.0, 10.0, 40.0)
ALS_REGULARIZATIONS = (0.01, 10.0, 100.0)
METRICS = {"hit@20": lambda ranks: (ranks <= 20).astype(float), "MRR": lambda ranks: 1 / ranks}


@dataclasses.dataclass(frozen=True)
class Side:
    """What one setting of one side reached: a value a held-out user of each metric, and seconds of training."""

    setting: str
    values: dict[str, NDArray[np.float64]]
    seconds: float

    def mean(self, metric: str) -> float:
        return float(self.values[metric].mean())

    def tell(self) -> str:
        """hit@20 and MRR, the seconds, and the setting that was best, in one cell of a table."""
        means = ", ".join(f"{self.mean(metric):.4f}" for metric in METRICS)
        seconds = f" in {self.seconds:.1f} s" if self.seconds else ""
        return f"{means}{seconds}" + (f" ({self.setting})" if self.setting else "")


def measure_defaults(data: Path) -> list[dict[str, Any]]:
    """A case a log."""
    cases = []
    for log in LOGS:
        with tempfile.TemporaryDirectory() as folder:
            corpus = make_corpus(find_log(data, log, Path(folder)), Path(folder) / "root")
            config = dataclasses.replace(TrainConfig(), seed=SEED, threads=THREADS)
            ours = ask(corpus, "", train_ours(corpus, config, Path(folder) / "store"))
            heavy = ask(corpus, "", train_ours(corpus, dataclasses.replace(config, **HEAVY), Path(folder) / "heavy"))
            peers = {name: max(sides, key=lambda side: side.mean("hit@20")) for name, sides in train_peers(corpus)}
        cases.append(judge(log, ours, peers) | {"20 negatives of weight 1 (hit@20, MRR)": heavy.tell()})
    return cases


def train_peers(corpus: Corpus) -> Iterator[tuple[str, list[Side]]]:
    """The name of each peer and its settings, trained and asked."""
    size = TrainConfig().vector_size
    yield "popularity", [ask(corpus, "", train_popularity(corpus))]
    gensims = []
    for exponent in GENSIM_EXPONENTS:
        vectors = train_gensim(corpus, vector_size=size, ns_exponent=exponent, seed=SEED, **GENSIM_SETTINGS)
        gensims.append(ask(corpus, f"exponent {exponent:g}", vectors))
    yield "gensim", gensims
    yield "BPR", [ask(corpus, "", train_bpr(corpus, size, SEED))]
    yield (
        "ALS",
        [
            ask(corpus, f"alpha {alpha:g}, regularization {l2:g}", train_als(corpus, size, SEED, alpha, l2))
            for alpha in ALS_ALPHAS
            for l2 in ALS_REGULARIZATIONS
        ],
    )


def ask(corpus: Corpus, setting: str, vectors: Vectors) -> Side:
    """The metrics of one side's vectors."""
    ranks = answer_held_out(corpus, vectors).ranks
    return Side(setting, {name: metric(ranks) for name, metric in METRICS.items()}, vectors.seconds)


def judge(log: str, ours: Side, peers: dict[str, Side]) -> dict[str, Any]:
    """The case of one log."""
    is_above = all(ours.mean(metric) > peers[name].mean(metric) for metric in METRICS for name in ("gensim", "BPR"))
    is_level = all(is_no_lower(ours.values[metric], peers["ALS"].values[metric]) for metric in METRICS)
    ratios = [ours.mean(metric) / max(side.mean(metric) for side in peers.values()) for metric in METRICS]
    figures = {f"{name} (hit@20, MRR)": side.tell() for name, side in {"ours": ours, **peers}.items()}
    mark = "> gensim, > BPR, >= ALS - 2 s.e."
    return {"case": log, "ratio": min(ratios), "mark": mark, "passed": is_above and is_level} | figures


if __name__ == "__main__":
    sys.exit(run_benchmark("defaults", __doc__ or "", measure_defaults))
