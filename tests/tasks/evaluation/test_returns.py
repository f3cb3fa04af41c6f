"""Who comes back: literal answers, scikit-learn as the oracle, and two corpora of one root."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.evaluation.returns import measure_auc, measure_returns, score_out_of_fold
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.root.run import Root, open_root
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from tests.roots.ingest import write_log
from tests.roots.releases import draw_generation, export_release
from tests.roots.training import MEMORY_BYTES

NUM_USERS = 300


def test_auc_counts_pairs() -> None:
    answers = np.array([True, False, True, False])
    assert measure_auc(answers, np.array([3.0, 1.0, 2.0, 0.0])) == (1, 1, 1)
    assert measure_auc(answers, np.array([3.0, 2.5, 2.0, 0.0]))[0] == 0.75
    assert measure_auc(answers, np.zeros(4))[0] == 0.5


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 2))
def test_the_interval_is_that_of_drawing_users(seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    answers = rng.random(400) < 0.4
    scores = rng.normal(size=400).round(1) + shift * answers
    auc, low, high = measure_auc(answers, scores)
    assert auc == pytest.approx(roc_auc_score(answers, scores))
    drawn = [rng.integers(0, 400, 400) for _ in range(200)]
    ends = np.quantile([roc_auc_score(answers[users], scores[users]) for users in drawn], (0.025, 0.975))
    np.testing.assert_allclose((low, high), ends, atol=0.03)


def test_a_user_is_scored_by_others_only() -> None:
    """A regression on so many columns knows each user that it has seen; what is drawn says nothing of others."""
    rng = np.random.default_rng(5)
    features, answers = rng.standard_normal((600, 300)).astype(np.float32), rng.random(600) < 0.5
    assert 0.4 < measure_auc(answers, score_out_of_fold(features, answers))[0] < 0.6
    features[:, 7] += 8 * answers
    auc, low, high = measure_auc(answers, score_out_of_fold(features, answers))
    assert 0.9 < low <= auc <= high


def write_day(path: Path, day: int, users: range, num_pages: int) -> Path:
    lines = [f"u{u},/p{(u + n) % 20},2026-11-{day:02d}T10:{n:02d}:00Z" for u in users for n in range(num_pages)]
    return write_log(path, *lines)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """Half of the users have nine pages on the first day, and the others three."""
    root = open_root(tmp_path_factory.mktemp("returns") / "root")
    logs = root.path.parent
    add(root, write_day(logs / "a.csv", 1, range(150), 9), write_day(logs / "b.csv", 1, range(150, NUM_USERS), 3))
    return root


def add(root: Root, *logs: Path) -> Corpus:
    ingest(root, [str(log) for log in logs], IngestConfig(), 4, MEMORY_BYTES, 1, ignore_event)
    built = build_corpus(root, CorpusRequest(IngestConfig(), EvaluateConfig()), MEMORY_BYTES, 1)
    return open_corpus(root.corpus(built["window_id"]))


def test_the_users_with_later_events_came_back(root: Root) -> None:
    before = add(root)
    release = open_folder(export_release(root, "r1", before.folder, draw_generation(before.folder), activity=True))
    assert measure_returns(before, before, release) is None
    now = add(root, write_day(root.path.parent / "c.csv", 2, range(100), 1))
    found = measure_returns(now, before, release)
    assert found is not None
    assert (found["num_users"], found["num_returned"]) == (NUM_USERS, 100)
    activity, others, everything = (found["auc"][name] for name in ("activity alone", "without activity", "all parts"))
    assert activity[0] == pytest.approx(0.875, abs=0.03)  # 100 of the 150 with many pages: 1 - 50 / 200 / 2
    assert others[1] < 0.5 < others[2]  # vectors drawn at random
    assert everything[0] > 0.8
    few = open_folder(export_release(root, "r2", before.folder, draw_generation(before.folder)))
    found = measure_returns(now, before, few)
    assert found is not None
    assert list(found["auc"]) == ["all parts"]
