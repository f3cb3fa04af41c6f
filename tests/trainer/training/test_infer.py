"""Inference: the same history gives the same vector, alone or in a crowd, on any number of threads."""

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.training.infer import FrozenItems, infer_parts, infer_vectors, refit_held_out
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.store_contents import read_item_table
from tests.trainer.training.stopping import PLAN, divided

CONFIG = TrainConfig(vector_size=16, epochs=20, threads=1, alpha=0.1, negative=5)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    write_corpus(tmp_path / "corpus", planted_histories(), max_users=50)
    made = Job(tmp_path / "corpus", tmp_path / "store", CONFIG, 4 * 10**9)
    train(made)
    return made


@pytest.fixture(params=[{}, {"hs": 1}, {"hs": 1, "tree": "two_level"}], ids=str)
def job_in_blocks(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A training with three item blocks; its 8 micro-partitions go through memory in chunks of three."""
    monkeypatch.setattr(PLAN, divided(3, num_blocks=3))
    write_corpus(tmp_path / "corpus", planted_histories(), partitions=8, max_users=50)
    made = Job(tmp_path / "corpus", tmp_path / "store", replace(CONFIG, **request.param), 4 * 10**9)
    train(made)
    return made


def infer_all(job: Job, partition: int, threads: int) -> np.ndarray:
    corpus = open_corpus(job.corpus_dir)
    histories = corpus.read(partition)
    items = FrozenItems(open_generation(job.store_dir), corpus.count_training_tokens(), threads)
    return infer_vectors(items, histories.tokens, histories.offsets, histories.hashes).vectors


def test_same_history_same_vector(job: Job) -> None:
    crowd = infer_all(job, 0, threads=1)
    assert crowd.tobytes() == infer_all(job, 0, threads=2).tobytes()
    corpus = open_corpus(job.corpus_dir)
    histories = corpus.read(0)
    first, end = histories.offsets[3], histories.offsets[4]
    items = FrozenItems(open_generation(job.store_dir), corpus.count_training_tokens(), 1)
    alone = infer_vectors(items, histories.tokens[first:end], np.array([0, end - first]), histories.hashes[3:4])
    assert alone.vectors[0].tobytes() == crowd[3].tobytes()


def test_inferred_users_land_near_the_trained_ones(job: Job) -> None:
    inferred, trained = infer_all(job, 0, threads=1), open_generation(job.store_dir).read_users(0)
    cosine = (inferred * trained).sum(1) / np.linalg.norm(inferred, axis=1) / np.linalg.norm(trained, axis=1)
    assert np.median(cosine) > 0.8


def refit(job: Job) -> Generation:
    """The generation after refitting, in which the 50 held-out users are others, and nobody else is."""
    corpus, before = open_corpus(job.corpus_dir), open_generation(job.store_dir)
    vectors = [before.read_users(p) for p in range(corpus.num_partitions)]
    after = refit_held_out(job, corpus, {"evaluation": {"num_users": 50}})
    for partition in range(corpus.num_partitions):
        is_changed = (after.read_users(partition) != vectors[partition]).any(axis=1)
        np.testing.assert_array_equal(is_changed, corpus.read(partition).is_held_out)
    assert sum(corpus.read(partition).is_held_out.sum() for partition in range(corpus.num_partitions)) == 50
    return after


def test_refit_changes_the_held_out_users_only_and_once(job: Job) -> None:
    after = refit(job)
    assert after.manifest["evaluation"] == {"num_users": 50}
    assert refit_held_out(job, open_corpus(job.corpus_dir), {"evaluation": {}}).generation == after.generation
    assert train(job)["generation"] == after.generation


def _refit_and_die(job: Job) -> None:
    def die(name: str, values: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    refit_held_out(job, open_corpus(job.corpus_dir), {}, die)


def test_a_process_killed_while_it_refits_leaves_nothing_in_the_way(job: Job) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_refit_and_die, args=(job,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(list(job.store_dir.glob(".refit.*.tmp"))) == 1
    assert open_generation(job.store_dir).manifest["stage"] == "trained"
    assert refit_held_out(job, open_corpus(job.corpus_dir), {}).has_seen_held_out
    assert not list(job.store_dir.glob(".*.tmp"))


def test_in_blocks_users_land_near_the_trained_ones_however_they_are_grouped(job_in_blocks: Job) -> None:
    corpus, generation = open_corpus(job_in_blocks.corpus_dir), open_generation(job_in_blocks.store_dir)
    assert generation.num_blocks == 3
    frozen = FrozenItems(generation, corpus.count_training_tokens(), 1)
    parts = [(partition, corpus.read(partition)) for partition in range(8)]
    apart, together = (list(infer_parts(frozen, parts, group_bytes)) for group_bytes in (1, 10**9))
    assert [partition for partition, _ in apart] == [partition for partition, _ in together] == list(range(8))
    cosines = []
    for (partition, alone), (_, rows) in zip(apart, together, strict=True):
        assert alone.vectors.tobytes() == rows.vectors.tobytes()
        trained = generation.read_users(partition)
        norms = np.linalg.norm(alone.vectors, axis=1) * np.linalg.norm(trained, axis=1)
        cosines.append((alone.vectors * trained).sum(1) / norms)
    assert np.median(np.concatenate(cosines)) > 0.8


def test_in_blocks_progress_moves_with_each_block(job_in_blocks: Job) -> None:
    told: list[dict[str, Any]] = []
    refit_held_out(job_in_blocks, open_corpus(job_in_blocks.corpus_dir), {}, lambda _, values: told.append(values))
    turns, blocks = 3 * job_in_blocks.config.epochs, [one for one in told if one["unit"] == "item blocks"]
    assert [(one["step"], one["done"], one["total"]) for one in blocks] == [("fit", n + 1, turns) for n in range(turns)]


def test_in_blocks_the_refit_changes_the_held_out_users_only(job_in_blocks: Job) -> None:
    items = read_item_table(open_generation(job_in_blocks.store_dir))
    np.testing.assert_array_equal(read_item_table(refit(job_in_blocks)).outputs.vectors, items.outputs.vectors)


def test_a_budget_that_does_not_hold_an_item_block_is_refused(job: Job) -> None:
    corpus = open_corpus(job.corpus_dir)
    with pytest.raises(ResourceError, match=r"for an item block of 60 items, .* raise --host-memory, or set evaluate"):
        refit_held_out(replace(job, host_memory_bytes=1000), corpus, {})
    assert open_generation(job.store_dir).manifest["stage"] == "trained"
