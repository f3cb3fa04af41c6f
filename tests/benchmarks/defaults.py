"""Our shipped defaults, the same on every log, beside the peers that people know; one seed.

The peers: popularity, gensim's Doc2Vec, implicit's BPR and ALS, item-kNN, session-kNN with recency, sequence rules, and EASE
where there are at most EASE_ITEMS items. Every user that has a held-out item is ranked, by one function for all. Of each peer
the best of its few settings counts, for each metric its own, on the very items that are asked, which favours the peers; for
both kNN one setting after the other is chosen by hit@20 (`climb`), for all others every combination is asked.
Passed: the mean of hit@20 and that of MRR@20 above those of every peer. The table says by how many standard errors of the
difference a user, and names the best setting. The ratio is the lower of the two of hit@20 and MRR@20, ours by the best peer's.
Where more than MANY users have a held-out item, SAMPLE of them are asked, drawn at random, the same for all sides: with all, the
peers' neighbours for every setting would take the most of an hour. Training misses the held-out items of all users as ever.
Shown without a mark: what fewer negatives of more weight are for, the same training with HEAVY.
"""

import dataclasses
import functools
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.tokens import Corpus
from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import ALL_USERS, LOGS, THREADS, make_corpus_of
from tests.benchmarks.neighbours import ItemNeighbours, Seen, SequenceRules, SessionNeighbours, read_seen, solve_ease
from tests.benchmarks.peers import (
    RowPeer,
    Vectors,
    answer_held_out,
    difference_in_errors,
    train_als,
    train_bpr,
    train_gensim,
    train_ours,
    train_popularity,
)

SEED = 1
MANY, SAMPLE = 20_000, 5_000
HEAVY: dict[str, Any] = {"negative": 20, "negative_weight": 1}
GENSIM_EXPONENTS = (0.75, 0.0, -0.5)
GENSIM_SETTINGS: dict[str, Any] = {"dm": 0, "negative": 5, "epochs": 20}  # its default of 10 epochs is less
ALS_ALPHAS = (1.0, 10.0, 40.0, 150.0)
ALS_REGULARIZATIONS = (0.01, 0.1, 10.0, 100.0)
ITEM_NEIGHBOURS, ITEM_DECAYS = (100, 20, 1000), ("1/age", "none", "last")
SESSION_NEIGHBOURS, SESSION_DECAYS = (500, 100, 5000), ("1/age", ".8", ".5", "none")
SESSION_EVENTS = 25_000  # of all neighbours of a user, at most: 5,000 are for logs of short histories
RULE_STEPS, RULE_DECAYS = (1, 3, 10, 20), ("last", ".1", ".3", "1/age")
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

    def mean(self, metric: str) -> float:
        return float(self.values[metric].mean())

    def tell(self) -> str:
        """hit@20 and MRR@20, and the seconds, in one cell of a table."""
        means = ", ".join(f"{self.mean(metric):.4f}" for metric in METRICS)
        return f"{means} in {self.seconds:.1f} s"


def measure_defaults(data: Path, log: str = "all") -> list[dict[str, Any]]:
    """A case a log; `log` names one of LOGS, or all."""
    cases = []
    for name in LOGS if log == "all" else (log,):
        with tempfile.TemporaryDirectory() as folder:
            corpus = make_corpus_of(name, data, Path(folder))
            config = dataclasses.replace(TrainConfig(), seed=SEED, threads=THREADS)
            ours = ask_ours(corpus, config, Path(folder))
            heavy = ask(corpus, "", train_ours(corpus, dataclasses.replace(config, **HEAVY), Path(folder) / "heavy"))
            peers = {peer: list(sides) for peer, sides in train_peers(corpus)}
        told = {"20 negatives of weight 1 (hit@20, MRR@20)": heavy.tell()}
        cases.append(judge(name, ours, peers) | told | {"users asked": len(ours.values["hit@20"])})
    return cases


def ask_ours(corpus: Corpus, config: TrainConfig, folder: Path) -> Side:
    """Our trainer, as shipped; its seconds are without compiling the kernel."""
    train_ours(corpus, dataclasses.replace(config, epochs=1), folder / "warm")
    return ask(corpus, "", train_ours(corpus, config, folder / "store"))


def train_peers(corpus: Corpus) -> Iterator[tuple[str, Iterator[Side]]]:
    """The name of each peer and its settings, trained and asked."""
    yield "popularity", iter([ask(corpus, "", train_popularity(corpus))])
    yield "gensim", ask_gensim(corpus)
    yield "BPR", iter([ask(corpus, "", train_bpr(corpus, TrainConfig().vector_size, SEED))])
    yield "ALS", ask_als(corpus)
    seen = read_seen(corpus)
    yield "item-kNN", ask_item_neighbours(corpus, seen)
    yield "session-kNN", ask_session_neighbours(corpus, seen)
    yield "sequence rules", ask_rules(corpus, seen)
    if corpus.num_items <= EASE_ITEMS:
        yield "EASE", (ask(corpus, f"L2 {l2:g}", peer) for l2, peer in solve_ease(seen, EASE_L2S))


def ask_gensim(corpus: Corpus) -> Iterator[Side]:
    for exponent in GENSIM_EXPONENTS:
        settings = GENSIM_SETTINGS | {"vector_size": TrainConfig().vector_size, "ns_exponent": exponent, "seed": SEED}
        yield ask(corpus, f"exponent {exponent:g}", train_gensim(corpus, **settings))


def ask_als(corpus: Corpus) -> Iterator[Side]:
    """All pairs: what regularization is best grows with alpha, so that one after the other ends below the best pair."""
    for alpha in ALS_ALPHAS:
        for l2 in ALS_REGULARIZATIONS:
            vectors = train_als(corpus, TrainConfig().vector_size, SEED, alpha, l2)
            yield ask(corpus, f"alpha {alpha:g}, regularization {l2:g}", vectors)


def ask_item_neighbours(corpus: Corpus, seen: Seen) -> Iterator[Side]:
    find = functools.cache(functools.partial(ItemNeighbours, seen, max(ITEM_NEIGHBOURS)))
    axes = {"neighbours": ITEM_NEIGHBOURS, "decay": ITEM_DECAYS, "iuf": (True, False)}
    return climb(corpus, axes, lambda number, decay, has_iuf: find(has_iuf).peer(number, decay))


def ask_session_neighbours(corpus: Corpus, seen: Seen) -> Iterator[Side]:
    length = np.mean([len(history) for history in seen.histories])
    numbers = tuple(number for number in SESSION_NEIGHBOURS if number * length <= SESSION_EVENTS)
    axes = {"what followed": (False, True), "neighbours": numbers, "decay": SESSION_DECAYS, "iuf": (True, False)}

    def make(is_after: bool, number: int, decay: str, has_iuf: bool) -> RowPeer:
        return SessionNeighbours(seen, decay, has_iuf).peer(number, is_after)

    return climb(corpus, axes, make)


def ask_rules(corpus: Corpus, seen: Seen) -> Iterator[Side]:
    for steps in RULE_STEPS:
        model = SequenceRules(seen, steps)
        for decay in RULE_DECAYS:
            yield ask(corpus, f"steps {steps}, decay {decay}", model.peer(decay))


def climb(corpus: Corpus, axes: dict[str, tuple[Any, ...]], make: Callable[..., Vectors | RowPeer]) -> Iterator[Side]:
    """Ask one setting after the other, each with the best of those before by hit@20, beginning with the first values.

    Twice: at the second round the first settings meet the best of the others. No values are asked twice.
    """
    best, asked = tuple(values[0] for values in axes.values()), dict[tuple[Any, ...], Side]()
    for place in [*range(len(axes))] * 2:
        for value in tuple(axes.values())[place]:
            point = (*best[:place], value, *best[place + 1 :])
            if point not in asked:
                setting = ", ".join(f"{name} {told}" for name, told in zip(axes, point, strict=True))
                asked[point] = ask(corpus, setting, make(*point))
                yield asked[point]
        best = max(asked, key=lambda point: asked[point].mean("hit@20"))


def ask(corpus: Corpus, setting: str, side: Vectors | RowPeer) -> Side:
    """The metrics of one side."""
    ranks = answer_held_out(corpus, side, SAMPLE if corpus.num_evaluated > MANY else ALL_USERS).ranks
    return Side(setting, {name: metric(ranks) for name, metric in METRICS.items()}, side.seconds)


def judge(log: str, ours: Side, peers: dict[str, Sequence[Side]]) -> dict[str, Any]:
    """The case of one log."""
    best = {
        metric: {name: max(sides, key=lambda side: side.mean(metric)) for name, sides in peers.items()}
        for metric in METRICS
    }
    is_above = all(ours.mean(metric) > side.mean(metric) for metric in METRICS for side in best[metric].values())
    names = {metric: max(best[metric], key=lambda name: best[metric][name].mean(metric)) for metric in METRICS}
    figures: dict[str, Any] = {}
    for metric, name in names.items():
        figures[f"{metric} ratio"] = ours.mean(metric) / best[metric][name].mean(metric)
        figures[f"{metric} best peer"] = name
    ratio = min(figures[f"{metric} ratio"] for metric in METRICS)
    figures["ours (hit@20, MRR@20)"] = ours.tell()
    for name in peers:
        figures[name] = "; ".join(tell_beside(metric, ours, best[metric][name]) for metric in METRICS)
    return {"case": log, "ratio": ratio, "mark": "> every peer", "passed": is_above} | figures


def tell_beside(metric: str, ours: Side, peer: Side) -> str:
    """A peer's mean of one metric, by how many standard errors ours is above, seconds and setting, for a cell of a table."""
    errors = difference_in_errors(ours.values[metric], peer.values[metric])
    seconds = f", {peer.seconds:.1f} s" if peer.seconds else ""
    setting = f", {peer.setting}" if peer.setting else ""
    return f"{metric} {peer.mean(metric):.4f} ({errors:+.1f} s.e.{seconds}{setting})"


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_defaults, small={"log": "nasa_19950801"}))
