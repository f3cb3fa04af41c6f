"""The curve of ns_exponent: hit@10 and MRR where negatives are drawn by count ** exponent, from -1 over 0 to 1; no mark.

Negative sampling is as in gensim (plain gradient steps, no L2, no recency; 20 negatives, alpha .05, 20 epochs, sample .01);
sampled softmax is as shipped, and corrects for the exponent. One seed. A case's ratio is its hit@10 by that of the best
exponent of the same log and objective.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.tokens import Corpus
from tests.benchmarks.gensim_quality import LIKE_GENSIM, METRICS
from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import THREADS, make_corpus
from tests.benchmarks.peers import answer_held_out, train_ours

LOGS = ("wikispeedia_unfinished", "yoochoose_100k")
EXPONENTS = (-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0)
OBJECTIVES: dict[str, dict[str, Any]] = {
    "negative sampling": LIKE_GENSIM | {"negative": 20, "alpha": 0.05, "min_alpha": 0.0005, "epochs": 20},
    "sampled softmax": {},
}


def measure_exponents(data: Path) -> list[dict[str, Any]]:
    """A case a log, objective and exponent."""
    cases = []
    for log in LOGS:
        with tempfile.TemporaryDirectory() as folder:
            corpus = make_corpus(data / f"{log}.parquet", Path(folder) / "root")
            for objective in OBJECTIVES:
                curve = [ask(corpus, objective, exponent, Path(folder)) for exponent in EXPONENTS]
                best = max(point["hit@10"] for point in curve)
                for exponent, point in zip(EXPONENTS, curve, strict=True):
                    case = {"case": f"{log}, {objective}, {exponent:g}", "ratio": point["hit@10"] / best}
                    cases.append(case | {"mark": "none", "passed": True} | point)
    return cases


def ask(corpus: Corpus, objective: str, exponent: float, folder: Path) -> dict[str, float]:
    """The metrics of one training."""
    config = TrainConfig(**OBJECTIVES[objective], ns_exponent=exponent, threads=THREADS)
    ranks = answer_held_out(corpus, train_ours(corpus, config, folder / f"{objective} {exponent}")).ranks
    return {name: float(metric(ranks).mean()) for name, metric in METRICS.items()}


if __name__ == "__main__":
    sys.exit(run_benchmark("exponents", __doc__ or "", measure_exponents))
