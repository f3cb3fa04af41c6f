"""Peers that count instead of train: item-kNN, session-kNN with recency, sequence rules, and EASE, which solves one system.

Each scores all items from the items that training sees of an asked user, so that none is a dot product of two short vectors.
All but session-kNN are one product: weights of the user's items, float32[B, V], by item-to-item scores, float32[V, V].
Where scores are equal, as of all items that no neighbour has, the more frequent item is first, which favours these peers.
Memory: batches of BATCH_ROWS users or items at a time; EASE holds two matrices of V x V in float64.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_matrix, vstack

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
    an item's place by frequency, the rarest 0, the most frequent below 1; histories: items int32[...] of each user, oldest first.
    """

    users: csr_matrix
    asked: NDArray[np.int64]
    ages: csr_matrix
    places: NDArray[np.float32]
    histories: Sequence[NDArray[np.int32]]

    @property
    def num_items(self) -> int:
        return int(self.users.shape[1])

    def weigh(self, decay: str) -> csr_matrix:
        """The weights of the asked users' items by age a = 0, 1, ..., float32[m, V].

        decay: `none` 1; `1/age` 1 / (a + 1); `last` the last item alone; a number below 1, such as `.8`: .8 ** a.
        """
        weights, ages = self.ages.copy(), self.ages.data - 1
        if decay == "none":
            weights.data = np.ones_like(ages)
        elif decay == "1/age":
            weights.data = 1 / (ages + 1)
        elif decay == "last":
            weights.data = (ages == 0).astype(np.float32)
        else:
            weights.data = np.float32(decay) ** ages
        weights.eliminate_zeros()
        return weights


def read_seen(corpus: Corpus) -> Seen:
    """What training sees of a corpus."""
    histories, asked = list(training_histories(corpus)), held_out_rows(corpus)
    counts = corpus.count_training_tokens()
    places = np.argsort(np.argsort(counts, kind="stable")).astype(np.float32) / len(counts)
    last = [_last_places(histories[row]) for row in asked]
    ages = _sparse_rows([items for items, _ in last], [ages + 1 for _, ages in last], len(counts))
    items = [np.unique(history) for history in histories]
    users = _sparse_rows(items, [np.ones(len(one), np.float32) for one in items], len(counts))
    return Seen(users, asked, ages, places, histories)


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


def unit_rows(matrix: csr_matrix) -> csr_matrix:
    """The rows by their lengths; rows of zeros stay so."""
    squares = np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel()
    lengths = np.sqrt(np.where(squares > 0, squares, 1))
    scaled = matrix.astype(np.float32)
    scaled.data /= np.repeat(lengths, np.diff(matrix.indptr)).astype(np.float32)
    return scaled


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
    """session-kNN with recency: V-SkNN of Ludewig and Jannach 2018, after Jannach and Ludewig 2017.

    A user's items, weighed by age, are compared by cosine with all other users' items, and each of the k nearest scores its
    items by its cosine / (a + 1), a being the age of the user's newest item that both have. With `has_iuf` an item of c of n
    users weighs log(n / c) in the cosine. Published ones look at a sample of the newest sessions; this looks at all.
    """

    def __init__(self, seen: Seen, decay: str, has_iuf: bool) -> None:
        start = time.perf_counter()
        weights = np.ones(seen.num_items, np.float32)
        if has_iuf:
            counts = np.maximum(np.bincount(seen.users.indices, minlength=seen.num_items), 1)
            weights = np.log(seen.users.shape[0] / counts).astype(np.float32)
        others, asked = seen.users.copy(), seen.weigh(decay)
        others.data *= weights[others.indices]
        asked.data *= weights[asked.indices]
        self.seen, self.asked, self.columns = seen, unit_rows(asked), unit_rows(others).T.tocsr()
        self.starts = seen.users.indptr.astype(np.int64)
        self.tokens = np.concatenate([_last_meetings(history) for history in seen.histories])
        self.seconds = time.perf_counter() - start

    def peer(self, num_neighbours: int, is_after: bool) -> RowPeer:
        """With `is_after` a neighbour scores only what it had after that newest item, as in its S-SkNN and SF-SkNN."""

        def score(rows: NDArray[np.int64]) -> NDArray[np.float32]:
            batches = [rows[first : first + BATCH_ROWS] for first in range(0, len(rows), BATCH_ROWS)]
            return np.concatenate([self._score(batch, num_neighbours, is_after) for batch in batches])

        return RowPeer(score, self.seconds)

    def _score(self, rows: NDArray[np.int64], num_neighbours: int, is_after: bool) -> NDArray[np.float32]:
        cosines = (self.asked[rows] @ self.columns).toarray()
        cosines[np.arange(len(rows)), self.seen.asked[rows]] = 0  # a user is no neighbour of its own
        highest = torch.from_numpy(cosines).topk(min(num_neighbours, cosines.shape[1]), dim=1)
        values, users, owners = highest.values.numpy().ravel(), highest.indices.numpy().ravel(), np.arange(len(rows))
        is_near = values > 0
        owners = np.repeat(owners, highest.values.shape[1])[is_near]
        values, users = values[is_near], users[is_near]
        offsets, tokens = gather_spans(self.tokens, self.starts[users], np.diff(self.starts)[users])
        lengths = np.diff(offsets)
        owner_of, steps = np.repeat(owners, lengths), np.arange(len(tokens)) - np.repeat(offsets[:-1], lengths)
        ages = self.seen.ages[rows].toarray()[owner_of, tokens]
        # The least age of a neighbour's items, and the place of that item, by one minimum.
        longest = int(lengths.max(initial=0)) + 1
        keys = np.where(ages > 0, ages, NEVER).astype(np.int64) * longest - steps
        newest = np.minimum.reduceat(keys, offsets[:-1]) if len(users) else keys
        age = -(-newest // longest)
        weights = np.repeat(values / age, lengths)
        if is_after:
            weights *= steps > np.repeat(age * longest - newest, lengths)
        scores = csr_matrix((weights.astype(np.float32), (owner_of, tokens)), shape=(len(rows), self.seen.num_items))
        return break_ties(scores.toarray(), self.seen.places)


def _last_meetings(history: NDArray[np.int32]) -> NDArray[np.int32]:
    """The different items of a history in the order in which each stands last."""
    items, ages = _last_places(history)
    return items[np.argsort(-ages)]


class SequenceRules:
    """Sequence rules (Kamehkhosh et al. 2017): how often item b came k <= `steps` steps after item a, each 1 / k.

    The scores of b after a are shares of all that came after a, so that several items of a user count alike.
    """

    def __init__(self, seen: Seen, steps: int) -> None:
        start = time.perf_counter()
        rules = csr_matrix((seen.num_items, seen.num_items), dtype=np.float32)
        tokens = np.concatenate(seen.histories)
        owners = np.repeat(np.arange(len(seen.histories)), [len(history) for history in seen.histories])
        for step in range(1, steps + 1):
            is_pair = (owners[step:] == owners[:-step]) & (tokens[step:] != tokens[:-step])
            pairs = tokens[:-step][is_pair], tokens[step:][is_pair]
            rules += csr_matrix((np.full(len(pairs[0]), 1 / step, np.float32), pairs), shape=rules.shape)
        sums = np.asarray(rules.sum(axis=1)).ravel()
        rules.data /= np.repeat(sums, np.diff(rules.indptr))
        self.seen, self.rules, self.seconds = seen, rules, time.perf_counter() - start

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
