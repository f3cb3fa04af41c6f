"""The two parts of a vector side by side: which columns they are, what they weigh, and which events a trail has seen."""

from pathlib import Path

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.cpu import trail_vectors
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.training.infer import refit_held_out
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.vectors import (
    TRAIL_WEIGHT,
    BothParts,
    bias_columns,
    columns_of,
    join_parts,
    read_item_vectors,
    weight_of,
)
from tests.data.corpora import planted_histories, write_corpus


def make(tmp_path: Path, **settings: object) -> tuple[Corpus, Generation, Job]:
    corpus = write_corpus(tmp_path / "corpus", planted_histories(120), partitions=2)
    config = TrainConfig(vector_size=32, epochs=2, threads=1, **settings)  # type: ignore[arg-type]
    job = Job(corpus.folder, tmp_path / "store", config, 4 * 10**9)
    train(job)
    return open_corpus(corpus.folder), open_generation(job.store_dir), job


def test_one_dot_product_adds_the_scores_of_both_parts(tmp_path: Path) -> None:
    corpus, generation, _ = make(tmp_path)
    histories, users = corpus.read(0), BothParts(generation, corpus).read_users(0)
    trails = trail_vectors(
        generation.trail, histories.tokens, histories.starts, histories.ends, generation.config.trail_window
    )
    outputs = generation.trail.outputs.vectors
    expected = (1 - TRAIL_WEIGHT) * generation.read_users(
        0
    ) @ generation.read_items().T + TRAIL_WEIGHT * trails @ outputs.T
    np.testing.assert_allclose(users @ read_item_vectors(generation).T, expected, atol=1e-5)
    np.testing.assert_array_equal(read_item_vectors(generation, 3, 9), read_item_vectors(generation)[3:9])
    assert columns_of(generation) == {"interest": [0, 16], "trail": [16, 32]}
    assert bias_columns(generation) == [15, 30, 31]
    assert len(np.unique(users[:, bias_columns(generation)], axis=0)) == 1, "what is a bias is the same of all users"


@pytest.mark.parametrize(("weight", "columns"), [(0.0, {"interest": [0, 32]}), (1.0, {"trail": [0, 32]})])
def test_one_part_has_all_columns(tmp_path: Path, weight: float, columns: dict[str, list[int]]) -> None:
    from surf2vec.trainer.config import config_from_dict

    parts = config_from_dict({"trail_weight": weight}).parts
    corpus, generation, job = make(tmp_path, trail_weight=weight, parts=parts)
    assert columns_of(generation) == columns
    assert read_item_vectors(generation).shape == (60, 32)
    users = BothParts(generation, corpus).read_users(1)
    assert users.shape == (corpus.users[1], 32)
    if weight == 1:
        assert generation.manifest["users"] == {}, "a trail that stands alone keeps nothing for a user"
        refitted = refit_held_out(job, corpus, {})
        assert not np.array_equal(BothParts(refitted, corpus).read_users(1), users)


def test_a_weight_that_is_set_wins_over_the_log(tmp_path: Path) -> None:
    _, generation, _ = make(tmp_path)
    chosen = Generation(generation.folder, generation.manifest | {"choice": {"trail_weight": 0.2}})
    assert (weight_of(generation), weight_of(chosen)) == (TRAIL_WEIGHT, 0.2)
    config = generation.manifest["config"] | {"trail_weight": 0.4}
    assert weight_of(Generation(generation.folder, chosen.manifest | {"config": config})) == 0.4
    users = np.ones((1, 16), np.float32)
    joined = join_parts(chosen, users, np.array([1, 2], np.int32), np.array([0]), np.array([2]))
    np.testing.assert_allclose(joined[0, :16], 0.8)


def test_a_trail_sees_the_held_out_event_only_after_the_refit(tmp_path: Path) -> None:
    corpus, generation, job = make(tmp_path)
    histories, before = corpus.read(0), BothParts(generation, corpus).read_users(0)
    after = BothParts(refit_held_out(job, corpus, {}), corpus).read_users(0)
    is_moved = (before[:, 16:] != after[:, 16:]).any(axis=1)
    np.testing.assert_array_equal(is_moved, histories.is_held_out)
