"""Linear item-item models in closed form: sequence rules, EASE, SLIST, and TALE, which knows the times of events.

But for the rules, which count, all are ridge regressions of what users had next, or at all, on what they had before.
SLIST and TALE solve for the weighed items of the asked users, not for the V x V weights, which few of them need.
Where there are more than DENSE_ITEMS items, by conjugate gradients, so that no matrix of V x V is dense.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_matrix, diags

from tests.benchmarks.neighbours import Seen, break_ties, score_by_items, unit_rows
from tests.benchmarks.peers import RowPeer

DENSE_ITEMS = 5_000
WINDOW = 50  # events before and after one that are looked at, at most: weights of others are small
RESIDUAL, MOST_STEPS = 1e-2, 100
TREND = 0.1  # the share of a log's time in which TALE counts how popular an item is


@dataclass(frozen=True)
class Regression:
    """What B in S B = T is found from: gram = S'S and cross = S'T, sparse float32[V, V]."""

    gram: csr_matrix
    cross: csr_matrix

    def mix(self, other: "Regression", share: float) -> "Regression":
        """Both at once, `share` of this one."""
        gram, cross = (share * a + (1 - share) * b for a, b in ((self.gram, other.gram), (self.cross, other.cross)))
        return Regression(gram.tocsr(), cross.tocsr())


def regress(sources: csr_matrix, targets: csr_matrix, weights: NDArray[np.float64] | float = 1.0) -> Regression:
    """The regression of targets on sources, float32[rows, V], whose rows weigh `weights`, float64[rows]."""
    weighed = (diags(np.broadcast_to(weights, sources.shape[0])) @ sources).T.astype(np.float32)
    return Regression((weighed @ sources).tocsr(), (weighed @ targets).tocsr())


def score_by_regression(seen: Seen, decay: str, regression: Regression, l2: float) -> RowPeer:
    """Scores a user's items x, weighed by age, as x B, B = (S'S + l2 I)^-1 S'T."""
    start = time.perf_counter()
    weights, solve = seen.weigh(decay), make_solver(regression.gram, l2)

    def score(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return break_ties(solve(weights[rows].toarray()) @ regression.cross, seen.places)

    return RowPeer(score, time.perf_counter() - start)


def make_solver(gram: csr_matrix, l2: float) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Maps x float32[B, V] to x (gram + l2 I)^-1."""
    if gram.shape[0] > DENSE_ITEMS:
        return functools.partial(solve_by_steps, gram, l2)
    factor = cho_factor(gram.toarray() + l2 * np.eye(gram.shape[0], dtype=np.float32))
    return lambda rows: cho_solve(factor, rows.T).T.astype(np.float32)


def solve_by_steps(gram: csr_matrix, l2: float, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """x (gram + l2 I)^-1 for each row x, by conjugate gradients on a matrix with ones in its diagonal."""
    scales = (1 / np.sqrt(gram.diagonal() + l2)).astype(np.float32)
    scaled, l2s = diags(scales) @ gram @ diags(scales), (l2 * scales**2)[:, None]
    rest = np.ascontiguousarray((rows * scales).T)
    found, way, squares = np.zeros_like(rest), rest.copy(), (rest**2).sum(axis=0)
    least = RESIDUAL**2 * squares
    for _ in range(MOST_STEPS):
        product = scaled @ way + l2s * way
        step = squares / np.maximum((way * product).sum(axis=0), np.finfo(np.float32).tiny)
        found += step * way
        rest -= step * product
        last, squares = squares, (rest**2).sum(axis=0)
        if (squares <= least).all():
            break
        way = rest + squares / np.maximum(last, np.finfo(np.float32).tiny) * way
    return (found * scales[:, None]).T


class SequenceRules:
    """Sequence rules (Kamehkhosh et al. 2017): how often item b came k <= `steps` steps after item a, each 1 / k.

    The scores of b after a are shares of all that came after a, so that several items of a user count alike.
    """

    def __init__(self, seen: Seen, steps: int) -> None:
        start = time.perf_counter()
        rules = follow(seen, range(-1, -steps - 1, -1), lambda step, *_: -1 / step).T @ follow(
            seen, range(1), lambda *_: 1
        )
        rules.setdiag(0)
        self.seen, self.rules, self.seconds = seen, unit_rows(rules.tocsr(), 1), time.perf_counter() - start

    def peer(self, decay: str) -> RowPeer:
        return RowPeer(score_by_items(self.seen, decay, self.rules), self.seconds)


def solve_ease(seen: Seen, l2s: Sequence[float]) -> Iterator[tuple[float, RowPeer]]:
    """EASE (Steck 2019) for each L2: B = I - P / diag(P), P = (X'X + l2 I)^-1, X the ones of the users' items, float32[n, V]."""
    gram = (seen.users.T @ seen.users).toarray().astype(np.float64)
    for l2 in l2s:
        start = time.perf_counter()
        inverse = cho_solve(cho_factor(gram + l2 * np.eye(len(gram))), np.eye(len(gram)))
        item_scores = (-inverse / np.diag(inverse)).astype(np.float32)
        np.fill_diagonal(item_scores, 0)
        yield l2, RowPeer(score_by_items(seen, "none", item_scores), time.perf_counter() - start)


def regress_slis(seen: Seen, lifetime: float = math.inf) -> Regression:
    """SLIS of SLIST (Choi et al. 2021): all items of a user on themselves, each user's sources adding up to 1.

    A user weighs exp(-t / `lifetime`), t the seconds from its newest event to the newest of all.
    """
    return regress(unit_rows(seen.users, 1), seen.users, np.exp((seen.last_times - seen.times.max()) / lifetime))


def regress_slit(seen: Seen, span: float, lifetime: float = math.inf) -> Regression:
    """SLIT of SLIST: at each event, the items from it on, on those before it, all weighed exp(-steps / `span`)."""
    sources = follow(seen, range(-1, -WINDOW - 1, -1), lambda step, *_: np.exp((step + 1) / span))
    targets = follow(seen, range(WINDOW + 1), lambda step, *_: np.exp(-step / span))
    return regress(unit_rows(sources, 1), targets, np.exp((seen.last_times[seen.owners] - seen.times.max()) / lifetime))


def regress_tale(seen: Seen, tau: float, least: float, trend: float) -> Regression:
    """TALE (Park et al. 2025): each event on those before it, weighed max(exp(-seconds between / `tau`), `least`).

    Sources and targets are also weighed by a power `trend` of how many events their item had lately, the event included.
    """
    powers = count_lately(seen, TREND * np.ptp(seen.times)) ** trend

    def weigh(_: int, event: NDArray[np.int64], source: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.maximum(np.exp((seen.times[source] - seen.times[event]) / tau), least) * powers[source]

    targets = follow(seen, range(1), lambda _, event, __: powers[event])
    return regress(follow(seen, range(-1, -WINDOW - 1, -1), weigh), targets)


def follow(seen: Seen, steps: range, weigh: Callable[..., Any]) -> csr_matrix:
    """For each event the items of the same user so many steps later, or before, float32[T, V]; weights add up.

    weigh: maps a number of steps, and places int64[k] of events and of those others, to weights.
    """
    events, others, weights = [], [], []
    for step in steps:
        event = np.arange(max(0, -step), len(seen.tokens) - max(0, step))
        event = event[seen.owners[event] == seen.owners[event + step]]
        events.append(event)
        others.append(event + step)
        weights.append(np.broadcast_to(weigh(step, event, event + step), len(event)))
    places = np.concatenate(events), seen.tokens[np.concatenate(others)]
    values = np.concatenate(weights).astype(np.float32)
    return csr_matrix((values, places), shape=(len(seen.tokens), seen.num_items))


def count_lately(seen: Seen, seconds: float) -> NDArray[np.float64]:
    """How many events each event's item had in the `seconds` that end with it, float64[T]."""
    ages = seen.times - seen.times.min()
    keys = seen.tokens * 2 * (ages.max() + 1) + ages  # items one after the other, further apart than any two times
    order = np.sort(keys)
    return (np.searchsorted(order, keys, "right") - np.searchsorted(order, keys - seconds)).astype(float)
