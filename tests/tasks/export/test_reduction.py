"""The projection: what it keeps of planted directions, and that dot products outlive it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.export.reduction import SecondMoment, project, read_projection
from surf2vec.trainer.errors import DamageError


def fit(vectors: np.ndarray, dim: int) -> tuple[np.ndarray, float]:
    moment = SecondMoment(vectors.shape[1])
    moment.add(vectors)
    return moment.project_to(dim)


def test_a_literal_projection() -> None:
    projection, kept = fit(np.array([[3, 0, 0], [0, 0, -4], [0, 1, 0]], np.float32), 2)
    np.testing.assert_allclose(projection, [[0, 1], [0, 0], [1, 0]], atol=1e-7)  # 16 of z, 9 of x, 1 of y
    assert kept == pytest.approx(25 / 26)


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(1, 12))
def test_the_projection_is_orthonormal_and_keeps_what_it_says(seed: int, size: int, dim: int) -> None:
    dim = min(dim, size)
    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((50, size)) * rng.random(size) + rng.random(size)).astype(np.float32)
    projection, kept = fit(vectors, dim)
    np.testing.assert_allclose(projection.T @ projection, np.eye(dim), atol=1e-5)
    assert kept == pytest.approx(float((project(vectors, projection) ** 2).sum() / (vectors**2).sum()), rel=1e-4)
    other, _ = np.linalg.qr(rng.standard_normal((size, dim)))
    assert kept >= ((vectors @ other) ** 2).sum() / (vectors**2).sum() - 1e-6  # no other keeps more


def test_a_rows_bits_do_not_hang_on_how_many_whole_blocks_are_given() -> None:
    vectors = np.random.default_rng(0).standard_normal((20_000, 9), np.float32)
    projection, _ = fit(vectors, 4)
    whole = project(vectors, projection)
    np.testing.assert_array_equal(
        np.vstack([project(vectors[:8192], projection), project(vectors[8192:], projection)]), whole
    )
    assert project(vectors, None) is vectors
    assert project(vectors[:0], projection).shape == (0, 4)


def test_the_file_comes_back_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    projection, _ = fit(np.random.default_rng(0).standard_normal((30, 6), np.float32), 2)
    path = tmp_path / "projection.npy"
    np.save(path, projection)
    np.testing.assert_array_equal(read_projection(path), projection)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamageError, match=r"projection.npy cannot be read"):
        read_projection(path)
