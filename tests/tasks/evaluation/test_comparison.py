"""Challenger and champion before the same questions: literal histories, and a plain loop as the measure."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.tasks.evaluation import comparison
from surf2vec.tasks.evaluation.comparison import (
    Ranker,
    compare_releases,
    is_decided,
    make_pairs,
    match_items,
    open_side,
)
from surf2vec.tasks.evaluation.evaluate import Answer, find_users
from surf2vec.tasks.evaluation.measures import hits
from surf2vec.tasks.gate.rules import Rule
from surf2vec.tasks.gate.rules import compare as judge
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.tokens import VOCABULARY, Corpus
from surf2vec.trainer.store.writer import pin_generation
from surf2vec.trainer.training.infer import infer_vectors, take_histories
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.vectors import join_parts
from tests.data.corpora import describe_anew, planted_histories, write_corpus
from tests.roots.scores import score_by_vectors

MEMORY_BYTES = 4 * 10**9
DROP = 0.05


def write_side(folder: Path, histories: dict[str, list[int]], urls: list[str], vectors: np.ndarray) -> Ranker:
    """A corpus whose items have these urls, and vectors drawn from it: float32[V, D]; users have the sum of their items'."""
    corpus = write_corpus(folder, histories, partitions=2, num_items=len(urls))
    counts = np.zeros(len(urls), np.int64)
    pq.write_table(pa.table({"item_ix": range(len(urls)), "url": urls, "count": counts}), folder / VOCABULARY)
    corpus = describe_anew(corpus)
    return Ranker(corpus, Summed(corpus, vectors), score_by_vectors(vectors), vectors.shape[1])


class Summed:
    """Users' vectors as the sums of what training saw of them; without items everybody's vector is 1."""

    def __init__(self, corpus: Corpus, items: np.ndarray | None = None) -> None:
        self.corpus, self.items = corpus, items

    def read_users(self, partition: int, /) -> np.ndarray:
        if self.items is None:
            return np.ones((int(self.corpus.users[partition]), 1), np.float32)
        seen = self.corpus.read(partition)
        spans = [seen.tokens[start:end] for start, end in zip(seen.starts, seen.ends, strict=True)]
        return np.array([self.items[span].sum(axis=0) for span in spans], np.float32).reshape(-1, self.items.shape[1])


def read_by_user(side: Ranker) -> dict[str, np.ndarray]:
    parts = range(side.corpus.num_partitions)
    users = [user for part in parts for user in side.corpus.read_ids(part).to_pylist()]
    return dict(zip(users, (vector for part in parts for vector in side.users.read_users(part)), strict=True))


def compare(tmp_path: Path, challenger: Ranker, champion: Ranker) -> tuple[dict, np.ndarray]:
    told = compare_releases(challenger, champion, tmp_path / "ranks.npy", DROP, MEMORY_BYTES)
    path = tmp_path / "ranks.npy"
    return told, np.load(path, allow_pickle=False) if path.exists() else np.zeros((2, 0), np.float32)


def test_literal_questions(tmp_path: Path) -> None:
    """Items are a, b, c, d, e to the challenger, and d, c, b, a, x to the champion; each goes by vectors of its own."""
    tonight = {
        "ann": [0, 1, 2],  # asked for c, which the champion has not seen of ann
        "bob": [0, 1, 2],  # the champion has seen c of bob
        "cid": [0, 4],  # e is unknown to the champion
        "dan": [0, 1, 3],  # the champion does not have dan
    }
    before = {"ann": [3, 4], "bob": [3, 1], "cid": [3, 2]}
    items = np.array([[0.0], [0.0], [1.0], [2.0], [3.0]], np.float32)  # e before d before c
    theirs = np.array([[1.0], [2.0], [0.0], [0.0], [9.0]], np.float32)  # x before c before d
    challenger = write_side(tmp_path / "one", tonight, ["a", "b", "c", "d", "e"], items)
    champion = write_side(tmp_path / "two", before, ["d", "c", "b", "a", "x"], theirs)
    challenger, champion = (Ranker(side.corpus, Summed(side.corpus), side.scores, 1) for side in (challenger, champion))
    told, ranks = compare(tmp_path, challenger, champion)
    # Of c and d, which neither has seen of ann: the challenger puts d first (e does not count), the champion c (x does not).
    assert ranks.tolist() == [[2.0], [1.0]]
    assert told == {"num_users": 1, "num_items": 4, "coverage": 1.0, "champion_coverage": 1.0}


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_ranks_as_a_plain_loop_has_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"/page/{i}" for i in range(12)]
    sides, histories, urls, tables = [], [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("one", "two"):
            known = rng.permutation(names)[: rng.integers(3, 12)].tolist()
            told = {
                f"user-{u}": rng.integers(0, len(known), rng.integers(1, 8)).tolist() for u in rng.permutation(9)[:7]
            }
            vectors = rng.integers(-2, 3, (len(known), 3)).astype(np.float32)  # whole numbers: ties, no rounding
            sides.append(write_side(Path(scratch) / name, told, known, vectors))
            histories.append(told)
            urls.append(known)
            tables.append(vectors)
        _, ranks = compare(Path(scratch), sides[0], sides[1])
        users = [read_by_user(side) for side in sides]
    shared = set(urls[0]) & set(urls[1])
    expected: list[list[float]] = []
    for user, tokens in histories[0].items():
        held = max((i for i in range(1, len(tokens)) if tokens[i] not in tokens[:i]), default=None)
        if held is None or user not in histories[1]:
            continue
        page = urls[0][tokens[held]]
        theirs = [urls[1][item] for item in histories[1][user]]
        if page not in shared or page in theirs:
            continue
        seen = {urls[0][item] for item in tokens[:held]} | set(theirs)
        asked = []
        for side in (0, 1):
            scores = {
                url: float(users[side][user] @ tables[side][ix])
                for ix, url in enumerate(urls[side])
                if url in shared - seen
            }
            own = scores.pop(page)
            asked.append(1 + sum(s > own for s in scores.values()) + sum(s == own for s in scores.values()) / 2)
        expected.append(asked)
    assert sorted(ranks.T.tolist()) == sorted(expected)


def test_a_champion_answers_for_users_as_the_challenger_knows_them(tmp_path: Path) -> None:
    """Vectors are fitted to its items from the same histories; also for users that are new."""
    root, rng = Root(tmp_path), np.random.default_rng(5)
    before = {user: items[:-1] for user, items in planted_histories(120, 30).items() if len(items) > 2}
    tonight = {user: [*items, int(rng.integers(0, 30))] for user, items in planted_histories(150, 30).items()}
    corpus = write_corpus(root.corpus("before"), before, 2, 30)
    config = TrainConfig(vector_size=16, epochs=3, threads=1)
    train(Job(corpus.folder, root.store, config, MEMORY_BYTES))
    pin_generation(root.store, "r1")
    champion = open_side(root, "r1")
    assert isinstance(champion, Ranker)
    assert champion.frozen is not None
    urls = [f"/page/{i}" for i in range(30)]
    challenger = write_side(root.corpus("tonight"), tonight, urls, rng.normal(size=(30, 8)).astype(np.float32))
    shared = match_items(challenger.corpus.vocabulary, champion.corpus.vocabulary)
    found = 0
    for (mine, theirs), part in zip(make_pairs(challenger, champion, *shared), range(2), strict=True):
        histories = challenger.corpus.read(part)
        held = np.flatnonzero(histories.is_held_out)
        spans = take_histories(histories, held, histories.ends[held])
        interests = infer_vectors(champion.frozen, spans.tokens, spans.offsets, spans.hashes).vectors
        every = join_parts(champion.frozen.generation, interests, spans.tokens, spans.starts, spans.ends)
        expected = {vector.tobytes() for vector in every}
        assert {vector.tobytes() for vector in theirs.vectors} <= expected
        np.testing.assert_array_equal(mine.items, theirs.items)  # the items have the same numbers here
        np.testing.assert_array_equal(mine.seen_items, theirs.seen_items)
        found += len(mine.items)
    told, _ = compare(tmp_path, challenger, champion)
    assert told["num_users"] == found
    assert found > 100
    pinned = root.store / "pinned" / "r1.json"
    pinned.unlink()
    assert open_side(root, "r1") == "the corpus or the pinned generation of release r1 is gone"


def test_nothing_to_go_by_is_said(tmp_path: Path) -> None:
    vectors = np.ones((3, 2), np.float32)
    side = write_side(tmp_path / "one", {"ann": [0, 1], "bob": [1, 2]}, ["a", "b", "c"], vectors)
    told, ranks = compare(tmp_path, side, side)  # it has seen all that is held out
    assert told == {"reason": "no user had an item held out that the champion knows and has not seen of the user"}
    assert not ranks.size
    corpus = write_corpus(tmp_path / "two", {"ann": [0, 1]}, partitions=4, num_items=3)
    told, _ = compare(tmp_path, Ranker(corpus, Summed(corpus), side.scores, 1), side)
    assert told == {"reason": "the champion has 2 micro-partitions, and tonight there are 4"}


def test_users_are_drawn_until_the_verdict_is_certain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls, rng = [f"/{i}" for i in range(20)], np.random.default_rng(7)
    before = {f"user-{i}": [i % 20] for i in range(60)}
    tonight = {user: [*items, (items[0] + 7) % 20] for user, items in before.items()}
    challenger = write_side(tmp_path / "one", tonight, urls, rng.normal(size=(20, 4)).astype(np.float32))
    champion = write_side(tmp_path / "two", before, urls, rng.normal(size=(20, 4)).astype(np.float32))
    monkeypatch.setattr(comparison, "DRAWN_USERS", 1)
    monkeypatch.setattr(comparison, "is_decided", lambda *_: False)
    told, every = compare(tmp_path, challenger, champion)
    assert (every.dtype, every.shape, told["num_users"]) == (np.float32, (2, 60), 60)
    assert b"user-" not in (tmp_path / "ranks.npy").read_bytes(), "the ranks name nobody"
    assert 0 < told["coverage"] <= 1
    monkeypatch.setattr(comparison, "is_decided", lambda *_: True)
    told, first = compare(tmp_path, challenger, champion)
    assert told["num_users"] == challenger.corpus.users[0] < 60
    np.testing.assert_array_equal(first, every[:, : told["num_users"]])


@pytest.mark.parametrize("better", [0.02, 0.0, -0.02, -0.05, -0.1, -0.3])
@pytest.mark.parametrize("moved", [0.02, 0.4])
def test_the_drawn_users_give_the_verdict_of_all(better: float, moved: float) -> None:
    """Of 20,000 users some have another rank, and this share of the champion's hits is won or lost besides."""
    rule, rng, drawn = Rule("hit_at_10", "hit@10", -DROP), np.random.default_rng(0), []
    for _ in range(5):
        champion = np.where(rng.random(20_000) < 0.3, 5.0, 50.0)
        challenger = np.where(rng.random(20_000) < moved, rng.permutation(champion), champion)
        challenger[(rng.random(20_000) < abs(better)) & (champion == 5)] = 50 if better < 0 else 5
        sides = Answer(challenger, np.empty(0, np.int64)), Answer(champion, np.empty(0, np.int64))
        ends = (end for end in range(2_000, 20_001, 2_000) if is_decided(DROP, *(cut(side, end) for side in sides)))
        end = next(ends, 20_000)
        one, every = (
            judge(rule, *(hits(side.ranks[:stop], 10) for side in sides)).holds_back for stop in (end, 20_000)
        )
        assert one == every
        drawn.append(end)
    assert better != -DROP or max(drawn) == 20_000  # at the limit nothing is certain
    assert better != -0.3 or max(drawn) <= 4_000


def cut(answer: Answer, end: int) -> Answer:
    return Answer(answer.ranks[:end], answer.top)


def test_users_who_do_not_differ_decide_nothing() -> None:
    nobody = Answer(np.full(9, 50.0), np.empty(0, np.int64))
    assert not is_decided(DROP, nobody, nobody)


def test_holes_are_nobody(tmp_path: Path) -> None:
    ids = pa.chunked_array([pa.array(["ann", None, "bob"])])
    assert find_users(pa.chunked_array([pa.array(["bob", None, "cid", "ann"])]), ids).tolist() == [2, -1, -1, 0]


def test_items_go_by_their_urls(tmp_path: Path) -> None:
    for name, urls in (("one", ["a", "b", "ü"]), ("two", ["ü", "c", "a", "d"])):
        pq.write_table(pa.table({"url": urls}), tmp_path / name)
    to_second, to_first = match_items(tmp_path / "one", tmp_path / "two")
    assert to_second.tolist() == [2, -1, 0]
    assert to_first.tolist() == [2, -1, 0, -1]
