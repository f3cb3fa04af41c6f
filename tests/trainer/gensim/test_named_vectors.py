"""Vectors with a name each: what does not fit is refused, and rows are found by name."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import ConfigError
from trainer.gensim.named_vectors import align_rows, name_vectors

VECTORS = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("names", "numbers", "expected"),
    [
        (["a", "b"], VECTORS[:1], r"shape \(1, 3\) for 2 names"),
        (["a", "b"], VECTORS * np.array([[1], [np.nan]]), "row 2 has a number that is not finite"),
        (["a", "b"], VECTORS * np.array([[1e300], [1]]), "row 1 has a number that is not finite"),
        (["a", "a"], VECTORS, "1 rows repeat a name, the first of them row 2"),
    ],
)
def test_what_does_not_fit_is_refused(names: list[str], numbers: np.ndarray, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"the file: .*{expected}"):
        name_vectors(names, numbers, "the file")


def test_rows_are_aligned_by_name() -> None:
    named = name_vectors(["b", "a", "c%20d"], np.zeros((3, 2)), "the file")
    for urls in (["a", "x", "c d", "b", "a"], pa.chunked_array([["a", "x"], ["c d", "b", "a"]])):
        rows = align_rows(named, urls)
        assert rows.dtype == np.int64
        assert rows.tolist() == [1, -1, 2, 0, 1]
    assert align_rows(named, []).tolist() == []


@given(st.lists(st.text(min_size=1), unique=True, max_size=20), st.lists(st.text(min_size=1), max_size=20))
def test_aligned_rows_have_the_wanted_names(names: list[str], urls: list[str]) -> None:
    rows = align_rows(name_vectors(names, np.zeros((len(names), 1), np.float32), "the file"), urls)
    for url, row in zip(urls, rows, strict=True):
        assert row >= 0 or url not in names
        assert row < 0 or names[row] in (url, re.sub(r"[\x00-\x20]", lambda m: f"%{ord(m[0]):02X}", url))
