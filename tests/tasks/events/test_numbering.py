"""Strings as numbers, and sorts of numbers."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tasks.events.numbering import Numbering, sort_by

TEXT = st.one_of(st.text("ab€\0", max_size=3), st.text("ab", min_size=7, max_size=10), st.text(max_size=40))
STRINGS = st.lists(st.one_of(st.none(), TEXT), max_size=20)


def test_strings_are_numbered_as_they_first_appear() -> None:
    numbering = Numbering()
    assert numbering.distinct().to_pylist() == []
    assert numbering.add(pa.array(["b", "a", "b", None])).tolist() == [0, 1, 0, -1]
    assert numbering.add(pa.array(["c", "a", "€", ""])).tolist() == [2, 1, 3, 4]
    assert numbering.distinct().to_pylist() == ["b", "a", "c", "€", ""]
    assert numbering.distinct_and_null().to_pylist() == ["b", "a", "c", "€", "", None]
    assert numbering.add(pa.array(["d", "b"])).tolist() == [5, 0]
    assert numbering.distinct().to_pylist() == ["b", "a", "c", "€", "", "d"]
    assert Numbering().distinct_and_null().to_pylist() == [None]
    assert Numbering().add(pa.array(["a"])).tolist() == [0]
    assert Numbering().add(pa.array([], pa.string())).tolist() == []


@given(st.lists(STRINGS, max_size=4), st.sampled_from([pa.string(), pa.large_string()]))
def test_numbers_stand_for_their_strings(columns: list[list[str | None]], dtype: pa.DataType) -> None:
    numbering = Numbering()
    codes = [numbering.add(pa.array(["before", *column], dtype).slice(1)) for column in columns]
    distinct = numbering.distinct().to_pylist()
    assert len(set(distinct)) == len(distinct) == numbering.num_distinct
    found = [[None if code < 0 else distinct[code] for code in column.tolist()] for column in codes]
    assert found == columns


def test_many_strings_are_numbered_as_arrow_does() -> None:
    random = np.random.default_rng(7)
    texts = np.array([f"{'x' * (number % 23)}{number}" for number in range(65_536)])
    columns = [pa.array(texts[random.integers(0, len(texts), size)]) for size in (5, 200_000, 1)]
    numbering = Numbering()
    codes = [code for column in columns for code in numbering.add(column).tolist()]
    by_arrow = pa.concat_arrays(columns).dictionary_encode()
    assert codes == by_arrow.indices.to_pylist()
    assert numbering.distinct().to_pylist() == by_arrow.dictionary.to_pylist()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
@given(data=st.data())
def test_order_is_that_of_lexsort(dtype: type, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 20))
    few = st.integers(0, 3)
    wide = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    keys = [data.draw(arrays(dtype, length, elements=elements)) for elements in (few, wide, few)]
    assert sort_by(*keys).tolist() == np.lexsort(tuple(keys)).tolist()
