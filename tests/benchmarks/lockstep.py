"""What a card's order of steps costs: hit@20 and MRR@20 of a simulated card beside the CPU's kernel.

On a card lanes move at once, and streams are in flight together. The simulation (lockstep_kernel.py) has one stream at a time,
or all of a micro-partition: these read a step's rows before any of them moves one, so that rows are as stale as can be. Three
real logs; the interest and the trail, each alone, as shipped; the CPU's kernel with the same seeds, on one thread.
Passed: neither metric is below the CPU's by more than two standard errors of the difference per user. The ratio is of hit@20.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import cpu, pick_kernel
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.training import loop
from tests.benchmarks.defaults import METRICS, Side, ask, mean_side
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.lockstep_kernel import make_kernel
from tests.benchmarks.logs import ALL_USERS, make_corpus_of
from tests.benchmarks.peers import difference_in_errors, train_ours

LOGS = ("wikispeedia_unfinished", "yoochoose_100k", "msweb")
PARTS: tuple[Literal["interest", "trail"], ...] = ("interest", "trail")
EPOCHS = TrainConfig.epochs
MARK = "neither is below by two standard errors"


def measure_lockstep(data: Path, log: str = "all", seeds: int = 3) -> list[dict[str, Any]]:
    """A case per log, part and width: one stream at a time, and all of a micro-partition."""
    cases = []
    for name in LOGS if log == "all" else (log,):
        with tempfile.TemporaryDirectory() as folder:
            corpus = make_corpus_of(name, data, Path(folder))
            for part in PARTS:
                config = TrainConfig(parts=part, threads=1, epochs=EPOCHS)
                alone = train(corpus, config, seeds, None, Path(folder))
                for width in (1, ALL_USERS):
                    cases.append(
                        compare(f"{name}, {part}", width, train(corpus, config, seeds, width, Path(folder)), alone)
                    )
    return cases


def train(corpus: Corpus, config: TrainConfig, seeds: int, width: int | None, folder: Path) -> Side:
    """Train with each seed, `width` streams in step, or on the CPU."""
    sides = []
    for seed in range(1, seeds + 1):
        with tempfile.TemporaryDirectory(dir=folder) as store:
            if width is None:
                vectors = train_ours(corpus, replace(config, seed=seed), Path(store))
            else:
                train_users, train_trail = make_kernel(width)
                kernel = replace(pick_kernel("cpu", config), train_users=train_users)
                with (
                    mock.patch.object(loop, "pick_kernel", return_value=kernel),
                    mock.patch.object(cpu, "train_trail", train_trail),
                ):
                    vectors = train_ours(corpus, replace(config, seed=seed), Path(store))
            sides.append(ask(corpus, "", vectors))
    return mean_side(sides)


def compare(name: str, width: int, side: Side, alone: Side) -> dict[str, Any]:
    errors = {metric: difference_in_errors(side.values[metric], alone.values[metric]) for metric in METRICS}
    figures = {metric: side.mean(metric) for metric in METRICS} | {
        f"{metric} of the CPU": alone.mean(metric) for metric in METRICS
    }
    return make_case(
        f"{name}, {'all streams' if width > 1 else 'one stream'} in step", side.mean("hit@20") / alone.mean("hit@20"), MARK,
        min(errors.values()) >= -2, **figures, **{f"{metric} in s.e.": error for metric, error in errors.items()},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_lockstep, small={"log": "msweb", "seeds": 1, "EPOCHS": 1, "PARTS": ("trail",)}))
