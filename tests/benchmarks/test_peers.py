"""The kernel without the trainer around it, gensim's two ways, and the comparison user by user."""

import math
from pathlib import Path

import numpy as np
import pytest

from surf2vec.tasks.evaluation.evaluate import Question
from surf2vec.trainer.config import TrainConfig
from tests.benchmarks.peers import (
    begin_kernel_training,
    difference_in_errors,
    is_no_lower,
    sample_question,
    train_gensim,
    train_ours,
)
from tests.data.corpora import write_corpus

HISTORIES = {f"user-{i}": [i % 3, 3 + i % 2, (i + 1) % 3] for i in range(20)}
CONFIG = TrainConfig(vector_size=4, epochs=3, negative=2, threads=1)


@pytest.mark.slow
def test_kernel_training_learns_as_the_trainer_does_where_there_is_one_micro_partition(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", HISTORIES, partitions=1, max_users=0)
    training = begin_kernel_training(corpus, CONFIG)
    seconds = [training.train_epoch(epoch) for epoch in range(CONFIG.epochs)]
    ours = train_ours(corpus, CONFIG, tmp_path / "store")
    assert np.array_equal(training.users.vectors, ours.users)
    assert np.array_equal(training.items.outputs.vectors, ours.items)
    assert min(seconds) > 0
    assert 0 < ours.training_seconds < ours.seconds


@pytest.mark.parametrize("name", [None, "corpus.txt"])
def test_both_ways_of_gensim_see_the_training_tokens(tmp_path: Path, name: str | None) -> None:
    corpus = write_corpus(tmp_path / "corpus", HISTORIES, num_items=6)
    file = tmp_path / name if name else None
    vectors = train_gensim(corpus, file, dm=0, vector_size=4, epochs=1, seed=1)
    scores = vectors.users @ vectors.items.T
    assert scores.shape == (20, 6)
    assert (np.abs(scores[:, :5]) < 1).all()
    assert (scores[:, 5] < -1e5).all()  # an item that training does not see ranks last
    assert 0 < vectors.training_seconds <= vectors.seconds


def test_no_lower_means_within_two_standard_errors() -> None:
    theirs = np.zeros(100)
    ours = np.tile([1.0, -1.0], 50)  # standard error .1005
    assert difference_in_errors(ours, theirs) == 0
    assert is_no_lower(ours - 0.2, theirs)
    assert not is_no_lower(ours - 0.21, theirs)


def test_differences_that_are_the_same_for_all() -> None:
    ones = np.ones(3)
    assert difference_in_errors(ones, ones) == 0
    assert difference_in_errors(ones, 2 * ones) == -math.inf
    assert not is_no_lower(ones, 2 * ones)


def test_a_sample_asks_the_same_users_each_time_and_keeps_what_they_have_seen() -> None:
    rows = np.arange(6)
    question = Question(rows[:, None] * np.float32(1), rows + 10, np.repeat(rows, 2), np.arange(12))
    sample = sample_question(question, 3)
    users = sample.vectors[:, 0].astype(int)
    assert len(set(users)) == 3
    assert sample.items.tolist() == (users + 10).tolist()
    assert sample.seen_rows.tolist() == [0, 0, 1, 1, 2, 2]
    assert sample.seen_items.tolist() == [item for user in users for item in (2 * user, 2 * user + 1)]
    assert sample_question(question, 3).items.tolist() == sample.items.tolist()
    assert sample_question(question, 6) is question
