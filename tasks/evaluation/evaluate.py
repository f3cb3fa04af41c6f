"""Measures how well the vectors rank the held-out next item of a user, compared with popularity.

The held-out item is the newest event whose item was new to the user. Training has not seen this event or later ones. All items
that the user has not seen before are ranked by `dot(user vector, item vector)`, or by their probability in a tree.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from surf2vec.tasks.evaluation.measures import TOP, hits, reciprocals
from surf2vec.tasks.evaluation.scores import BATCH_SCORES, Piece, Scores, score_of
from surf2vec.tasks.export.noise import add_noise
from surf2vec.tasks.export.reduction import PROJECTION_FILE, project, read_projection
from surf2vec.tasks.export.vector_files import encode_vectors
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.release.release_reader import decode_vectors
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.events import OnEvent, ignore_event, log_progress
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.tokens import Corpus, Histories
from surf2vec.trainer.system.memory import private_bytes
from surf2vec.trainer.system.units import size
from surf2vec.trainer.training.infer import FrozenItems, infer_whole, take_histories
from surf2vec.trainer.training.vectors import BothParts

LEAST_GAIN = 2.0  # the gain for which a setting is chosen, in standard errors
GROUP_ITEMS = 256  # the best of that many groups of items tell which scores may be among the TOP
GROUP_BYTES = 64_000_000  # users' vectors that are ranked in one pass over the items
POPULARITY_BYTES_PER_ITEM = 56  # counts, and their positions during the sort


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
    """ranks float64[m]: 1 is best, ties count half; top int64[m, TOP]: the best items, or int64[m, 0]."""

    ranks: NDArray[np.float64]
    top: NDArray[np.int64]

    def join(self, other: "Answer") -> "Answer":
        return Answer(np.concatenate((self.ranks, other.ranks)), np.concatenate((self.top, other.top)))


def rank_held_out(
    question: Question,
    scores: Scores,
    is_shared: NDArray[np.bool_] | None = None,
    on_piece: Callable[[], object] = lambda: None,
) -> Answer:
    """Rank every held-out item among all items that the user has not seen, in bounded memory.

    For each piece of the items and each batch of users, count the items with higher scores. With several pieces, a first pass
    finds the scores of the held-out items. Only items in is_shared bool[V] count; the others get the lowest score.
    """
    ranking = Ranking(question, scores, is_shared)
    if scores.num_pieces > 1:
        for piece in scores.pieces():
            ranking.find_held_out(piece)
    for piece in scores.pieces():
        ranking.count(piece)
        on_piece()
    return ranking.answer()


class Ranking:
    """The ranks of a question's users after some of the pieces."""

    def __init__(self, question: Question, scores: Scores, is_shared: NDArray[np.bool_] | None = None) -> None:
        self.question, self.is_shared = question, is_shared
        self.batch_users = max(1, BATCH_SCORES // scores.piece_items)
        num_users = len(question.items)
        self.held_scores = np.zeros(num_users, np.float32)
        self.above, self.ties = np.zeros(num_users, np.int64), np.zeros(num_users, np.int64)
        self.top_scores, self.top = np.zeros((num_users, TOP), np.float32), np.zeros((num_users, TOP), np.int64)
        self.num_top = 0

    def find_held_out(self, piece: Piece) -> None:
        """Store the scores of the held-out items that are in a piece."""
        is_in_piece, places = _find(piece, self.question.items)
        own = np.flatnonzero(is_in_piece)
        for start in range(0, len(own), self.batch_users):
            rows = own[start : start + self.batch_users]
            scores = piece.score(self.question.vectors[rows])
            self.held_scores[rows] = scores[np.arange(len(rows)), places[rows]]

    def count(self, piece: Piece) -> None:
        """Count the items of a piece with a higher or equal score than the held-out item; keep the best items."""
        from surf2vec.trainer.kernels.compiled_ranks import count_scores, find_reached  # numba is slow to import

        num_top = min(TOP, self.num_top + len(piece.items))
        for users in self.batches():
            scores = self.score_unseen(piece, users)
            least = np.nextafter(self.top_scores[users, -1], np.inf) if self.num_top == TOP else _reached(scores)
            reached = np.empty(len(scores), np.int64)
            count_scores(scores, self.held_scores[users], least, self.above[users], self.ties[users], reached)
            columns = np.empty(reached.sum(), np.int64)
            find_reached(scores, least, reached, columns)
            rows = np.repeat(np.arange(len(scores)), reached)
            self._keep_top(users, rows, scores[rows, columns], piece.items[columns], num_top)
        self.num_top = num_top

    def batches(self) -> Iterator[slice]:
        """Yield the users as slices whose scores of a piece fit in memory."""
        num_users = len(self.question.items)
        for start in range(0, num_users, self.batch_users):
            yield slice(start, min(start + self.batch_users, num_users))

    def score_unseen(self, piece: Piece, batch: slice) -> NDArray[np.float32]:
        """Return the scores of a piece's items for some users, float32[B, n]; the lowest for items that do not count.

        Stores the scores of held-out items: from the same multiplication as those of the others, so that ties are exact.
        """
        scores = piece.score(self.question.vectors[batch])
        if self.is_shared is not None:
            scores[:, ~self.is_shared[piece.items]] = -np.inf
        first, last = np.searchsorted(self.question.seen_rows, (batch.start, batch.stop))
        is_in_piece, places = _find(piece, self.question.seen_items[first:last])
        scores[self.question.seen_rows[first:last][is_in_piece] - batch.start, places[is_in_piece]] = -np.inf
        is_in_piece, places = _find(piece, self.question.items[batch])
        own = np.flatnonzero(is_in_piece)
        self.held_scores[batch.start + own] = scores[own, places[own]]
        return scores

    def _keep_top(
        self, users: slice, rows: NDArray[np.int64], values: NDArray[np.float32], items: NDArray[np.int64], num_top: int
    ) -> None:
        """Merge scores of a piece, by row among the users, with the best of the pieces before; keep the `num_top` best."""
        num_users = users.stop - users.start
        values = np.concatenate((self.top_scores[users, : self.num_top].ravel(), values))
        found = np.concatenate((self.top[users, : self.num_top].ravel(), items))
        rows = np.concatenate((np.repeat(np.arange(num_users), self.num_top), rows))
        order = np.lexsort((-values, rows))  # stable: of equal scores the first item
        first = np.searchsorted(rows[order], np.arange(num_users))
        best = order[first[:, None] + np.arange(num_top)]
        self.top_scores[users, :num_top], self.top[users, :num_top] = values[best], found[best]

    def answer(self) -> Answer:
        """Return the ranks after all pieces were counted; each held-out item ties with itself."""
        return Answer(1 + self.above + (self.ties - 1) / 2, self.top[:, : self.num_top])


def _reached(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a score that the TOP best of each row reach, float32[m], and few others: TOP groups of columns have one."""
    depth = max(1, scores.shape[1] // GROUP_ITEMS)
    width = scores.shape[1] // depth
    highest = scores[:, : depth * width].reshape(len(scores), depth, width).max(axis=1)
    least = min(TOP, width)
    return np.partition(highest, -least, axis=1)[:, -least]


def _find(piece: Piece, items: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which of these items are in a piece, bool[m], and their positions in it, int64[m]."""
    places = np.minimum(np.searchsorted(piece.items, items), len(piece.items) - 1)
    return piece.items[places] == items, places


def rank_by_popularity(question: Question, counts: NDArray[np.int64]) -> Answer:
    """Rank as `rank_held_out`, but by the items' counts, int64[V]: the baseline. Needs no pass over all items."""
    ascending, held = np.sort(counts), counts[question.items]
    end = np.searchsorted(ascending, held, side="right")
    seen, own = counts[question.seen_items], held[question.seen_rows]
    above, ties = (np.bincount(question.seen_rows, weights=w, minlength=len(held)) for w in (seen > own, seen == own))
    above, ties = len(counts) - end - above, end - np.searchsorted(ascending, held) - ties
    return Answer(1 + above + (ties - 1) / 2, _popular_unseen(question, counts))


def _popular_unseen(question: Question, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the TOP most frequent items that each user has not seen, followed by seen items if there are too few."""
    order = np.argsort(-counts, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    num_top = min(TOP, len(order))
    top = np.empty((len(question.items), num_top), dtype=np.int64)
    for row, seen in enumerate(
        np.split(place[question.seen_items], np.searchsorted(question.seen_rows, range(1, len(top))))
    ):
        unseen = np.setdiff1d(np.arange(min(num_top + len(seen), len(order))), seen, assume_unique=True)
        top[row] = order[np.concatenate((unseen, seen))[:num_top]]
    return top


def measure(answer: Answer, num_items: int) -> dict[str, float]:
    """Return hit@10, hit@20, MRR@20, NDCG@20 (one relevant item per user) and the share of items that were recommended."""
    ranks = answer.ranks
    return {
        "hit_at_10": float(hits(ranks, 10).mean()),
        "hit_at_20": float(hits(ranks, TOP).mean()),
        "mrr_at_20": float(reciprocals(ranks).mean()),
        "ndcg_at_20": float((hits(ranks, TOP) / np.log2(ranks + 1)).mean()),
        "coverage_at_20": len(np.unique(answer.top)) / num_items,
    }


def questions(
    corpus: Corpus, generation: BothParts | None, by_choosing: bool = False
) -> Iterator[tuple[Question, Histories]]:
    """Yield the evaluated users of each micro-partition that has some, and their histories as training saw them; without a
    generation their vectors are empty.

    by_choosing: instead, the held-out users by whom settings are chosen.
    """
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        rows = np.flatnonzero(histories.is_choosing if by_choosing else histories.is_evaluated)
        if len(rows):
            seen = take_histories(histories, rows, histories.ends[rows])
            pairs = np.unique(np.repeat(np.arange(len(rows)), np.diff(seen.offsets)) * corpus.num_items + seen.tokens)
            vectors = generation.read_users(partition)[rows] if generation else np.empty((len(rows), 0), np.float32)
            items = histories.tokens[histories.ends[rows]].astype(np.int64)
            yield Question(vectors, items, *np.divmod(pairs, corpus.num_items)), seen


def join_sides(
    questions: Iterable[tuple[Question, ...]], group_bytes: int = GROUP_BYTES
) -> Iterator[tuple[Question, ...]]:
    """Merge questions about the same users to several releases, up to about so many bytes of vectors each."""
    group: list[tuple[Question, ...]] = []
    for sides in questions:
        group.append(sides)
        if sum(one.vectors.nbytes for sides in group for one in sides) >= group_bytes:
            yield tuple(map(_merge, zip(*group, strict=True)))
            group = []
    if group:
        yield tuple(map(_merge, zip(*group, strict=True)))


def _merge(group: tuple[Question, ...]) -> Question:
    starts = np.cumsum([0] + [len(one.items) for one in group[:-1]])
    return Question(
        np.concatenate([one.vectors for one in group]),
        np.concatenate([one.items for one in group]),
        np.concatenate([one.seen_rows + start for one, start in zip(group, starts.tolist(), strict=True)]),
        np.concatenate([one.seen_items for one in group]),
    )


def rank_all(
    questions: Iterable[tuple[Question, ...]],
    rank: Callable[..., tuple[Answer, ...]],
    on_event: OnEvent = ignore_event,
    step: str = "",
    total: int = 0,
    group_bytes: int = GROUP_BYTES,
    is_enough: Callable[..., bool] = lambda *answers: False,
    num_pieces: int = 1,
) -> list[Answer]:
    """Return the answers of `rank` to all questions, joined, the sides as its arguments. Empty without questions.

    is_enough: whether the answers of the users so far suffice, checked after each group; its arguments are the sides' answers.
    num_pieces: of the items, for a group; `rank` calls its argument on_piece after each.
    """
    answers: list[Answer] = []
    num_users, done = 0, 0.0

    def on_piece() -> None:
        nonlocal done
        done += num_users / num_pieces
        log_progress(on_event, step, round(done), total, "users")

    for sides in join_sides(questions, group_bytes):
        num_users = len(sides[0].items)
        found = rank(*sides, on_piece=on_piece)
        answers = [one.join(other) for one, other in zip(answers, found, strict=True)] if answers else list(found)
        if is_enough(*answers):
            break
    return answers


def find_users(ids: pa.ChunkedArray, among: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the row of each user id in another column of ids; -1 if it is missing or null."""
    rows = pc.index_in(ids, value_set=among, skip_nulls=True)
    return rows.fill_null(-1).to_numpy().astype(np.int64)


def rank_choosing(corpus: Corpus, generation: Generation) -> NDArray[np.float64]:
    """Return the ranks of the items of the users by whom settings are chosen, float64[m]."""
    scores = score_of(generation, corpus.count_training_tokens())
    asked = ((question,) for question, _ in questions(corpus, BothParts(generation, corpus), by_choosing=True))
    return rank_all(asked, lambda question, **report: (rank_held_out(question, scores),))[0].ranks


def check_memory(corpus: Corpus, scores: Scores, vector_bytes: int, memory_bytes: int) -> None:
    """Raise ResourceError if ranking the held-out users does not fit the budget."""
    num_users, held_bytes = corpus.num_evaluated, private_bytes()
    items_bytes = corpus.num_items * POPULARITY_BYTES_PER_ITEM + scores.piece_bytes
    users_bytes = min(num_users * vector_bytes, 3 * GROUP_BYTES) + 6 * min(BATCH_SCORES, num_users * corpus.num_items)
    if held_bytes + items_bytes + users_bytes > memory_bytes:
        raise ResourceError(
            f"ranking {corpus.num_items:,} items in {scores.num_pieces} pieces needs {size(items_bytes)}, their scores for "
            f"{num_users:,} held-out users {size(users_bytes)} and the process {size(held_bytes)}, but the budget is "
            f"{size(memory_bytes)}: raise --host-memory, or set evaluate.max_users to 0"
        )


def evaluate(
    corpus: Corpus, generation: Generation, on_event: OnEvent = ignore_event, memory_bytes: int = 4 * 10**9
) -> dict[str, Any]:
    """Return the quality on the held-out users and that of popularity: `num_users` and `metrics`.

    Returns the earlier measurement if the held-out users were fitted again since: then the record of that step was lost.
    Raises ResourceError if the budget does not suffice.
    """
    if generation.has_seen_held_out:
        return generation.manifest["evaluation"]
    if not corpus.num_evaluated:
        return {"num_users": 0, "metrics": {}}
    counts = corpus.count_training_tokens()
    scores = score_of(generation, counts)
    check_memory(corpus, scores, 4 * generation.vector_size, memory_bytes)
    model, popularity = rank_all(
        ((question,) for question, _ in questions(corpus, BothParts(generation, corpus))),
        lambda question, **report: (rank_held_out(question, scores, **report), rank_by_popularity(question, counts)),
        on_event,
        "evaluate",
        corpus.num_evaluated,
        num_pieces=scores.num_pieces,
    )
    metrics = measure(model, corpus.num_items)
    metrics |= {f"popularity_{name}": value for name, value in measure(popularity, corpus.num_items).items()}
    return {"num_users": len(model.ranks), "metrics": metrics}


def measure_loss(
    corpus: Corpus, generation: Generation, export_dir: Path, threads: int, on_event: OnEvent = ignore_event
) -> dict[str, float]:
    """Measure the loss by noise, a projection or a smaller dtype: `export_hit_at_10`, with the vectors as stored in `export_dir`,
    and `export_hit_at_10_loss`, the difference to the full vectors. Empty for other exports and if no user was held out.

    Before the export the held-out users were fitted again on all their events, including the held-out item. So this function
    infers them from the events that training had seen, and ranks them twice.
    """
    release, num_users = open_folder(export_dir), corpus.num_evaluated
    manifest = release.manifest
    if "storage" not in manifest or not num_users:
        return {}
    projection = read_projection(release.path(PROJECTION_FILE)) if "projection" in manifest else None
    frozen = FrozenItems(generation, corpus.count_training_tokens(), threads)
    in_full = score_of(generation, frozen.blocks.counts)
    as_stored = score_of(generation, frozen.blocks.counts, partial(project, projection=projection))

    def rank(question: Question, **report: Any) -> tuple[Answer, ...]:
        noisy = add_noise(
            question.vectors, generation, manifest["storage"]["noise"], b"evaluation", map(bytes, question.vectors)
        )
        stored = _store(project(noisy, projection), manifest["storage"]["dtype"])
        sides = (question, in_full), (replace(question, vectors=stored), as_stored)
        return tuple(rank_held_out(*side, **report) for side in sides)

    fitted = infer_whole(frozen, questions(corpus, None), on_event=on_event)
    asked = ((replace(one, vectors=found),) for one, found in fitted)
    answers = rank_all(asked, rank, on_event, "loss", num_users, num_pieces=2 * in_full.num_pieces)
    full, stored = (float((one.ranks <= 10).mean()) for one in answers)
    return {"export_hit_at_10": stored, "export_hit_at_10_loss": full - stored}


def _store(vectors: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """Return the vectors as they are after storing and reading."""
    return vectors if dtype == "float32" else decode_vectors(pa.table(encode_vectors(vectors, dtype)))
