"""Challenger and champion before the same questions: what users opened next that neither release has seen.

Asked are the challenger's held-out users, for an item that both know and that is not among what the champion has seen of the
user. Both rank the items that both know, without those that either has seen of the user; so it does not matter whether their
spaces, vectors or item numbers are the same. Items are matched by 64-bit hashes of their urls.

The champion answers for the user as the challenger knows him: a vector is fitted to its items from the same history. Else the
newer release would win by knowing more of the day, however bad its training was: on made-up logs by 70 % of hit@10, on entree
by several times. Where only an export is left of the champion, its vectors are taken as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from tasks.corpus.cleaning import Tokens
from tasks.corpus.token_pass import find_changed
from tasks.evaluation.evaluate import (
    Answer,
    Question,
    check_memory,
    evaluate,
    group_questions,
    merge_questions,
    rank_held_out,
)
from tasks.evaluation.ranker import Ranker, open_side, side_of
from tasks.evaluation.scores import Piece, Scores
from tasks.root.run import Root
from trainer.events import OnEvent, ignore_event
from trainer.store.generation import open_generation
from trainer.store.tokens import Corpus, Histories, open_corpus
from trainer.system.files import replace_file
from trainer.training.infer import infer_parts, take_histories

Pair = tuple[Question, Question]


@dataclass(frozen=True)
class SharedItems:
    """How the items of two releases, of V and W items, go together: item i of the first is item to_second[i] of the second,
    and back; -1 for none. int64[V], int64[W].
    """

    to_second: NDArray[np.int64]
    to_first: NDArray[np.int64]

    @property
    def num_items(self) -> int:
        return int((self.to_second >= 0).sum())


@dataclass(frozen=True)
class SharedScores:
    """Scores of which only the items that both releases know count, is_shared bool[V]; the others rank below all."""

    scores: Scores
    is_shared: NDArray[np.bool_]

    @property
    def num_pieces(self) -> int:
        return self.scores.num_pieces

    @property
    def piece_items(self) -> int:
        return self.scores.piece_items

    @property
    def piece_bytes(self) -> int:
        return self.scores.piece_bytes

    def pieces(self) -> Iterator[Piece]:
        for piece in self.scores.pieces():
            others = torch.from_numpy(np.flatnonzero(~self.is_shared[piece.items]))
            yield Piece(piece.items, partial(_hide, piece, others))


def _hide(piece: Piece, others: torch.Tensor, users: NDArray[np.float32]) -> torch.Tensor:
    return piece.score(users).index_fill_(1, others, -torch.inf)


def evaluate_and_compare(
    root: Root, corpus_dir: Path, champion: str | None, name: str, memory_bytes: int, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """The story's "evaluate": the quality of the store's generation, and how it compares with the champion's.

    `name`: of the file with the ranks, within the root.
    """
    corpus, generation = open_corpus(corpus_dir), open_generation(root.store)
    evaluation = evaluate(corpus, generation, on_event, memory_bytes)
    if generation.has_seen_held_out:  # it was evaluated before
        return evaluation
    challenger = side_of(corpus, generation)
    return evaluation | {"comparison": compare_with_champion(root, champion, challenger, name, memory_bytes, on_event)}


def compare_with_champion(
    root: Root, champion: str | None, challenger: Ranker, name: str, memory_bytes: int, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """The evaluation's "comparison": with which release (None: there is no champion), and what `compare_releases` returns.

    `name`: of the file with the ranks, within the root.
    """
    if champion is None:
        return {"champion": None, "reason": "there is no champion"}
    theirs = open_side(root, champion)
    if isinstance(theirs, str):
        return {"champion": champion, "reason": theirs}
    told = compare_releases(challenger, theirs, root.path / name, memory_bytes, on_event)
    return {"champion": champion} | told | ({} if "reason" in told else {"ranks": name})


def compare_releases(
    challenger: Ranker, champion: Ranker, ranks_path: Path, memory_bytes: int, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """How both sides rank, and `reason` where they cannot be compared; the ranks go to `ranks_path`.

    Written there: float32[2, m], the challenger's and the champion's ranks of the same m users, who are not named.
    Raises ResourceError when the budget does not suffice.
    """
    mine, theirs = challenger.corpus.num_partitions, champion.corpus.num_partitions
    if mine != theirs:
        return {"reason": f"the champion has {theirs:,} micro-partitions, and tonight there are {mine:,}"}
    shared = match_items(challenger.corpus.vocabulary, champion.corpus.vocabulary)
    vector_bytes = 4 * (challenger.vector_size + champion.vector_size)
    held_bytes = champion.frozen.num_bytes if champion.frozen else 0
    check_memory(challenger.corpus, champion.scores, vector_bytes, memory_bytes - held_bytes)
    sides = (
        SharedScores(challenger.scores, shared.to_second >= 0),
        SharedScores(champion.scores, shared.to_first >= 0),
    )
    answers: list[tuple[Answer, Answer]] = []
    for pair in join_pairs(ask_both(challenger, champion, shared)):
        answers.append((rank_held_out(pair[0], sides[0]), rank_held_out(pair[1], sides[1])))
        done, total = sum(len(mine.ranks) for mine, _ in answers), challenger.corpus.manifest["num_held_out"]
        on_event("progress", {"step": "compare", "done": done, "total": total, "unit": "users"})
    if not answers:
        return {"reason": "no user had an item held out that the champion knows and has not seen of the user"}
    ranks = np.array([np.concatenate([pair[side].ranks for pair in answers]) for side in (0, 1)], np.float32)
    with replace_file(ranks_path) as temporary, open(temporary, "wb") as file:
        np.save(file, ranks, allow_pickle=False)
    coverage = [
        count_recommended([pair[side].top for pair in answers], sides[side].is_shared) / shared.num_items
        for side in (0, 1)
    ]
    return {
        "num_users": ranks.shape[1], "num_items": shared.num_items, "is_fitted": champion.frozen is not None,
        "coverage": coverage[0], "champion_coverage": coverage[1],
    }  # fmt: skip


def count_recommended(tops: list[NDArray[np.int64]], is_shared: NDArray[np.bool_]) -> int:
    """How many of the shared items stand among anyone's first, int64[m, TOP] each."""
    found = np.unique(np.concatenate([np.unique(top) for top in tops]))
    return int(is_shared[found].sum())


def match_items(first: Path, second: Path) -> SharedItems:
    """Which items of two vocabularies have the same url."""
    one, other = _hash_urls(first), _hash_urls(second)
    _, first_ix, second_ix = np.intersect1d(one, other, assume_unique=False, return_indices=True)
    to_second, to_first = np.full(len(one), -1, np.int64), np.full(len(other), -1, np.int64)
    to_second[first_ix], to_first[second_ix] = second_ix, first_ix
    return SharedItems(to_second, to_first)


def _hash_urls(vocabulary: Path) -> NDArray[np.uint64]:
    with pq.ParquetFile(vocabulary) as file:
        hashes = [
            pl.Series(values=batch.column("url"), dtype=pl.String).hash().to_numpy()
            for batch in file.iter_batches(columns=["url"])
        ]
    return np.concatenate(hashes) if hashes else np.empty(0, np.uint64)


@dataclass(frozen=True)
class SharedQuestion:
    """A micro-partition's question to the challenger; and to the champion, in its item numbers, but for the users' vectors.

    their_rows int64[m]: the users' rows in the champion's corpus, -1 for none; histories: what the challenger has seen of them.
    """

    mine: Question
    their_items: NDArray[np.int64]
    their_seen_items: NDArray[np.int64]
    their_rows: NDArray[np.int64]
    histories: Histories

    def pair_with(self, vectors: NDArray[np.float32]) -> Pair:
        """Both questions, given the champion's vectors of the users, float32[m, D]."""
        return self.mine, Question(vectors, self.their_items, self.mine.seen_rows, self.their_seen_items)


def ask_both(challenger: Ranker, champion: Ranker, shared: SharedItems) -> Iterator[Pair]:
    """The questions of each micro-partition that has some, to the challenger and to the champion in its own item numbers."""
    parts = (_ask(challenger, champion, shared, part) for part in range(challenger.corpus.num_partitions))
    asked = ((part, one) for part, one in enumerate(parts) if len(one.their_items))
    if champion.frozen:
        for one, fitted in infer_parts(champion.frozen, ((one, one.histories) for _, one in asked)):
            yield one.pair_with(fitted.vectors)
    else:
        for part, one in asked:
            yield one.pair_with(champion.users.read_users(part)[one.their_rows])


def _ask(challenger: Ranker, champion: Ranker, shared: SharedItems, partition: int) -> SharedQuestion:
    mine, num_items = challenger.corpus.read(partition), champion.corpus.num_items
    rows = np.flatnonzero(mine.is_held_out)
    items = shared.to_second[mine.held_out_items()]  # the champion's numbers from here on
    ids = challenger.corpus.read_ids(partition).take(pa.array(rows))
    their_rows = find_users(ids, champion.corpus.read_ids(partition))
    read = champion.corpus.read(partition)
    their_tokens = Tokens(read.offsets, read.tokens)
    spans = take_histories(mine, rows, mine.ends[rows])
    known = Tokens(spans.offsets, shared.to_second[spans.tokens].astype(np.int32))
    seen_of_it = _pair_up(their_tokens.take(their_rows), num_items)
    is_new = ~np.isin(np.arange(len(items)) * num_items + items, seen_of_it)
    has_history = np.diff(np.concatenate(([0], np.cumsum(known.tokens >= 0)))[known.offsets]) > 0
    is_there = has_history if champion.frozen else their_rows >= 0
    places = np.flatnonzero((items >= 0) & is_new & is_there)
    known, their_rows, items, rows = known.take(places), their_rows[places], items[places], rows[places]
    seen = np.union1d(_pair_up(their_tokens.take(their_rows), num_items), _pair_up(known, num_items))
    seen_rows, seen_items = np.divmod(seen, num_items)
    is_shared = shared.to_first[seen_items] >= 0
    seen_rows, seen_items = seen_rows[is_shared], seen_items[is_shared]
    vectors = challenger.users.read_users(partition)[rows]
    question = Question(vectors, shared.to_first[items], seen_rows, shared.to_first[seen_items])
    return SharedQuestion(question, items, seen_items, their_rows, _as_histories(known, mine.hashes[rows]))


def _as_histories(tokens: Tokens, hashes: NDArray[np.uint64]) -> Histories:
    """Histories of the tokens that are items, all of which are seen."""
    is_item = tokens.tokens >= 0
    offsets = np.concatenate(([0], np.cumsum(is_item)))[tokens.offsets]
    return Histories(hashes, tokens.tokens[is_item], offsets, offsets[1:], np.zeros(len(hashes), dtype=bool))


def find_users(ids: pa.ChunkedArray, among: pa.ChunkedArray) -> NDArray[np.int64]:
    """The row of each user id in another column of ids, -1 where it is not there. A null is nobody."""
    rows = pc.index_in(ids, value_set=among, skip_nulls=True)
    return rows.fill_null(-1).to_numpy().astype(np.int64)


def match_unchanged(mine: Corpus, theirs: Corpus, partition: int, to_theirs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row in the other corpus of each user of a micro-partition who has the same tokens there, -1 for others, int64[n].

    to_theirs int64[V]: items' numbers there. Both have as many micro-partitions.
    """
    places = find_users(mine.read_ids(partition), theirs.read_ids(partition))
    rows = np.flatnonzero(places >= 0)
    now, before = mine.read(partition), theirs.read(partition)
    own = Tokens(now.offsets, now.tokens).take(rows)
    is_changed = find_changed(
        Tokens(before.offsets, before.tokens).take(places[rows]),
        Tokens(own.offsets, to_theirs[own.tokens].astype(np.int32)),
    )
    places[rows[is_changed]] = -1
    return places


def _pair_up(tokens: Tokens, num_items: int) -> NDArray[np.int64]:
    """row * num_items + item of each token, int64, sorted, each once; tokens below 0 are nothing."""
    rows = np.repeat(np.arange(len(tokens.offsets) - 1), np.diff(tokens.offsets))
    is_item = tokens.tokens >= 0
    return np.unique(rows[is_item] * num_items + tokens.tokens[is_item])


def join_pairs(pairs: Iterator[Pair]) -> Iterator[Pair]:
    """The same users in larger questions, so that items are read more seldom."""
    for group in group_questions(pairs, lambda pair: sum(one.vectors.nbytes for one in pair)):
        yield merge_questions([mine for mine, _ in group]), merge_questions([theirs for _, theirs in group])
