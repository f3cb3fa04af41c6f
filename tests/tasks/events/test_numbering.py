"""Strings as numbers, and sorts of numbers."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from surf2vec.tasks.events.numbering import number_strings, sort_by

STRINGS = st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=20)


def test_strings_are_numbered_as_they_first_appear() -> None:
    codes, distinct = number_strings(pa.chunked_array([["b", "a", "b", None], ["c", "a", "", None]]))
    assert codes.tolist() == [0, 1, 0, 2, 3, 1, 4, 2]
    assert distinct.to_pylist() == ["b", "a", None, "c", ""]


@given(st.lists(STRINGS, max_size=4), st.sampled_from([pa.string(), pa.large_string()]))
def test_numbers_stand_for_their_strings(columns: list[list[str | None]], dtype: pa.DataType) -> None:
    codes, distinct = number_strings(pa.chunked_array([pa.array(column, dtype) for column in columns], dtype))
    found = distinct.to_pylist()
    assert len(set(found)) == len(found)
    assert [found[code] for code in codes] == [text for column in columns for text in column]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
@given(data=st.data())
def test_order_is_that_of_lexsort(dtype: type, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 20))
    few = st.integers(0, 3)
    wide = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    keys = [data.draw(arrays(dtype, length, elements=elements)) for elements in (few, wide, few)]
    assert sort_by(*keys).tolist() == np.lexsort(tuple(keys)).tolist()
