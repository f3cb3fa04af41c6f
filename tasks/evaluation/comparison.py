"""Challenger and champion before the same questions: what users opened next that neither release has seen.

Asked are the challenger's held-out users, for an item that both know and that is not among what the champion has seen of the
user. Both rank the items that both know, without those that either has seen of the user; so it does not matter whether their
spaces, vectors or item numbers are the same. Items are matched by 64-bit hashes of their urls.

The champion answers for the user as the challenger knows him: a vector is fitted to its items from the same history. Else the
newer release would win by knowing more of the day, however bad its training was: on made-up logs by 70 % of hit@10, on entree
by several times. Where only an export is left of the champion, its vectors are taken as they are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.corpus.cleaning import Tokens, keep_in_vocabulary
from tasks.corpus.folder import CORPUS_MANIFEST
from tasks.corpus.token_pass import find_changed, find_known
from tasks.evaluation.evaluate import Answer, Question, UserReader, check_memory, evaluate, join_sides, rank_held_out
from tasks.evaluation.scores import Scores, VectorScores, score_of
from tasks.export.export import EXPORT_MANIFEST, path_of, read_part_of
from tasks.export.vector_files import ITEM_ROW_GROUP_ROWS, decode_vectors
from tasks.root.run import Root
from trainer.events import OnEvent, ignore_event
from trainer.store.generation import Generation, open_generation
from trainer.store.tokens import Corpus, Histories, open_corpus
from trainer.store.writer import find_pinned
from trainer.system.files import read_json, replace_file
from trainer.training.infer import FrozenItems, freeze_items, infer_parts, take_histories

Pair = tuple[Question, ...]
"""The same users' questions to the challenger and to the champion."""


@dataclass(frozen=True)
class Ranker:
    """What ranks items for users: `users` has their vectors, a micro-partition of `corpus` at a time.

    frozen: its items, to fit vectors to; None where users' vectors are to be taken as they are.
    """

    corpus: Corpus
    users: UserReader
    scores: Scores
    vector_size: int
    frozen: FrozenItems | None = None


def side_of(corpus: Corpus, generation: Generation) -> Ranker:
    """A generation and the corpus that it was trained on."""
    has_vectors = generation.has_item_vectors  # then only the number of counts is looked at
    counts = np.zeros(corpus.num_items, np.int64) if has_vectors else corpus.count_training_tokens()
    return Ranker(corpus, generation, score_of(generation, counts), generation.vector_size)


def open_side(root: Root, release: str) -> Ranker | str:
    """A release that was registered, or in words what of it is gone. Raises DamageError for what is there and altered."""
    generation = find_pinned(root.store, release)
    if generation is not None:
        corpus_dir = root.corpus(generation.manifest["window_id"])
        if (corpus_dir / CORPUS_MANIFEST).exists():
            corpus = open_corpus(corpus_dir)
            counts = corpus.count_training_tokens()
            frozen = freeze_items(generation, counts, generation.config.threads)
            return Ranker(corpus, generation, score_of(generation, counts), generation.vector_size, frozen)
    export_dir = root.export(release)
    if not (export_dir / EXPORT_MANIFEST).exists():
        return f"of release {release} neither its pinned generation with its corpus nor its export is left"
    manifest = read_json(export_dir / EXPORT_MANIFEST)
    corpus_dir = root.corpus(manifest["created_from"]["window_id"])
    if not (corpus_dir / CORPUS_MANIFEST).exists():
        return f"the corpus of release {release} is gone, so nobody knows what it has seen"
    if not manifest["item_files"]:
        return f"the pinned generation of release {release} is gone, and a tree's export has no items to rank"
    corpus = open_corpus(corpus_dir)
    exported = Exported(export_dir, manifest, corpus)
    scores = VectorScores(exported.read_items, corpus.num_items, exported.vector_size)
    return Ranker(corpus, exported, scores, exported.vector_size)


@dataclass(frozen=True)
class Exported:
    """The vectors of an export, as readers of a generation get them."""

    export_dir: Path
    manifest: dict[str, Any]
    corpus: Corpus

    @property
    def vector_size(self) -> int:
        return self.manifest["vector_size"]

    def read_users(self, partition: int, /) -> NDArray[np.float32]:
        """float32[n, D] by the rows of the corpus; zeros for a row that the export has not."""
        vectors = np.zeros((int(self.corpus.users[partition]), self.vector_size), np.float32)
        table = read_part_of(self.export_dir, self.manifest, partition)
        if table is not None:
            rows = pc.index_in(table["user_id"], value_set=self.corpus.read_ids(partition)).to_numpy()
            vectors[rows] = decode_vectors(table)
        return vectors

    def read_items(self, start: int, stop: int) -> NDArray[np.float32]:
        """The vectors of items `start` to `stop`, float32[n, D]; whole row groups are read."""
        first, last = start // ITEM_ROW_GROUP_ROWS, -(-stop // ITEM_ROW_GROUP_ROWS)
        table = self._items.read_row_groups(range(first, last), columns=["vector"])
        offset = first * ITEM_ROW_GROUP_ROWS
        return decode_vectors(table)[start - offset : stop - offset].copy()

    @cached_property
    def _items(self) -> pq.ParquetFile:
        return pq.ParquetFile(path_of(self.export_dir, self.manifest, "item_vectors/part-00000.parquet"))


def evaluate_and_compare(
    root: Root, corpus_dir: Path, champion: str | None, name: str, memory_bytes: int, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """The story's "evaluate": the quality of the store's generation, and how it compares with the champion's.

    "comparison" has the champion, None where there is none, and what `compare_releases` returns. `name`: of the file with the
    ranks, within the root.
    """
    corpus, generation = open_corpus(corpus_dir), open_generation(root.store)
    evaluation = evaluate(corpus, generation, on_event, memory_bytes)
    if generation.has_seen_held_out:  # it was evaluated before
        return evaluation
    theirs = open_side(root, champion) if champion else "there is no champion"
    if isinstance(theirs, str):
        return evaluation | {"comparison": {"champion": champion, "reason": theirs}}
    told = compare_releases(side_of(corpus, generation), theirs, root.path / name, memory_bytes, on_event)
    return evaluation | {"comparison": {"champion": champion} | told | ({} if "reason" in told else {"ranks": name})}


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
    matched = match_items(challenger.corpus.vocabulary, champion.corpus.vocabulary)
    is_shared = [numbers >= 0 for numbers in matched]
    vector_bytes = 4 * (challenger.vector_size + champion.vector_size)
    held_bytes = champion.frozen.num_bytes if champion.frozen else 0
    check_memory(challenger.corpus, champion.scores, vector_bytes, memory_bytes - held_bytes)
    scores = challenger.scores, champion.scores
    answers: list[list[Answer]] = []
    done, total = 0, challenger.corpus.manifest["num_held_out"]
    for pair in join_sides(ask_both(challenger, champion, *matched)):
        answers.append([rank_held_out(*asked) for asked in zip(pair, scores, is_shared, strict=True)])
        done += len(pair[0].items)
        on_event("progress", {"step": "compare", "done": done, "total": total, "unit": "users"})
    if not answers:
        return {"reason": "no user had an item held out that the champion knows and has not seen of the user"}
    ranks = np.array([np.concatenate([one.ranks for one in side]) for side in zip(*answers, strict=True)], np.float32)
    with replace_file(ranks_path) as temporary, open(temporary, "wb") as file:
        np.save(file, ranks, allow_pickle=False)
    num_items = int(is_shared[0].sum())
    recommended = [
        np.unique(np.concatenate([np.unique(one.top) for one in side])) for side in zip(*answers, strict=True)
    ]
    coverage = [float(known[items].sum() / num_items) for items, known in zip(recommended, is_shared, strict=True)]
    return {
        "num_users": ranks.shape[1], "num_items": num_items, "is_fitted": champion.frozen is not None,
        "coverage": coverage[0], "champion_coverage": coverage[1],
    }  # fmt: skip


def match_items(first: Path, second: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which items of two vocabularies, of V and W items, have the same url.

    Returns of each item of the first its number in the second, int64[V], and back, int64[W]; -1 for none.
    """
    url = pl.col("url").hash()
    one, other = (
        pl.scan_parquet(path).select(url).collect(engine="streaming")["url"].to_numpy() for path in (first, second)
    )
    _, first_ix, second_ix = np.intersect1d(one, other, return_indices=True)
    to_second, to_first = np.full(len(one), -1, np.int64), np.full(len(other), -1, np.int64)
    to_second[first_ix], to_first[second_ix] = second_ix, first_ix
    return to_second, to_first


def ask_both(
    challenger: Ranker, champion: Ranker, to_theirs: NDArray[np.int64], to_mine: NDArray[np.int64]
) -> Iterator[Pair]:
    """The questions of each micro-partition that has some; to_theirs, to_mine: as of `match_items`."""
    asked: Iterable[tuple[Pair, Histories]] = (
        _ask(challenger, champion, to_theirs, to_mine, part) for part in range(challenger.corpus.num_partitions)
    )
    asked = ((pair, histories) for pair, histories in asked if histories.num_users)
    if champion.frozen is None:
        yield from (pair for pair, _ in asked)
    else:
        for (mine, theirs), fitted in infer_parts(champion.frozen, asked):
            yield mine, replace(theirs, vectors=fitted.vectors)


def _ask(
    challenger: Ranker, champion: Ranker, to_theirs: NDArray[np.int64], to_mine: NDArray[np.int64], partition: int
) -> tuple[Pair, Histories]:
    """The questions of a micro-partition, and what the challenger has seen of its users, in the champion's item numbers.

    Vectors that are to be fitted to the champion's items are missing.
    """
    mine, read, num_items = (
        challenger.corpus.read(partition),
        champion.corpus.read(partition),
        champion.corpus.num_items,
    )
    rows = np.flatnonzero(mine.is_held_out)
    items = to_theirs[mine.held_out_items()]
    ids = challenger.corpus.read_ids(partition).take(pa.array(rows))
    their_rows = find_users(ids, champion.corpus.read_ids(partition))
    their_tokens = Tokens(read.offsets, read.tokens)
    spans = take_histories(mine, rows, mine.ends[rows])
    known = keep_in_vocabulary(np.diff(spans.offsets), to_theirs[spans.tokens].astype(np.int32))
    is_new = ~find_known(their_tokens, their_rows, items.astype(np.int32))
    is_there = np.diff(known.offsets) > 0 if champion.frozen else their_rows >= 0
    places = np.flatnonzero((items >= 0) & is_new & is_there)
    known, their_rows, items, rows = known.take(places), their_rows[places], items[places], rows[places]
    seen = np.union1d(_pair_up(their_tokens.take(their_rows), num_items), _pair_up(known, num_items))
    seen_rows, seen_items = np.divmod(seen, num_items)
    is_shared = to_mine[seen_items] >= 0
    seen_rows, seen_items = seen_rows[is_shared], seen_items[is_shared]
    vectors = challenger.users.read_users(partition)[rows]
    their_vectors = vectors if champion.frozen else champion.users.read_users(partition)[their_rows]
    pair = (
        Question(vectors, to_mine[items], seen_rows, to_mine[seen_items]),
        Question(their_vectors, items, seen_rows, seen_items),
    )
    is_held_out = np.zeros(len(rows), dtype=bool)
    return pair, Histories(mine.hashes[rows], known.tokens, known.offsets, known.offsets[1:], is_held_out)


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
    """row * num_items + item of each token, int64, sorted, each once."""
    rows = np.repeat(np.arange(len(tokens.offsets) - 1), np.diff(tokens.offsets))
    return np.unique(rows * num_items + tokens.tokens)
