"""Strings as numbers, and sorts of numbers."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tasks.numbering import Numbering, sort_by

STRINGS = st.lists(st.one_of(st.none(), st.text("ab€", max_size=2)), max_size=20)


def test_strings_are_numbered_as_they_first_appear() -> None:
    numbering = Numbering()
    assert numbering.add(pl.Series(["b", "a", "b", None])).tolist() == [0, 1, 0, -1]
    assert numbering.add(pl.Series(["c", "a", "€"])).tolist() == [2, 1, 3]
    assert numbering.distinct().to_list() == ["b", "a", "c", "€"]
    assert Numbering().add(pl.Series(["a"])).tolist() == [0]


@given(st.lists(STRINGS, max_size=4))
def test_numbers_stand_for_their_strings(columns: list[list[str | None]]) -> None:
    numbering = Numbering()
    codes = [numbering.add(pl.Series(column, dtype=pl.String)) for column in columns]
    distinct = numbering.distinct().to_list()
    assert len(set(distinct)) == len(distinct) == numbering.num_distinct
    found = [[None if code < 0 else distinct[code] for code in column.tolist()] for column in codes]
    assert found == columns


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
@given(data=st.data())
def test_order_is_that_of_lexsort(dtype: type, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 20))
    few = st.integers(0, 3)
    wide = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    keys = [data.draw(arrays(dtype, length, elements=elements)) for elements in (few, wide, few)]
    assert sort_by(*keys).tolist() == np.lexsort(tuple(keys)).tolist()
