"""The log chooses the trail's settings: only beyond chance, by what training sees, and once until the next full night."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.tasks.evaluation import evaluate
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.training import trials
from surf2vec.tasks.training.trials import VALUES, describe_plan, find_hits, pick_settings, try_settings, why_no_trials
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import TrainingError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import write_corpus
from tests.tasks.corpus.test_order import walk

START = {"trail_l2": 0.1, "trail_backward": 0.5, "trail_discount": 0.2}
CONFIG = TrainConfig(vector_size=16, epochs=2, threads=1)


def hits(share: float) -> np.ndarray:
    return (np.arange(1000) < 1000 * share).astype(float)


def test_the_defaults_are_among_the_values() -> None:
    assert all(getattr(CONFIG, name) in values for name, values in VALUES.items())


def test_each_setting_gets_its_best_value_beyond_two_standard_errors() -> None:
    tried = [START, START | {"trail_l2": 0.05}, START | {"trail_l2": 0.2}, START | {"trail_backward": 0.9}]
    found = pick_settings(tried, [hits(0.5), hits(0.52), hits(0.53), hits(0.503)])
    assert found["settings"] == START | {"trail_l2": 0.2}
    assert found["hit_at_20"] == 0.5
    assert [(gain["name"], gain["value"], gain["is_chosen"]) for gain in found["gains"]] == [
        ("trail_l2", 0.05, False), ("trail_l2", 0.2, True), ("trail_backward", 0.9, False)
    ]  # fmt: skip
    assert found["gains"][1]["gain"] == pytest.approx(0.03)
    assert found["gains"][1]["standard_error"] == pytest.approx((0.03 * 0.97 / 1000) ** 0.5, rel=0.01)


def test_a_trial_that_diverged_chooses_nothing() -> None:
    tried = [START, START | {"trail_l2": 0.2}]
    assert pick_settings(tried, [hits(0.5), None])["settings"] == START
    assert pick_settings(tried, [None, hits(0.9)]) == {"settings": START, "hit_at_20": None, "gains": []}


@pytest.mark.parametrize(
    ("config", "num_users", "reason"),
    [
        (CONFIG, 99_999, "99,999 users"),
        (TrainConfig(parts="interest"), 10**6, "no trail"),
        (CONFIG, 100_000, None),
    ],
)
def test_trials_need_a_trail_and_many_users(config: TrainConfig, num_users: int, reason: str | None) -> None:
    told = why_no_trials(config, num_users)
    assert told is None if reason is None else reason in (told or "")


def test_a_plan_says_how_many_users_are_tried() -> None:
    assert "on 25,000 users" in describe_plan(CONFIG, 10**6)
    assert "on 200,000 users" in describe_plan(CONFIG, 20 * 10**6)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    corpus = write_corpus(tmp_path / "corpus" / "window", walk(400), partitions=4, num_items=50, max_users=100)
    return Job(corpus.folder, tmp_path / "store", CONFIG, 4 * 10**9)


def few(monkeypatch: pytest.MonkeyPatch, one_in: int = 2, min_asked: int = 50) -> None:
    monkeypatch.setattr(trials, "ONE_IN", one_in)
    monkeypatch.setattr(trials, "MIN_ASKED", min_asked)
    monkeypatch.setattr(trials, "MAX_ASKED", 200)


def test_every_other_value_is_tried_once(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)
    found = try_settings(Root(tmp_path), job, None, False, ignore_event)
    assert [(gain["name"], gain["value"]) for gain in found["gains"]] == [
        (name, value) for name, values in VALUES.items() for value in values if value != START[name]
    ]
    assert 150 < found["num_users"] < 250
    assert found["num_asked"] > 100
    assert found["hit_at_20"] > 0
    assert not job.store_dir.exists()  # the trials have a store of their own
    assert list((tmp_path / "tmp").glob("*")) == []


def test_a_better_value_is_found(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)
    monkeypatch.setattr(trials, "VALUES", {"trail_l2": (0.1, 10.0)})
    bad = trials.replace(job, config=trials.replace(CONFIG, trail_l2=10.0))
    found = try_settings(Root(tmp_path), bad, None, False, ignore_event)
    assert found["settings"] == {"trail_l2": 0.1}
    (gain,) = found["gains"]
    assert gain["gain"] > 2 * gain["standard_error"] > 0


def test_the_release_that_serves_is_what_is_compared_with(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few(monkeypatch)
    served = trials.replace(job, config=trials.replace(CONFIG, trail_l2=0.2))
    train(served)
    present = open_generation(job.store_dir)
    found = try_settings(Root(tmp_path), job, present, False, ignore_event)
    assert [gain["value"] for gain in found["gains"] if gain["name"] == "trail_l2"] == [0.1]
    kept = try_settings(Root(tmp_path), job, present, True, ignore_event)
    assert kept["settings"] == START | {"trail_l2": 0.2}
    assert "gains" not in kept


def test_too_few_to_ask_keeps_the_settings(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch, one_in=4, min_asked=100)  # 400 users, of whom some have seen only one page
    monkeypatch.setattr(trials, "MAX_ASKED", 100)
    monkeypatch.setattr(trials, "share_of", lambda _: 8)
    found = try_settings(Root(tmp_path), job, None, False, ignore_event)
    assert found["settings"] == START
    assert "fewer than 100" in found["reason"]


def test_a_training_that_fails_is_no_hit(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise TrainingError("numbers are no longer finite")

    monkeypatch.setattr(evaluate, "train", fail)
    assert find_hits(open_corpus(job.corpus_dir), job.store_dir, CONFIG, job.host_memory_bytes) is None
