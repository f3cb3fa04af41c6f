"""Our shipped defaults, the same on every log, beside the peers that people know, none of which is a sequence network.

The peers: popularity, gensim's Doc2Vec, implicit's ALS, item-kNN, session-kNN with recency, STAN, sequence rules, SLIST,
TALE where times are real, and EASE where there are at most EASE_ITEMS items. Where order means nothing, neither SLIST nor TALE.
Every user that has a held-out item is ranked, by one function for all. Of each peer the best of its few settings counts, for
each metric its own, on the very items that are asked, which favours the peers; of EASE, ALS and gensim every combination is
asked, of the others one setting after the other is chosen (`climb`).
Passed: the mean of hit@20 is above that of every peer, and that of MRR@20 above or level: not below by more than two standard
errors of the difference a user. The table says by how many errors, and names the best setting. The ratio is the lower of the
two of hit@20 and MRR@20, ours by the best peer's. With several seeds ours are the means a user.
Where more than MANY users have a held-out item, SAMPLE of them are asked, drawn at random, the same for all sides: with all, the
peers' neighbours for every setting would take the most of an hour. Training misses the held-out items of all users as ever.
"""

import dataclasses
import functools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.tokens import Corpus
from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.linear import (
    SequenceRules,
    regress_slis,
    regress_slit,
    regress_tale,
    score_by_regression,
    solve_ease,
)
from tests.benchmarks.logs import ALL_USERS, LOGS, THREADS, TIMED_LOGS, UNORDERED_LOGS, make_corpus_of, read_times
from tests.benchmarks.neighbours import ItemNeighbours, Seen, SessionNeighbours, read_seen
from tests.benchmarks.peers import (
    RowPeer,
    Vectors,
    answer_held_out,
    difference_in_errors,
    is_no_lower,
    train_als,
    train_gensim,
    train_ours,
    train_popularity,
)

MANY, SAMPLE = 20_000, 5_000
CLIMBERS, FINALISTS = 1_500, 2
GENSIM_EXPONENTS = (0.75, 0.0, -0.5)
GENSIM_SETTINGS: dict[str, Any] = {"dm": 0, "negative": 5, "epochs": 20}  # its default of 10 epochs is less
ALS_ALPHAS = (1.0, 10.0, 40.0, 150.0)
ALS_REGULARIZATIONS = (0.01, 0.1, 10.0, 100.0)
SESSION_EVENTS = 25_000  # of all neighbours of a user, at most: 5,000 are for logs of short histories
LIFETIMES = (math.inf, 0.3)  # of a user's weight in STAN and SLIST: shares of the time that a log spans
EASE_ITEMS, EASE_L2S = 10_000, (1.0, 10.0, 100.0, 1000.0)
METRICS = {
    "hit@20": lambda ranks: (ranks <= 20).astype(float),
    "MRR@20": lambda ranks: np.where(ranks <= 20, 1 / ranks, 0.0),
}


@dataclasses.dataclass(frozen=True)
class Side:
    """What one setting of one side reached: a value a held-out user of each metric, and seconds of training."""

    setting: str
    values: dict[str, NDArray[np.float64]]
    seconds: float
    cpu_seconds: float = math.nan

    def mean(self, metric: str) -> float:
        return float(self.values[metric].mean())

    def tell(self) -> str:
        """hit@20 and MRR@20, and the seconds, in one cell of a table."""
        means = ", ".join(f"{self.mean(metric):.4f}" for metric in METRICS)
        return f"{means} in {self.seconds:.1f} s, {self.cpu_seconds:.1f} s of CPU"


def measure_defaults(data: Path, log: str = "all", seeds: int = 1) -> list[dict[str, Any]]:
    """A case a log; `log` names one of LOGS, or all; ours is trained with each of so many seeds, from 1 on."""
    cases = []
    for name in LOGS if log == "all" else (log,):
        with tempfile.TemporaryDirectory() as folder:
            corpus = make_corpus_of(name, data, Path(folder))
            ours = mean_side([ask_ours(corpus, seed, Path(folder) / f"seed-{seed}") for seed in range(1, seeds + 1)])
            peers = {peer: list(sides) for peer, sides in train_peers(corpus, name)}
        cases.append(judge(name, ours, peers) | {"users asked": len(ours.values["hit@20"])})
    return cases


def ask_ours(corpus: Corpus, seed: int, folder: Path) -> Side:
    """Our trainer, as shipped; its seconds are without compiling the kernel, those of the CPU are of all its threads."""
    config = dataclasses.replace(TrainConfig(), seed=seed, threads=THREADS)
    train_ours(corpus, dataclasses.replace(config, epochs=1), folder / "warm")
    start = time.process_time()
    vectors = train_ours(corpus, config, folder / "store")
    cpu_seconds = time.process_time() - start
    return dataclasses.replace(ask(corpus, "", vectors), cpu_seconds=cpu_seconds)


def mean_side(sides: Sequence[Side]) -> Side:
    """The means of the same setting with several seeds."""
    values = {metric: np.mean([side.values[metric] for side in sides], axis=0) for metric in METRICS}
    seconds = [np.mean([getattr(side, name) for side in sides]) for name in ("seconds", "cpu_seconds")]
    return Side(sides[0].setting, values, *map(float, seconds))


def train_peers(corpus: Corpus, log: str) -> Iterator[tuple[str, Iterator[Side]]]:
    """The name of each peer and its settings, trained and asked."""
    yield "popularity", iter([ask(corpus, "", train_popularity(corpus))])
    yield "gensim", ask_gensim(corpus)
    yield "ALS", ask_als(corpus)
    seen = read_seen(corpus, read_times(corpus) if log in TIMED_LOGS else None)
    yield "item-kNN", ask_item_neighbours(corpus, seen)
    yield "session-kNN", ask_session_neighbours(corpus, seen)
    yield "STAN", ask_stan(corpus, seen)
    yield "sequence rules", ask_rules(corpus, seen)
    if corpus.num_items <= EASE_ITEMS:
        yield "EASE", (ask(corpus, f"L2 {l2:g}", peer) for l2, peer in solve_ease(seen, EASE_L2S))
    if log not in UNORDERED_LOGS:
        yield "SLIST", ask_slist(corpus, seen)
    if log in TIMED_LOGS:
        yield "TALE", ask_tale(corpus, seen)


def ask_gensim(corpus: Corpus) -> Iterator[Side]:
    for exponent in GENSIM_EXPONENTS:
        settings = GENSIM_SETTINGS | {"vector_size": TrainConfig().vector_size, "ns_exponent": exponent, "seed": 1}
        yield ask(corpus, f"exponent {exponent:g}", train_gensim(corpus, **settings))


def ask_als(corpus: Corpus) -> Iterator[Side]:
    """All pairs: what regularization is best grows with alpha, so that one after the other ends below the best pair."""
    for alpha in ALS_ALPHAS:
        for l2 in ALS_REGULARIZATIONS:
            vectors = train_als(corpus, TrainConfig().vector_size, 1, alpha, l2)
            yield ask(corpus, f"alpha {alpha:g}, regularization {l2:g}", vectors)


def ask_item_neighbours(corpus: Corpus, seen: Seen) -> Iterator[Side]:
    axes = {"neighbours": (100, 20, 1000), "decay": ("1/age", ".5", "none", "last"), "iuf": (True, False)}
    find = functools.cache(functools.partial(ItemNeighbours, seen, 1000))
    return climb(corpus, axes, lambda number, decay, has_iuf: find(has_iuf).peer(number, decay))


def ask_session_neighbours(corpus: Corpus, seen: Seen) -> Iterator[Side]:
    axes = {"near": ("all", "after"), "neighbours": few_enough(seen, (500, 100, 5000))}
    axes |= {"decay": ("1/age", ".8", ".5", "none"), "iuf": (True, False)}
    return climb(corpus, axes, lambda near, number, *how: SessionNeighbours(seen, *how).peer(number, near))


def ask_stan(corpus: Corpus, seen: Seen) -> Iterator[Side]:
    axes = {
        "neighbours": few_enough(seen, (500, 1500, 100)),
        "decay": (".8", ".4", "1/age"),
        "near": (".8", ".5", "all"),
    }
    axes |= {"match": ("none", ".5", "1/age"), "iuf": (0, 1, 5)} | lifetimes(seen)

    def make(number: int, decay: str, near: str, match: str, iuf: float, lifetime: float = math.inf) -> RowPeer:
        return SessionNeighbours(seen, decay, False, lifetime).peer(number, near, match, iuf)

    return climb(corpus, axes, make)


def few_enough(seen: Seen, numbers: Sequence[int]) -> tuple[int, ...]:
    """Those numbers of neighbours that have at most SESSION_EVENTS events."""
    return tuple(number for number in numbers if number * len(seen.tokens) / len(seen.histories) <= SESSION_EVENTS)


def lifetimes(seen: Seen) -> dict[str, tuple[float, ...]]:
    """The axis of how fast old users lose weight, in seconds, where there are times."""
    span = float(np.ptp(seen.times))
    return {"lifetime": tuple(share * span for share in LIFETIMES)} if span else {}


def ask_slist(corpus: Corpus, seen: Seen) -> Iterator[Side]:
    axes = {"SLIS": (0.5, 0.2, 0.8), "span": (1, 0.5, 0.25, 4), "decay": (".6", ".3", ".8"), "L2": (10, 1)}
    slis = functools.cache(functools.partial(regress_slis, seen))
    slit = functools.cache(functools.partial(regress_slit, seen))

    def make(share: float, span: float, decay: str, l2: float, lifetime: float = math.inf) -> RowPeer:
        return score_by_regression(seen, decay, slis(lifetime).mix(slit(span, lifetime), share), l2)

    return climb(corpus, axes | lifetimes(seen), make)


def ask_tale(corpus: Corpus, seen: Seen) -> Iterator[Side]:
    axes = {"L2": (100, 10), "decay": (".6", ".3", "1/age"), "tau": (60, 3600), "least": (0.1, 0.4), "trend": (-0.2, 0)}
    regress = functools.cache(functools.partial(regress_tale, seen))
    return climb(corpus, axes, lambda l2, decay, *rest: score_by_regression(seen, decay, regress(*rest), l2))


def ask_rules(corpus: Corpus, seen: Seen) -> Iterator[Side]:
    axes = {"steps": (1, 3, 10, 20), "decay": ("last", ".1", ".3", "1/age")}
    find = functools.cache(functools.partial(SequenceRules, seen))
    return climb(corpus, axes, lambda steps, decay: find(steps).peer(decay))


def climb(corpus: Corpus, axes: dict[str, tuple[Any, ...]], make: Callable[..., Vectors | RowPeer]) -> Iterator[Side]:
    """Try one setting after the other, each with the best of those before by hit@20, beginning with the first values.

    Twice: at the second round the first settings meet the best of the others. No values are tried twice. CLIMBERS users are
    asked; then the best FINALISTS of each metric are asked of all.
    """
    best, tried = tuple(values[0] for values in axes.values()), dict[tuple[Any, ...], Side]()
    for place in [*range(len(axes))] * 2:
        for value in tuple(axes.values())[place]:
            point = (*best[:place], value, *best[place + 1 :])
            if point not in tried:
                tried[point] = ask(corpus, "", make(*point), CLIMBERS)
        best = max(tried, key=lambda point: tried[point].mean("hit@20"))
    ranked = (sorted(tried, key=lambda point: -tried[point].mean(metric)) for metric in METRICS)
    for point in dict.fromkeys(point for points in ranked for point in points[:FINALISTS]):
        setting = ", ".join(f"{name} {told}" for name, told in zip(axes, point, strict=True))
        yield ask(corpus, setting, make(*point))


def ask(corpus: Corpus, setting: str, side: Vectors | RowPeer, most: int = ALL_USERS) -> Side:
    """The metrics of one side, by `most` users at most."""
    most = min(most, SAMPLE if corpus.num_evaluated > MANY else ALL_USERS)
    ranks = answer_held_out(corpus, side, most).ranks
    return Side(setting, {name: metric(ranks) for name, metric in METRICS.items()}, side.seconds)


def judge(log: str, ours: Side, peers: Mapping[str, Sequence[Side]]) -> dict[str, Any]:
    """The case of one log."""
    best = {
        metric: {name: max(sides, key=lambda side: side.mean(metric)) for name, sides in peers.items()}
        for metric in METRICS
    }
    is_above = all(ours.mean("hit@20") > side.mean("hit@20") for side in best["hit@20"].values())
    is_level = all(is_no_lower(ours.values["MRR@20"], side.values["MRR@20"]) for side in best["MRR@20"].values())
    names = {metric: max(best[metric], key=lambda name: best[metric][name].mean(metric)) for metric in METRICS}
    figures: dict[str, Any] = {}
    for metric, name in names.items():
        figures[f"{metric} ratio"] = ours.mean(metric) / best[metric][name].mean(metric)
        figures[f"{metric} best peer"] = name
    ratio = min(figures[f"{metric} ratio"] for metric in METRICS)
    figures["ours (hit@20, MRR@20)"] = ours.tell()
    for name in peers:
        figures[name] = "; ".join(tell_beside(metric, ours, best[metric][name]) for metric in METRICS)
    mark = "hit@20 > every peer, MRR@20 >= every peer - 2 s.e."
    return {"case": log, "ratio": ratio, "mark": mark, "passed": is_above and is_level} | figures


def tell_beside(metric: str, ours: Side, peer: Side) -> str:
    """A peer's mean of one metric, by how many standard errors ours is above, seconds and setting, for a cell of a table."""
    errors = difference_in_errors(ours.values[metric], peer.values[metric])
    seconds = f", {peer.seconds:.1f} s" if peer.seconds else ""
    setting = f", {peer.setting}" if peer.setting else ""
    return f"{metric} {peer.mean(metric):.4f} ({errors:+.1f} s.e.{seconds}{setting})"


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_defaults, small={"log": "nasa_19950801"}))
