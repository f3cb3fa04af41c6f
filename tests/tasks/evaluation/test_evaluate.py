"""Ranks of held-out items: a literal example, and a full sort as the measure."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.tasks.evaluation import evaluate as evaluate_module
from surf2vec.tasks.evaluation import scores as scores_module
from surf2vec.tasks.evaluation.evaluate import (
    Answer,
    Question,
    evaluate,
    measure,
    rank_all,
    rank_by_popularity,
    rank_held_out,
)
from surf2vec.tasks.evaluation.measures import hits, reciprocals
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.training.infer import refit_held_out
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.scores import score_by_vectors


def test_literal_ranks() -> None:
    items = np.array([[4.0], [3.0], [2.0], [1.0], [1.0]], np.float32)
    question = Question(np.ones((2, 1), np.float32), np.array([2, 3]), np.array([0, 1, 1]), np.array([0, 0, 2]))
    answer = rank_held_out(question, score_by_vectors(items))
    assert answer.ranks.tolist() == [2.0, 2.5]  # 3 is above 2; 3 is above 1, which ties with another 1
    assert answer.top[0][:2].tolist() == [1, 2]


def test_measures_of_ranks() -> None:
    ranks = np.array([1.0, 2.5, 10.0, 20.0, 21.0])
    assert hits(ranks, 10).tolist() == [1, 1, 1, 0, 0]
    assert reciprocals(ranks).tolist() == [1, 0.4, 0.1, 0.05, 0]


def test_literal_measures() -> None:
    answer = Answer(np.array([1.0, 10.0, 15.0, 21.0]), np.array([[0, 1], [0, 1], [0, 2], [0, 1]]))
    assert measure(answer, 6) == pytest.approx(
        {
            "hit_at_10": 0.5,
            "hit_at_20": 0.75,
            "mrr_at_20": (1 + 1 / 10 + 1 / 15) / 4,
            "ndcg_at_20": (1 + 1 / np.log2(11) + 1 / np.log2(16)) / 4,
            "coverage_at_20": 0.5,
        }
    )


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 12), st.integers(1, 5))
def test_popularity_ranks_as_vectors_of_counts_do(seed: int, num_items: int, num_users: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most + 1, num_items)  # few different counts: many ties
    held = rng.integers(0, num_items, num_users)
    seen = [sorted(set(rng.integers(0, num_items, 25).tolist()) - {int(h)}) for h in held]
    seen_rows, seen_items = (
        np.repeat(np.arange(num_users), [len(s) for s in seen]),
        np.array([i for s in seen for i in s], np.int64),
    )
    question = Question(np.ones((num_users, 1), np.float32), held, seen_rows, seen_items)
    expected = rank_held_out(question, score_by_vectors(counts.astype(np.float32)[:, None]))
    answer = rank_by_popularity(question, counts)
    assert answer.ranks.tolist() == expected.ranks.tolist()
    for row, items in enumerate(seen):
        unseen = sorted((count for item, count in enumerate(counts.tolist()) if item not in items), reverse=True)[:20]
        assert len(set(answer.top[row].tolist())) == min(20, num_items)
        assert counts[answer.top[row]].tolist()[: len(unseen)] == unseen


@settings(max_examples=50)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 60) | st.integers(500, 3_000),
    st.sampled_from([2, 40, 10**6]),
    st.sampled_from([1, 100, 700, 10**4]),
)
def test_ranks_and_best_items_as_a_full_sort_has_them(seed: int, num_items: int, distinct: int, grain: int) -> None:
    """In one piece or many. With many items only few are sorted: all are equal, or many, or hardly any; some users saw most."""
    rng = np.random.default_rng(seed)
    items = rng.integers(0, distinct, num_items).astype(np.float32)[:, None]
    held = rng.integers(0, num_items, 70)
    is_seen = rng.random((70, num_items)) < rng.choice([0, 0.1, 0.99], 70)[:, None]
    is_seen[np.arange(70), held] = False
    question = Question(np.ones((70, 1), np.float32), held, *np.nonzero(is_seen))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores_module, "GRAIN_ITEMS", grain)
        patch.setattr(scores_module, "PIECE_BYTES", 1)
        in_pieces = score_by_vectors(items)
        assert in_pieces.num_pieces == -(-num_items // grain)
        answer = rank_held_out(question, in_pieces)
    masked = np.where(is_seen, -np.inf, items.T)
    own = np.take_along_axis(masked, held[:, None], axis=1)
    expected = 1 + (masked > own).sum(axis=1) + ((masked == own).sum(axis=1) - 1) / 2
    np.testing.assert_array_equal(answer.ranks, expected)
    np.testing.assert_array_equal(np.take_along_axis(masked, answer.top, axis=1), -np.sort(-masked, axis=1)[:, :20])
    assert all(len(set(top)) == min(20, num_items) for top in answer.top.tolist())


def test_progress_moves_with_each_piece_of_the_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranking the first release of three million items was silent for minutes."""
    monkeypatch.setattr(scores_module, "GRAIN_ITEMS", 10)
    monkeypatch.setattr(scores_module, "PIECE_BYTES", 1)
    none = np.zeros(0, np.int64)
    asked = [(Question(np.ones((4, 1), np.float32), np.arange(4), none, none),)] * 2
    scores = score_by_vectors(np.arange(40, dtype=np.float32)[:, None])
    reports: list[int] = []
    rank_all(
        asked,
        lambda question, **report: (rank_held_out(question, scores, **report),),
        lambda name, values: reports.append(values["done"]),
        total=8,
        group_bytes=1,
        num_pieces=4,
    )
    assert reports == [1, 2, 3, 4, 5, 6, 7, 8]


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    question = Question(
        rng.normal(size=(50, 4)).astype(np.float32), rng.integers(0, 30, 50), np.arange(50), rng.integers(30, 40, 50)
    )
    items = rng.normal(size=(40, 4)).astype(np.float32)
    whole = rank_held_out(question, score_by_vectors(items))
    monkeypatch.setattr(evaluate_module, "BATCH_SCORES", 7 * 40)
    np.testing.assert_array_equal(rank_held_out(question, score_by_vectors(items)).ranks, whole.ranks)


def test_planted_topics_are_found_and_the_answer_outlives_the_refit(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", planted_histories(num_users=400, num_items=80))
    job = Job(tmp_path / "corpus", tmp_path / "store", TrainConfig(vector_size=16, epochs=30, alpha=0.1), 4 * 10**9)
    train(job)
    corpus = open_corpus(job.corpus_dir)
    before = evaluate(corpus, open_generation(job.store_dir))
    assert before["num_users"] == corpus.manifest["num_held_out"]
    assert before["metrics"]["hit_at_20"] > 1.5 * before["metrics"]["popularity_hit_at_20"]
    refit_held_out(job, corpus, {"evaluation": before})
    assert evaluate(corpus, open_generation(job.store_dir)) == before


def test_a_budget_that_does_not_hold_the_scores_is_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", planted_histories())
    job = Job(tmp_path / "corpus", tmp_path / "store", TrainConfig(vector_size=4, epochs=1), 4 * 10**9)
    train(job)
    with pytest.raises(
        ResourceError, match=r"ranking 60 items in 1 pieces needs .* raise --host-memory, or set evaluate"
    ):
        evaluate(open_corpus(job.corpus_dir), open_generation(job.store_dir), memory_bytes=1000)


def test_no_held_out_users_no_metrics(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", planted_histories(), max_users=0)
    job = Job(tmp_path / "corpus", tmp_path / "store", TrainConfig(vector_size=4, epochs=1), 4 * 10**9)
    train(job)
    assert evaluate(open_corpus(job.corpus_dir), open_generation(job.store_dir)) == {"num_users": 0, "metrics": {}}
