"""Inference: the same history gives the same vector, alone or in a crowd, on any number of threads."""

from pathlib import Path

import numpy as np
import pytest

from tests.corpora import planted_histories, write_corpus
from trainer.config import TrainConfig
from trainer.corpus import open_corpus
from trainer.infer import freeze_items, infer_vectors, refit_held_out
from trainer.loop import Job, train
from trainer.store import open_generation

CONFIG = TrainConfig(vector_size=16, epochs=20, threads=1, alpha=0.1, negative=5)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    write_corpus(tmp_path / "corpus", planted_histories(), max_users=50)
    made = Job(tmp_path / "corpus", tmp_path / "store", CONFIG, 4 * 10**9)
    train(made)
    return made


def infer_all(job: Job, partition: int, threads: int) -> np.ndarray:
    corpus = open_corpus(job.corpus_dir)
    histories = corpus.read(partition)
    items = freeze_items(open_generation(job.store_dir), corpus.count_training_tokens(), threads)
    return infer_vectors(items, histories.tokens, histories.offsets, histories.hashes).vectors


def test_same_history_same_vector(job: Job) -> None:
    crowd = infer_all(job, 0, threads=1)
    assert crowd.tobytes() == infer_all(job, 0, threads=2).tobytes()
    corpus = open_corpus(job.corpus_dir)
    histories = corpus.read(0)
    first, end = histories.offsets[3], histories.offsets[4]
    items = freeze_items(open_generation(job.store_dir), corpus.count_training_tokens(), 1)
    alone = infer_vectors(items, histories.tokens[first:end], np.array([0, end - first]), histories.hashes[3:4])
    assert alone.vectors[0].tobytes() == crowd[3].tobytes()


def test_inferred_users_land_near_the_trained_ones(job: Job) -> None:
    inferred, trained = infer_all(job, 0, threads=1), open_generation(job.store_dir).read_users(0)
    cosine = (inferred * trained).sum(1) / np.linalg.norm(inferred, axis=1) / np.linalg.norm(trained, axis=1)
    assert np.median(cosine) > 0.8


def test_refit_changes_the_held_out_users_only_and_once(job: Job) -> None:
    corpus = open_corpus(job.corpus_dir)
    before = open_generation(job.store_dir)
    vectors = [before.read_users(p) for p in range(corpus.num_partitions)]
    after = refit_held_out(job, corpus, {"evaluation": {"num_users": 50}})
    num_changed = 0
    for partition in range(corpus.num_partitions):
        is_changed = (after.read_users(partition) != vectors[partition]).any(axis=1)
        np.testing.assert_array_equal(is_changed, corpus.read(partition).is_held_out)
        num_changed += int(is_changed.sum())
    assert num_changed == 50
    assert after.manifest["evaluation"] == {"num_users": 50}
    assert refit_held_out(job, corpus, {"evaluation": {}}).generation == after.generation
    assert train(job)["generation"] == after.generation
