"""Peers that count neighbours instead of training: item-kNN, session-kNN with recency, and STAN.

Each scores all items from the items that training sees of an asked user, so that none is a dot product of two short vectors.
Item-kNN is one product: weights of the user's items, float32[B, V], by item-to-item scores, float32[V, V].
Where scores are equal, as of all items that no neighbour has, the more frequent item is first, which favours these peers.
Memory: batches of BATCH_ROWS users or items at a time.
"""

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags, vstack

from surf2vec.trainer.store.tokens import Corpus, gather_spans
from tests.benchmarks.logs import held_out_rows
from tests.benchmarks.peers import RowPeer, training_histories
from tests.roots.scores import ScoreRows

BATCH_ROWS = 256
TIE_WEIGHT = 1e-5
"""Of an item's place by frequency, in [0, 1), beside a user's scores, the highest of which is 1."""
NEVER = 10**6
"""An age above all."""


@dataclass(frozen=True)
class Seen:
    """What training sees. users: ones where a user has an item, float32[n, V]; asked int64[m]: rows of the held-out users.

    ages: 1 + how many events ago an asked user had an item for the last time, float32[m, V], 0: never; places float32[V]:
    an item's place by frequency, the rarest 0, the most frequent below 1; histories: items int32[...] of each user, oldest first;
    times: seconds of the events of all histories, float64[T], all 0 where the log has only an order.
    """

    users: csr_matrix
    asked: NDArray[np.int64]
    ages: csr_matrix
    places: NDArray[np.float32]
    histories: Sequence[NDArray[np.int32]]
    times: NDArray[np.float64]

    @property
    def num_items(self) -> int:
        return int(self.users.shape[1])

    @functools.cached_property
    def tokens(self) -> NDArray[np.int32]:
        """All histories, one after the other, int32[T]."""
        return np.concatenate(self.histories)

    @functools.cached_property
    def owners(self) -> NDArray[np.int64]:
        """The row of the user of each event, int64[T]."""
        return np.repeat(np.arange(len(self.histories)), [len(history) for history in self.histories])

    @functools.cached_property
    def meetings(self) -> NDArray[np.int32]:
        """The different items of each history in the order in which each stands last, in the rows of `users`, int32[s]."""
        last = [_last_places(history) for history in self.histories]
        return np.concatenate([items[np.argsort(-ages)] for items, ages in last])

    @property
    def last_times(self) -> NDArray[np.float64]:
        """When each user's newest event was, float64[n]."""
        return self.times[np.cumsum([len(history) for history in self.histories]) - 1]

    def weigh(self, decay: str) -> csr_matrix:
        """The weights of the asked users' items by age, float32[m, V]; `decay` as of `weigh_ages`."""
        weights = self.ages.copy()
        weights.data = weigh_ages(decay, self.ages.data - 1)
        weights.eliminate_zeros()
        return weights


def weigh_ages(decay: str, ages: NDArray[np.float32]) -> NDArray[np.float32]:
    """The weights of ages a = 0, 1, ..., float32[k].

    decay: `none` 1; `1/age` 1 / (a + 1); `last` the last item alone; a number below 1, such as `.8`: .8 ** a.
    """
    if decay == "none":
        return np.ones_like(ages)
    if decay == "1/age":
        return 1 / (ages + 1)
    return (ages == 0).astype(np.float32) if decay == "last" else np.float32(decay) ** ages


def read_seen(corpus: Corpus, times: NDArray[np.float64] | None = None) -> Seen:
    """What training sees of a corpus; `times` as of `read_times`, if the log has them."""
    histories, asked = list(training_histories(corpus)), held_out_rows(corpus)
    counts = corpus.count_training_tokens()
    places = np.argsort(np.argsort(counts, kind="stable")).astype(np.float32) / len(counts)
    last = [_last_places(histories[row]) for row in asked]
    ages = _sparse_rows([items for items, _ in last], [ages + 1 for _, ages in last], len(counts))
    items = [np.unique(history) for history in histories]
    users = _sparse_rows(items, [np.ones(len(one), np.float32) for one in items], len(counts))
    num_events = sum(len(history) for history in histories)
    return Seen(users, asked, ages, places, histories, np.zeros(num_events) if times is None else times)


def _last_places(history: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The different items of a history and how many events before its end each stands last, int32[k], float32[k]."""
    items, ages = np.unique(history[::-1], return_index=True)
    return items, ages.astype(np.float32)


def _sparse_rows(
    columns: Sequence[NDArray[np.int32]], values: Sequence[NDArray[np.float32]], num_columns: int
) -> csr_matrix:
    """A sparse matrix, float32[len(columns), num_columns], from the columns and values of each row."""
    starts = np.concatenate(([0], np.cumsum([len(row) for row in columns])))
    parts = np.concatenate(values).astype(np.float32), np.concatenate(columns), starts
    return csr_matrix(parts, shape=(len(columns), num_columns))


def score_by_items(seen: Seen, decay: str, item_scores: csr_matrix | NDArray[np.float32]) -> ScoreRows:
    """Scores a user's items weighed by age, times what each says of all items, float32[V, V]."""
    weights = seen.weigh(decay)

    def score(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        product = weights[rows] @ item_scores
        return break_ties(product.toarray() if isinstance(product, csr_matrix) else product, seen.places)

    return score


def break_ties(scores: NDArray[np.float32], places: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scores float32[B, V], the highest of each row 1, and where they are equal, in order of `places` float32[V]."""
    highest = scores.max(axis=1, keepdims=True)
    return (scores / np.where(highest > 0, highest, 1) + TIE_WEIGHT * places).astype(np.float32)


class ItemNeighbours:
    """item-kNN (Sarwar et al. 2001): the cosine of two items' users, ones or weighed by inverse user frequency.

    With the latter a user of l of V items weighs log(V / l) (Breese et al. 1998, turned to users). An item keeps its k nearest.
    """

    def __init__(self, seen: Seen, most_neighbours: int, has_iuf: bool) -> None:
        start = time.perf_counter()
        users = seen.users.copy()
        if has_iuf:
            lengths = np.diff(users.indptr)
            users.data *= np.repeat(np.log(seen.num_items / lengths), lengths).astype(np.float32)
        items = unit_rows(users.T.tocsr())
        blocks = []
        for first in range(0, seen.num_items, BATCH_ROWS):
            block = (items[first : first + BATCH_ROWS] @ items.T).tocsr()
            block.data[block.indices == first + _row_numbers(block)] = 0
            block.eliminate_zeros()
            blocks.append(keep_highest(block, most_neighbours))
        self.seen, self.nearest = seen, vstack(blocks).tocsr()
        self.ranks = rank_in_rows(self.nearest)  # sorted once, for any number of neighbours
        self.seconds = time.perf_counter() - start

    def peer(self, num_neighbours: int, decay: str) -> RowPeer:
        nearest = keep_stored(self.nearest, self.ranks < num_neighbours)
        return RowPeer(score_by_items(self.seen, decay, nearest), self.seconds)


def unit_rows(matrix: csr_matrix, power: float = 2) -> csr_matrix:
    """The rows by their lengths, or with `power` 1 by their sums; rows of zeros stay so."""
    lengths = np.asarray(matrix.power(power).sum(axis=1)).ravel() ** (1 / power)
    return (diags(1 / np.where(lengths > 0, lengths, 1)) @ matrix).astype(np.float32)


def _row_numbers(matrix: csr_matrix) -> NDArray[np.int64]:
    """The row of each stored value, int64[s]."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def keep_highest(matrix: csr_matrix, most: int) -> csr_matrix:
    """The `most` highest stored values of each row; of equal ones those of the first columns."""
    return keep_stored(matrix, rank_in_rows(matrix) < most)


def rank_in_rows(matrix: csr_matrix) -> NDArray[np.int64]:
    """How many stored values of its row come before each, int64[s]: higher ones, and equal ones of earlier columns."""
    rows = _row_numbers(matrix)
    order = np.lexsort((matrix.indices, -matrix.data, rows))
    ranks = np.empty(len(rows), dtype=np.int64)
    ranks[order] = np.arange(len(rows)) - matrix.indptr[:-1][rows]  # rows are ascending already
    return ranks


def keep_stored(matrix: csr_matrix, is_kept: NDArray[np.bool_]) -> csr_matrix:
    """A matrix with some of its stored values, bool[s]."""
    ends = np.concatenate(([0], np.cumsum(is_kept)))[matrix.indptr]
    return csr_matrix((matrix.data[is_kept], matrix.indices[is_kept], ends), shape=matrix.shape)


class SessionNeighbours:
    """session-kNN with recency (V-SkNN of Ludewig and Jannach 2018), and STAN (Garg et al. 2019), VSTAN (Ludewig et al. 2020).

    A user's items, weighed by age, are compared by cosine with all other users' items, and each of the k nearest scores its
    items by its cosine, weighed by the age of the user's newest item that both have. With `has_iuf` an item of c of n users
    weighs log(n / c) in the cosine. Within `lifetime` seconds between the newest events of both users a cosine falls to 1 / e.
    Published ones look at a sample of the newest sessions; this looks at all.
    """

    def __init__(self, seen: Seen, decay: str, has_iuf: bool, lifetime: float = math.inf) -> None:
        start = time.perf_counter()
        counts = np.maximum(np.bincount(seen.users.indices, minlength=seen.num_items), 1)
        self.iuf = np.log(seen.users.shape[0] / counts).astype(np.float32)
        others, asked = seen.users.copy(), seen.weigh(decay)
        if has_iuf:
            others.data *= self.iuf[others.indices]
            asked.data *= self.iuf[asked.indices]
        self.seen, self.asked, self.columns = seen, unit_rows(asked), unit_rows(others).T.tocsr()
        self.starts = seen.users.indptr.astype(np.int64)
        self.lifetime, self.last_times = lifetime, seen.last_times
        self.seconds = time.perf_counter() - start

    def peer(self, num_neighbours: int, near: str = "all", match: str = "1/age", iuf_weight: float = 0) -> RowPeer:
        """How the nearest score their items, the newest common item of both being the match.

        near: which items score: `all`, `after`: only those after the match (S-SkNN and SF-SkNN), or as of `weigh_ages` by how
        many items they are from it (STAN); match: as of `weigh_ages`, by the age of the match; an item's score is weighed
        by 1 + `iuf_weight` log(n / c) (VSTAN).
        """

        def score(rows: NDArray[np.int64]) -> NDArray[np.float32]:
            batches = [rows[first : first + BATCH_ROWS] for first in range(0, len(rows), BATCH_ROWS)]
            scores = np.concatenate([self._score(batch, num_neighbours, near, match) for batch in batches])
            return break_ties(scores * (1 + iuf_weight * self.iuf), self.seen.places)

        return RowPeer(score, self.seconds)

    def _score(self, rows: NDArray[np.int64], num_neighbours: int, near: str, match: str) -> NDArray[np.float32]:
        cosines = (self.asked[rows] @ self.columns).toarray()
        cosines[np.arange(len(rows)), self.seen.asked[rows]] = 0  # a user is no neighbour of its own
        if self.lifetime < math.inf:
            seconds = np.abs(self.last_times[self.seen.asked[rows]][:, None] - self.last_times)
            cosines *= np.exp(-seconds / self.lifetime).astype(np.float32)
        highest = torch.from_numpy(cosines).topk(min(num_neighbours, cosines.shape[1]), dim=1)
        values, users, owners = highest.values.numpy().ravel(), highest.indices.numpy().ravel(), np.arange(len(rows))
        is_near = values > 0
        owners = np.repeat(owners, highest.values.shape[1])[is_near]
        values, users = values[is_near], users[is_near]
        offsets, tokens = gather_spans(self.seen.meetings, self.starts[users], np.diff(self.starts)[users])
        lengths = np.diff(offsets)
        owner_of, steps = np.repeat(owners, lengths), np.arange(len(tokens)) - np.repeat(offsets[:-1], lengths)
        ages = self.seen.ages[rows].toarray()[owner_of, tokens]
        # The least age of a neighbour's items, and the place of that item, by one minimum.
        longest = int(lengths.max(initial=0)) + 1
        keys = np.where(ages > 0, ages, NEVER).astype(np.int64) * longest - steps
        newest = np.minimum.reduceat(keys, offsets[:-1]) if len(users) else keys
        age = -(-newest // longest)
        weights = np.repeat(values * weigh_ages(match, (age - 1).astype(np.float32)), lengths)
        distances = (steps - np.repeat(age * longest - newest, lengths)).astype(np.float32)
        if near == "after":
            weights *= distances > 0
        elif near != "all":
            weights *= weigh_ages(near, np.abs(distances))
        scores = csr_matrix((weights, (owner_of, tokens)), shape=(len(rows), self.seen.num_items))
        return scores.toarray().astype(np.float32)
