"""Speed beside gensim's Doc2Vec on the same log and cores: tokens a second, and seconds until its final quality is reached.

Tokens are those that training sees, counted before subsampling, which is the same on both sides (sample .001); the clock runs
over training alone: no scan of the vocabulary, no compiling. Two threads a side, 128 dimensions. gensim is fed by the
faster of its two ways, documents in memory or corpus_file, and has its usual settings: PV-DBOW, 5 negatives, exponent .75,
alpha .025, 20 epochs (its default of 10 ranks worse). Ours is FAST, for as many epochs. The sides take turns
(ours, gensim's two ways, ours, gensim's two ways); of each the best whole training counts.

    fast            the kernel over all users, FAST; its hit@10 must be no lower than gensim's (2 s.e., paired). "trainer" is
                    the same training with all that is around the kernel: micro-partitions, curve, the wait for the disk
    items still     FAST with accumulated gradients, which end with the same bits on any number of threads; no mark
    like for like   the same kernel with gensim's own objective and settings; no mark
    time to quality gensim trained to its end, with the exponent that ranks best on the log; ours QUICK through the whole
                    trainer with 1, 2, 3, ... epochs, a fresh run each with its own schedule: the first whose hit@20 reaches
                    gensim's counts, with the seconds of all its epochs
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import THREADS, find_log, make_corpus
from tests.benchmarks.peers import (
    Vectors,
    answer_held_out,
    begin_kernel_training,
    difference_in_errors,
    fit_gensim,
    train_gensim,
    train_ours,
)
from trainer.config import TrainConfig
from trainer.store.tokens import Corpus

SPEED_LOGS = ("gowalla_train", "wikispeedia_unfinished")
BEST_EXPONENTS = {"wikispeedia_unfinished": -0.5, "yoochoose_100k": 0.0, "gowalla_train": 0.75}
EPOCHS = 20
REPEATS = 3
SHORT_EPOCHS = 4  # of what is shown without a mark
SPEED_MARK, TIME_MARK = 20, 20
SAMPLE = 1e-3
USUAL: dict[str, Any] = {"vector_size": 128, "negative": 5, "sample": SAMPLE, "seed": 1}
FAST: dict[str, Any] = {"share_negatives": 256, "negative": 4}
QUICK: dict[str, Any] = {"negative": 3}  # our defaults but for fewer negatives: steps that go furthest in few epochs
LIKE_GENSIM: dict[str, Any] = {
    "objective": "negative_sampling", "optimizer": "sgd", "l2": 0, "item_l2": 0, "recency": 0, "bias": 0, "negative": 5,
    "alpha": 0.025, "min_alpha": 1e-4,
}  # fmt: skip
SHOWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "private negatives, as shipped": ({}, {"dm": 0}),
    "fast, items still over 1,024 users": (FAST | {"accumulate": 1024}, {"dm": 0}),
    "like for like, PV-DBOW": (LIKE_GENSIM, {"dm": 0}),
    "like for like, PV-DM": (LIKE_GENSIM | {"dm": 1}, {"dm": 1}),
    "like for like, Huffman": (LIKE_GENSIM | {"hs": 1}, {"dm": 0, "hs": 1, "negative": 0}),
}
"""What is shown without a mark: our settings, and those of gensim that it is shown beside."""

Run = Callable[[], float]


def our_config(epochs: int, **settings: Any) -> TrainConfig:
    return TrainConfig(**{"epochs": epochs, "sample": SAMPLE, "threads": THREADS} | settings)


def measure_speed(data: Path) -> list[dict[str, Any]]:
    """The cases of speed, then those of time to quality."""
    cases = []
    for log in SPEED_LOGS:
        with tempfile.TemporaryDirectory() as folder:
            corpus = make_corpus(find_log(data, log, Path(folder)), Path(folder) / "root")
            cases.append(race_fast(log, corpus, Path(folder)))
            cases += [race_shown(log, corpus, Path(folder), name) for name in SHOWN]
    for log, exponent in BEST_EXPONENTS.items():
        with tempfile.TemporaryDirectory() as folder:
            corpus = make_corpus(find_log(data, log, Path(folder)), Path(folder) / "root")
            cases.append(time_to_quality(log, corpus, Path(folder), exponent))
    return cases


def race(sides: dict[str, Run], repeats: int) -> dict[str, float]:
    """The sides in turn, `repeats` rounds of whole trainings; the fewest seconds of each."""
    rounds = [{name: run() for name, run in sides.items()} for _ in range(repeats)]
    return {name: min(seconds[name] for seconds in rounds) for name in sides}


def kernel_seconds(corpus: Corpus, config: TrainConfig) -> float:
    """Seconds of the kernel in one whole training."""
    training = begin_kernel_training(corpus, config)
    return sum(training.train_epoch(epoch) for epoch in range(config.epochs))


def gensim_ways(corpus: Corpus, folder: Path, **settings: Any) -> dict[str, Run]:
    """A training by each of gensim's two ways, answering its seconds."""
    files = {"in memory": None, "corpus_file": folder / "corpus.txt"}
    return {
        f"gensim {way}": lambda file=file: fit_gensim(corpus, file, **USUAL | settings)[2]  # type: ignore[misc]
        for way, file in files.items()
    }


def race_fast(log: str, corpus: Corpus, folder: Path) -> dict[str, Any]:
    """FAST beside gensim: tokens a second, and whether hit@10 is no lower."""
    num_tokens = EPOCHS * int(corpus.count_training_tokens().sum())
    trained: list[Vectors] = []

    def train_whole() -> float:
        trained.append(train_ours(corpus, our_config(EPOCHS, **FAST), folder / f"fast-{len(trained)}"))
        return trained[-1].training_seconds

    sides = {"ours": lambda: kernel_seconds(corpus, our_config(EPOCHS, **FAST)), "trainer": train_whole}
    best = race(sides | gensim_ways(corpus, folder, dm=0, hs=0, epochs=EPOCHS), REPEATS)
    gensim = train_gensim(corpus, dm=0, epochs=EPOCHS, **USUAL)
    hits = [(answer_held_out(corpus, vectors).ranks <= 10).astype(float) for vectors in (trained[-1], gensim)]
    errors = difference_in_errors(*hits)
    case = show_race(f"{log}, fast", best, num_tokens)
    return case | {
        "mark": f">= {SPEED_MARK} x, hit@10 no lower (2 s.e.)", "passed": case["ratio"] >= SPEED_MARK and errors >= -2,
        "hit@10": float(hits[0].mean()), "gensim hit@10": float(hits[1].mean()), "difference in s.e.": errors,
    }  # fmt: skip


def race_shown(log: str, corpus: Corpus, folder: Path, name: str) -> dict[str, Any]:
    """One of SHOWN."""
    ours, theirs = SHOWN[name]
    sides = {"ours": lambda: kernel_seconds(corpus, our_config(SHORT_EPOCHS, **ours))}
    best = race(sides | gensim_ways(corpus, folder, epochs=SHORT_EPOCHS, **theirs), REPEATS)
    return show_race(f"{log}, {name}", best, SHORT_EPOCHS * int(corpus.count_training_tokens().sum()))


def show_race(case: str, best: dict[str, float], num_tokens: int) -> dict[str, Any]:
    """A case without a mark, from the fewest seconds of each side."""
    rates = {f"{side} tokens/s": num_tokens / seconds for side, seconds in best.items()}
    gensim = min(seconds for side, seconds in best.items() if side.startswith("gensim"))
    return {"case": case, "ratio": gensim / best["ours"], "mark": "none", "passed": True} | rates


def time_to_quality(log: str, corpus: Corpus, folder: Path, exponent: float) -> dict[str, Any]:
    """Seconds of gensim's training by those of ours until hit@20 is as high as gensim's in the end."""
    settings = {**USUAL, "dm": 0, "epochs": EPOCHS, "ns_exponent": exponent}
    theirs = [train_gensim(corpus, file, **settings) for file in (None, folder / "corpus.txt")]
    target = max(hit_at_20(corpus, vectors) for vectors in theirs)
    for epochs in range(1, EPOCHS + 1):
        runs = [
            train_ours(corpus, our_config(epochs, **QUICK), folder / f"{epochs}-{repeat}") for repeat in range(REPEATS)
        ]
        reached = min(hit_at_20(corpus, vectors) for vectors in runs)
        if reached >= target:
            break
    ours = min(vectors.training_seconds for vectors in runs)
    ratio = min(vectors.training_seconds for vectors in theirs) / ours
    return {
        "case": f"{log}, time to quality", "ratio": ratio, "mark": f">= {TIME_MARK} x sooner",
        "passed": ratio >= TIME_MARK and reached >= target, "seconds": ours, "epochs": epochs, "hit@20": reached,
        "gensim seconds": min(vectors.training_seconds for vectors in theirs), "gensim hit@20": target,
        "gensim exponent": exponent,
    }  # fmt: skip


def hit_at_20(corpus: Corpus, vectors: Vectors) -> float:
    return float(np.mean(answer_held_out(corpus, vectors).ranks <= 20))


if __name__ == "__main__":
    sys.exit(run_benchmark("gensim_speed", __doc__ or "", measure_speed))
