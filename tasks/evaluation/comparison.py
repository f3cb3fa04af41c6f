"""Compares how challenger and champion rank the same held-out items, which neither release was trained on.

The users are the challenger's held-out users whose held-out item is in both vocabularies and not in the champion's history of the
user. Both releases rank the items in both vocabularies, except those in either history of the user. So the releases may differ
in space, vectors and item numbers. Items are matched by 64-bit hashes of their urls.

The champion's user vectors are fitted to its items from the challenger's histories. Otherwise the newer release would win by
knowing more of the day, even if badly trained: by 70 % of hit@10 on made-up logs, several times on entree.

Users are drawn until the verdicts on hit@10 and MRR are certain, as most nights are far from the limit: see `is_decided`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.tasks.corpus.cleaning import keep_in_vocabulary
from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST
from surf2vec.tasks.corpus.token_pass import find_changed, find_known
from surf2vec.tasks.evaluation.evaluate import (
    Answer,
    Question,
    check_memory,
    evaluate,
    find_users,
    rank_all,
    rank_held_out,
)
from surf2vec.tasks.evaluation.measures import hits, measure_gain, reciprocals
from surf2vec.tasks.evaluation.returns import measure_returns
from surf2vec.tasks.evaluation.scores import Scores, score_of
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, open_folder
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.events import OnEvent, ignore_event
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.tokens import Corpus, Histories, Tokens, open_corpus, whole_window
from surf2vec.trainer.store.writer import find_pinned
from surf2vec.trainer.system.files import replace_file
from surf2vec.trainer.training.infer import FrozenItems, infer_whole, take_histories
from surf2vec.trainer.training.vectors import BothParts

CERTAIN = 4.0
"""A verdict is certain if its figure is so many standard errors from the limit."""
DRAWN_USERS = 2_000
"""So many users, and as many again, are ranked before each check of whether they suffice; micro-partitions are not divided."""
Pair = tuple[Question, ...]
"""The questions about the same users, for the challenger and for the champion."""


@dataclass(frozen=True)
class Ranker:
    """Ranks items for users. `users` reads their vectors, one micro-partition of `corpus` at a time.

    frozen: the items, to which users' vectors are fitted; None to use the vectors of `users`.
    """

    corpus: Corpus
    users: BothParts
    scores: Scores
    vector_size: int
    frozen: FrozenItems | None = None


def side_of(corpus: Corpus, generation: Generation) -> Ranker:
    """Return the ranker of a generation and the corpus that it was trained on."""
    has_vectors = generation.has_item_vectors  # then only the length of counts is used
    counts = np.zeros(corpus.num_items, np.int64) if has_vectors else corpus.count_training_tokens()
    return Ranker(corpus, BothParts(generation, corpus), score_of(generation, counts), generation.vector_size)


def open_side(root: Root, release: str) -> Ranker | str:
    """Return the ranker of a pinned release, or a text that says what is missing. Raises DamageError for altered files."""
    generation = find_pinned(root.store, release)
    if generation is not None:
        corpus_dir = root.corpus(generation.manifest["window_id"])
        if (corpus_dir / CORPUS_MANIFEST).exists():
            corpus = open_corpus(corpus_dir)
            frozen = FrozenItems(generation, corpus.count_training_tokens(), generation.config.threads)
            return replace(side_of(corpus, generation), frozen=frozen)
    return f"the corpus or the pinned generation of release {release} is gone"


def evaluate_and_compare(
    root: Root,
    corpus_dir: Path,
    champion: str | None,
    name: str,
    drop: float,
    memory_bytes: int,
    on_event: OnEvent = ignore_event,
) -> dict[str, Any]:
    """Return the record of step "evaluate": the quality of the store's generation, and its comparison with the champion.

    "comparison" has the champion (None if there is none) and the result of `compare_releases`, "returns" that of
    `measure_returns`. `name`: the path of the file with the ranks, within the root; drop: see `compare_releases`.
    """
    corpus, generation = open_corpus(corpus_dir), open_generation(root.store)
    evaluation = evaluate(corpus, generation, on_event, memory_bytes)
    if generation.has_seen_held_out:  # it was evaluated before them
        return evaluation
    if champion is None:
        return evaluation | {"comparison": {"champion": None, "reason": "there is no champion"}}
    other = open_side(root, champion)
    if isinstance(other, str):
        return evaluation | {"comparison": {"champion": champion, "reason": other}}
    result = compare_releases(side_of(corpus, generation), other, root.path / name, drop, memory_bytes, on_event)
    ranks = {} if "reason" in result else {"ranks": name}
    has_export = (root.export(champion) / EXPORT_MANIFEST).exists()
    # The corpus of changed users has no activity.
    whole = open_corpus(root.corpus(whole_window(corpus.manifest["window_id"])))
    returns = measure_returns(whole, other.corpus, open_folder(root.export(champion))) if has_export else None
    return evaluation | {"comparison": {"champion": champion} | result | ranks, "returns": returns}


def compare_releases(
    challenger: Ranker,
    champion: Ranker,
    ranks_path: Path,
    drop: float,
    memory_bytes: int,
    on_event: OnEvent = ignore_event,
) -> dict[str, Any]:
    """Write the ranks of both releases to `ranks_path`; return the figures of the comparison, or `reason` if it is impossible.

    The file has float32[2, m], the challenger's and the champion's ranks for the same m users, without their ids: as many users
    as decide whether the challenger's hit@10 and MRR are lower than the champion's by the share `drop`, or all.
    Raises ResourceError if the budget does not suffice.
    """
    now, before = challenger.corpus.num_partitions, champion.corpus.num_partitions
    if now != before:
        return {"reason": f"the champion has {before:,} micro-partitions, and tonight there are {now:,}"}
    matched = match_items(challenger.corpus.vocabulary, champion.corpus.vocabulary)
    is_shared = [numbers >= 0 for numbers in matched]
    vector_bytes = 4 * (challenger.vector_size + champion.vector_size)
    held_bytes = champion.frozen.num_bytes if champion.frozen else 0
    check_memory(challenger.corpus, champion.scores, vector_bytes, memory_bytes - held_bytes)
    scores = challenger.scores, champion.scores
    answers = rank_all(
        make_pairs(challenger, champion, *matched, on_event),
        lambda *pair, **report: tuple(
            rank_held_out(*side, **report) for side in zip(pair, scores, is_shared, strict=True)
        ),
        on_event,
        "compare",
        challenger.corpus.num_evaluated,
        DRAWN_USERS * vector_bytes,
        partial(is_decided, drop),
        sum(side.num_pieces for side in scores),
    )
    if not answers:
        return {"reason": "no user had an item held out that the champion knows and has not seen of the user"}
    ranks = np.array([answer.ranks for answer in answers], np.float32)
    with replace_file(ranks_path) as temporary, open(temporary, "wb") as file:
        np.save(file, ranks, allow_pickle=False)
    num_items = int(is_shared[0].sum())
    coverage = [
        float(known[np.unique(answer.top)].sum() / num_items) for answer, known in zip(answers, is_shared, strict=True)
    ]
    return {
        "num_users": ranks.shape[1],
        "num_items": num_items,
        "coverage": coverage[0],
        "champion_coverage": coverage[1],
    }


def is_decided(drop: float, challenger: Answer, champion: Answer) -> bool:
    """Return whether the ranks of more users would hardly change whether hit@10 or MRR is lower by the share `drop`.

    This is the sign of the mean of d = challenger's figure - (1 - drop) * champion's over m users. It is certain if the mean is
    more than CERTAIN standard errors, sd(d) / sqrt(m), from zero: beyond the gate's interval of 95 %.
    """
    sides = challenger.ranks, champion.ranks
    figures = [hits(ranks, 10) for ranks in sides], [reciprocals(ranks) for ranks in sides]
    gains = [measure_gain(ours - (1 - drop) * theirs) for ours, theirs in figures]
    return all(abs(gain) > CERTAIN * error for gain, error in gains)


def match_items(first: Path, second: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Match the items of two vocabularies, of V and W items, by url.

    Returns the number in the second of each item of the first, int64[V], and the reverse, int64[W]; -1 for no match.
    """
    url = pl.col("url").hash()
    one, other = (
        pl.scan_parquet(path).select(url).collect(engine="streaming")["url"].to_numpy() for path in (first, second)
    )
    _, first_ix, second_ix = np.intersect1d(one, other, return_indices=True)
    to_second, to_first = np.full(len(one), -1, np.int64), np.full(len(other), -1, np.int64)
    to_second[first_ix], to_first[second_ix] = second_ix, first_ix
    return to_second, to_first


def make_pairs(
    challenger: Ranker,
    champion: Ranker,
    to_champion: NDArray[np.int64],
    to_challenger: NDArray[np.int64],
    on_event: OnEvent = ignore_event,
) -> Iterator[Pair]:
    """Yield the pairs of each micro-partition that has some; to_champion, to_challenger: the result of `match_items`."""
    pairs: Iterable[tuple[Pair, Histories]] = (
        _make_pair(challenger, champion, to_champion, to_challenger, part)
        for part in range(challenger.corpus.num_partitions)
    )
    pairs = ((pair, histories) for pair, histories in pairs if histories.num_users)
    if champion.frozen is None:
        yield from (pair for pair, _ in pairs)
    else:
        for (question, champion_question), vectors in infer_whole(champion.frozen, pairs, on_event=on_event):
            yield question, replace(champion_question, vectors=vectors)


def _make_pair(
    challenger: Ranker, champion: Ranker, to_champion: NDArray[np.int64], to_challenger: NDArray[np.int64], part: int
) -> tuple[Pair, Histories]:
    """Return the questions of a micro-partition, and the challenger's histories of its users in the champion's item numbers.

    If the champion's vectors are to be fitted, its question has the challenger's vectors as placeholders.
    """
    histories, num_items = challenger.corpus.read(part), champion.corpus.num_items
    before = champion.corpus.read(part)
    rows = np.flatnonzero(histories.is_evaluated)
    items = to_champion[histories.held_out_items()]
    ids = challenger.corpus.read_ids(part).take(pa.array(rows))
    champion_rows = find_users(ids, champion.corpus.read_ids(part))
    champion_tokens = Tokens(before.offsets, before.tokens)
    spans = take_histories(histories, rows, histories.ends[rows])
    known = keep_in_vocabulary(np.diff(spans.offsets), to_champion[spans.tokens].astype(np.int32))
    is_new = ~find_known(champion_tokens, champion_rows, items.astype(np.int32))
    has_vector = np.diff(known.offsets) > 0 if champion.frozen else champion_rows >= 0
    places = np.flatnonzero((items >= 0) & is_new & has_vector)
    known, champion_rows, items, rows = known.take(places), champion_rows[places], items[places], rows[places]
    seen = np.union1d(_pair_up(champion_tokens.take(champion_rows), num_items), _pair_up(known, num_items))
    seen_rows, seen_items = np.divmod(seen, num_items)
    is_shared = to_challenger[seen_items] >= 0
    seen_rows, seen_items = seen_rows[is_shared], seen_items[is_shared]
    vectors = challenger.users.read_users(part)[rows]
    champion_vectors = vectors if champion.frozen else champion.users.read_users(part)[champion_rows]
    pair = (
        Question(vectors, to_challenger[items], seen_rows, to_challenger[seen_items]),
        Question(champion_vectors, items, seen_rows, seen_items),
    )
    is_held_out = np.zeros(len(rows), dtype=bool)
    return pair, Histories(histories.hashes[rows], known.tokens, known.offsets, known.offsets[1:], is_held_out)


def match_unchanged(
    one: tuple[Corpus, int], other: tuple[Corpus, int], to_other: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the row in `other` of each user of `one` with the same tokens in both, -1 for others, int64[n].

    one, other: a corpus and one of its micro-partitions; to_other int64[V]: the items' numbers in the other corpus.
    """
    (corpus, partition), (other_corpus, other_partition) = one, other
    places = find_users(corpus.read_ids(partition), other_corpus.read_ids(other_partition))
    rows = np.flatnonzero(places >= 0)
    now, before = corpus.read(partition), other_corpus.read(other_partition)
    own = Tokens(now.offsets, now.tokens).take(rows)
    is_changed = find_changed(
        Tokens(before.offsets, before.tokens).take(places[rows]),
        Tokens(own.offsets, to_other[own.tokens].astype(np.int32)),
    )
    places[rows[is_changed]] = -1
    return places


def _pair_up(tokens: Tokens, num_items: int) -> NDArray[np.int64]:
    """Return the distinct values of row * num_items + item over all tokens, int64, sorted."""
    rows = np.repeat(np.arange(len(tokens.offsets) - 1), np.diff(tokens.offsets))
    return np.unique(rows * num_items + tokens.tokens)
