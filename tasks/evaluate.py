"""How well the vectors rank the held-out next item of a user, beside popularity.

The held-out item is the newest event whose item was new to the user; training has not seen it or what came after it. All
items but those the user has seen before are ranked by `dot(user vector, item vector)`, or by their probability in a tree.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.corpus import Corpus
from trainer.events import OnEvent, ignore_event
from trainer.store import Generation
from trainer.trees import Tree, log_probabilities, make_tree

Score = Callable[[NDArray[np.float32]], torch.Tensor]
"""Scores of all items, float32[n, V], for users' vectors, float32[n, D]: higher ranks first."""

TOP = 20
BATCH_SCORES = 16_000_000  # scores held at once: 64 MB, whatever the number of items


class UserReader(Protocol):
    """Whatever has the vectors of a micro-partition's users, float32[n, D]: a generation."""

    def read_users(self, partition: int, /) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class Question:
    """Held-out users: their vectors float32[m, D], held-out items int64[m], and the items each has seen.

    seen_rows, seen_items int64[s]: user seen_rows[i] has seen seen_items[i]; sorted by row, each pair once.
    """

    vectors: NDArray[np.float32]
    items: NDArray[np.int64]
    seen_rows: NDArray[np.int64]
    seen_items: NDArray[np.int64]


@dataclass(frozen=True)
class Answer:
    """ranks float64[m]: 1 is best, ties count half; top int64[m, TOP]: the items that rank first."""

    ranks: NDArray[np.float64]
    top: NDArray[np.int64]


def score_by_vectors(item_vectors: NDArray[np.float32]) -> Score:
    """Scores of all items as dot products with item vectors float32[V, D]."""
    items = torch.from_numpy(np.ascontiguousarray(item_vectors))
    return lambda users: torch.from_numpy(users) @ items.T


def score_by_tree(tree: Tree, node_vectors: NDArray[np.float32]) -> Score:
    """Scores of all items as their log-probabilities down a tree."""
    return lambda users: torch.from_numpy(log_probabilities(tree, node_vectors, users))


def rank_held_out(question: Question, score: Score, num_items: int) -> Answer:
    """Rank every held-out item among all items the user has not seen; in batches of a bounded memory."""
    batch = max(1, BATCH_SCORES // num_items)
    ranks, tops = [], []
    for start in range(0, len(question.items), batch):
        users = question.vectors[start : start + batch]
        scores = score(users)
        first, last = np.searchsorted(question.seen_rows, (start, start + len(users)))
        seen = question.seen_rows[first:last] - start, question.seen_items[first:last]
        scores[seen] = -torch.inf
        held = torch.from_numpy(question.items[start : start + len(users)])[:, None]
        held_scores = scores.gather(1, held)
        above = (scores > held_scores).sum(dim=1)
        ties = (scores == held_scores).sum(dim=1) - 1
        ranks.append((1 + above + ties / 2).double().numpy())
        tops.append(scores.topk(min(TOP, num_items), dim=1).indices.numpy())
    return Answer(np.concatenate(ranks), np.concatenate(tops))


def popularity_vectors(counts: NDArray[np.int64], num_users: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """One-dimensional user and item vectors whose dot product ranks items by their counts: the baseline."""
    places = np.unique(counts, return_inverse=True)[1]  # places, not counts: float32 holds them exactly
    return np.ones((num_users, 1), dtype=np.float32), places.astype(np.float32)[:, None]


def measure(answer: Answer, num_items: int) -> dict[str, float]:
    """hit@10, hit@20, MRR@20, NDCG@20 (one relevant item a user) and the share of items that were recommended."""
    ranks = answer.ranks
    in_top = ranks <= TOP
    return {
        "hit_at_10": float((ranks <= 10).mean()),
        "hit_at_20": float(in_top.mean()),
        "mrr_at_20": float(np.where(in_top, 1 / ranks, 0).mean()),
        "ndcg_at_20": float(np.where(in_top, 1 / np.log2(ranks + 1), 0).mean()),
        "coverage_at_20": len(np.unique(answer.top)) / num_items,
    }


def questions(corpus: Corpus, generation: UserReader) -> Iterator[Question]:
    """The held-out users of each micro-partition that has some."""
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        rows = np.flatnonzero(histories.is_held_out)
        if len(rows):
            lengths = (histories.ends - histories.starts)[rows]
            tokens = [histories.tokens[histories.starts[row] : histories.ends[row]] for row in rows]
            pairs = np.unique(
                np.repeat(np.arange(len(rows)), lengths) * corpus.num_items + np.concatenate(tokens).astype(np.int64)
            )
            yield Question(
                generation.read_users(partition)[rows],
                histories.held_out_items().astype(np.int64),
                *np.divmod(pairs, corpus.num_items),
            )


def score_of(generation: Generation, counts: NDArray[np.int64]) -> Score:
    """How a generation ranks items: by vectors, or down the tree made of the training's counts, int64[V]."""
    tree = make_tree(generation.config, counts)
    if tree is None:
        return score_by_vectors(generation.read_items())
    return score_by_tree(tree, generation.read_item_table().outputs.vectors)


def evaluate(corpus: Corpus, generation: Generation, on_event: OnEvent = ignore_event) -> dict:
    """The story's "evaluate" (without seconds): quality on the held-out users, beside popularity.

    A generation whose held-out users were fitted again on their full histories answers what was measured before that.
    """
    if generation.manifest["stage"] == "refitted":
        return generation.manifest["evaluation"]
    counts = corpus.count_training_tokens()
    score = score_of(generation, counts)
    answers: list[tuple[Answer, Answer]] = []
    for question in questions(corpus, generation):
        ones, places = popularity_vectors(counts, len(question.items))
        popular = Question(ones, question.items, question.seen_rows, question.seen_items)
        answers.append(
            (
                rank_held_out(question, score, corpus.num_items),
                rank_held_out(popular, score_by_vectors(places), corpus.num_items),
            )
        )
        done = sum(len(answer.ranks) for answer, _ in answers)
        on_event(
            "progress",
            {"step": "evaluate", "done": done, "total": corpus.manifest["num_held_out"], "unit": "users"},
        )
    if not answers:
        return {"num_users": 0, "metrics": {}}
    ours, popularity = (
        Answer(np.concatenate([a.ranks for a in side]), np.concatenate([a.top for a in side]))
        for side in zip(*answers, strict=True)
    )
    metrics = measure(ours, corpus.num_items)
    metrics |= {f"popularity_{name}": value for name, value in measure(popularity, corpus.num_items).items()}
    return {"num_users": len(ours.ranks), "metrics": metrics}
