"""Alignment: a rotation that is known is found, whatever the pieces; and it changes no dot product."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.cpu import trail_vectors
from surf2vec.trainer.store.align import Rotation, align_generation, find_rotation
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.store_contents import read_item_table


def rotation_of(rng: np.random.Generator, dims: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(dims, dims)))[0]


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 30))
def test_a_known_rotation_is_found_from_any_pieces(seed: int, dims: int, piece: int) -> None:
    rng = np.random.default_rng(seed)
    known = rotation_of(rng, dims)
    new = rng.normal(size=(dims + 20, dims)).astype(np.float32)
    old = (new @ known * rng.uniform(0.5, 2, (len(new), 1))).astype(np.float32)  # longer or shorter: directions count
    pairs = ((new[start : start + piece], old[start : start + piece]) for start in range(0, len(new), piece))
    found = find_rotation(pairs, dims, dims)
    np.testing.assert_allclose(found.matrix, known, atol=1e-5)
    assert found.cosine == pytest.approx(1, abs=1e-5)
    assert found.num_items == len(new)


def test_a_bias_stays_where_it_is() -> None:
    """It says how popular an item is, in the older space as in the newer: no rotation mixes it with what turns."""
    rng = np.random.default_rng(3)
    known, popular = rotation_of(rng, 4), 100 * rng.normal(size=(2, 30, 1))
    new = rng.normal(size=(30, 4))
    pairs = np.hstack((new, popular[0])).astype(np.float32), np.hstack((new @ known, popular[1])).astype(np.float32)
    found = find_rotation([pairs], 5, 4)
    np.testing.assert_allclose(found.matrix[:4, :4], known, atol=1e-5)
    np.testing.assert_array_equal(found.matrix[4], [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(found.matrix[:, 4], [0, 0, 0, 0, 1])
    assert found.cosine == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"dm": 1, "negative": 3}])
def test_a_generation_turns_without_changing_what_it_says(tmp_path: Path, settings: dict[str, Any]) -> None:
    corpus = write_corpus(tmp_path / "corpus", planted_histories(60))
    config = TrainConfig(vector_size=16, epochs=2, threads=1, **settings)
    train(Job(tmp_path / "corpus", tmp_path / "store", config, 4 * 10**9))
    before = open_generation(tmp_path / "store")
    users, items = [before.read_users(p) for p in range(corpus.num_partitions)], read_item_table(before)
    rotation = Rotation(rotation_of(np.random.default_rng(1), 8), 0.5, 7)
    trail_rotation = Rotation(rotation_of(np.random.default_rng(2), 8), 0.5, 7)
    rotations = {"interest": rotation, "trail": trail_rotation}
    trail, histories = deepcopy(before.trail), corpus.read(0)
    trails = trail_vectors(trail, histories.tokens, histories.starts, histories.ends, config.trail_window)
    after = align_generation(tmp_path / "store", rotations, {"space": "told"})
    turned = read_item_table(after)
    tolerance = 0.05 if config.dtype == "bfloat16" else 1e-5
    for partition, old in enumerate(users):
        new = after.read_users(partition)
        np.testing.assert_allclose(new, old @ rotation.matrix, atol=tolerance)
        np.testing.assert_allclose(new @ turned.outputs.vectors.T, old @ items.outputs.vectors.T, atol=tolerance)
    np.testing.assert_array_equal(turned.outputs.squares, items.outputs.squares)
    np.testing.assert_allclose(turned.inputs.vectors, items.inputs.vectors @ rotation.matrix, atol=1e-5)
    assert after.manifest["space"] == "told"
    for rows, old in ((after.trail.outputs, trail.outputs), (after.trail.inputs, trail.inputs)):
        np.testing.assert_allclose(rows.vectors, old.vectors @ trail_rotation.matrix, atol=1e-5)
        np.testing.assert_array_equal(rows.squares, old.squares)
    np.testing.assert_array_equal(after.trail.lags.vectors, trail.lags.vectors)
    assert np.abs(trails @ trail.outputs.vectors.T).max() > 0.1
    again = align_generation(tmp_path / "store", rotations, {})
    assert again.generation == after.generation, "what is aligned is not turned twice"


def test_items_without_a_direction_count_nothing() -> None:
    new = np.array([[1, 0], [0, 0], [np.nan, 1], [0, 1]], np.float32)
    old = np.array([[0, 1], [1, 1], [1, 1], [-1, 0]], np.float32)
    found = find_rotation([(new, old)], 2, 2)
    np.testing.assert_allclose(found.matrix, [[0, 1], [-1, 0]], atol=1e-12)
    assert found.num_items == 2


def test_without_items_nothing_is_turned() -> None:
    found = find_rotation([], 3, 2)
    np.testing.assert_array_equal(found.matrix, np.eye(3))
    assert (found.cosine, found.num_items) == (0.0, 0)
