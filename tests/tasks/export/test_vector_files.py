"""Vectors in Parquet and back: exact as float32, and off by no more than the storage must be."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from surf2vec.tasks.export.vector_files import encode_rows, encode_vectors, read_vectors, write_rows
from surf2vec.tasks.release.release_reader import decode_vectors
from surf2vec.trainer.errors import ConfigError

shapes = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)
numbers = st.floats(-60_000, 60_000, width=32)


def through(vectors: np.ndarray, dtype: str) -> np.ndarray:
    return decode_vectors(pa.table(encode_vectors(vectors, dtype)))


def write(path: Path, vectors: np.ndarray, dtype: str = "float32", group_rows: int = 10) -> Path:
    names = pa.table({"user_id": [f"u{i:05d}" for i in range(len(vectors))]})
    write_rows(path, [encode_rows(names, vectors, dtype)], group_rows)
    return path


def test_literal_columns() -> None:
    vectors = np.array([[1, -0.5, 0.25], [0, 0, 0]], np.float32)
    assert encode_vectors(vectors, "float16")["vector"].to_pylist() == vectors.tolist()
    columns = encode_vectors(vectors, "int8")
    assert columns["vector"].to_pylist() == [[127, -64, 32], [0, 0, 0]]
    np.testing.assert_array_equal(columns["scale"].to_numpy(), np.float32([1 / 127, 0]))
    np.testing.assert_allclose(through(vectors, "int8"), [[1, -64 / 127, 32 / 127], [0, 0, 0]], rtol=1e-6)


@given(hnp.arrays(np.float32, shapes, elements=numbers))
def test_what_is_lost_is_bounded(vectors: np.ndarray) -> None:
    np.testing.assert_array_equal(through(vectors, "float32"), vectors)
    np.testing.assert_allclose(through(vectors, "float16"), vectors, rtol=2**-11, atol=2**-25)
    greatest = np.abs(vectors).max(axis=1, keepdims=True).astype(np.float64)
    assert (np.abs(through(vectors, "int8") - vectors) <= greatest / 127 * 0.501 + 1e-40).all()


def test_a_number_that_float16_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a number of 70,000, but export.dtype=float16 holds 65,504 at most"):
        encode_vectors(np.array([[1, -70_000]], np.float32), "float16")


@pytest.mark.parametrize(("dtype", "most"), [("float32", 4.5), ("float16", 2.3), ("int8", 1.4)])
def test_files_are_as_small_as_they_say_and_read_as_written(tmp_path: Path, dtype: str, most: float) -> None:
    vectors = np.random.default_rng(0).standard_normal((2000, 64), np.float32)
    path = write(tmp_path / "v.parquet", vectors, dtype, group_rows=128)
    assert path.stat().st_size < most * vectors.size
    assert path.read_bytes() == write(tmp_path / "again.parquet", vectors, dtype, group_rows=128).read_bytes()
    table = pq.read_table(path)
    assert table.schema.field("vector").type == pa.list_(pa.from_numpy_dtype(dtype), 64)
    np.testing.assert_array_equal(decode_vectors(table), through(vectors, dtype))
    np.testing.assert_allclose(decode_vectors(table), vectors, atol=0.03)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_reading_every_third_row_group(tmp_path: Path, dtype: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((95, 3), np.float32)
    paths = [write(tmp_path / f"{i}.parquet", part, dtype) for i, part in enumerate(np.split(vectors, [33, 33 + 40]))]
    stored = np.vstack([decode_vectors(pq.read_table(path)) for path in paths])
    # groups of ten begin at 0, 10, 20, 30 (of 3), 33, 43, 53, 63, 73, 83, 93 (of 2)
    for every, expected in ((1, range(95)), (3, [*range(10), *range(30, 33), *range(53, 63), *range(83, 93)])):
        for batch_rows in (1, 20, 1000):
            batches = list(read_vectors(paths, every, batch_rows))
            rows = np.concatenate([rows for rows, _ in batches])
            assert rows.tolist() == list(expected)
            np.testing.assert_array_equal(np.vstack([found for _, found in batches]), stored[rows])
            assert max(len(rows) for rows, _ in batches) <= max(10, batch_rows)
