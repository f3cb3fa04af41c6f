"""Deltas: a literal example, and that one merged delta does what two do."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.trainer.model.rows import Rows
from surf2vec.trainer.store.layout import Delta, delta_in, lay_over, merge_deltas


def rows_of(numbers: list[int]) -> Rows:
    values = np.array(numbers, dtype=np.float32)
    return Rows(np.column_stack((values, -values)), values + 0.5)


def delta_of(numbers: dict[int, int]) -> Delta:
    return Delta(np.array(sorted(numbers), dtype=np.uint32), rows_of([numbers[place] for place in sorted(numbers)]))


def test_a_delta_changes_rows_and_adds_some() -> None:
    changed = lay_over(rows_of([1, 2, 3]), delta_of({1: 20, 3: 40}))
    assert changed.vectors.tolist() == [[1, -1], [20, -20], [3, -3], [40, -40]]
    assert changed.squares.tolist() == [1.5, 20.5, 3.5, 40.5]


def test_an_empty_delta_changes_nothing() -> None:
    assert lay_over(rows_of([1, 2]), delta_of({})).vectors.tolist() == rows_of([1, 2]).vectors.tolist()


places = st.dictionaries(st.integers(0, 9), st.integers(-99, 99))


@given(places, places)
def test_a_merged_delta_does_what_both_do(older: dict[int, int], newer: dict[int, int]) -> None:
    before = rows_of(list(range(5)))
    one_by_one = lay_over(lay_over(before, delta_of(older)), delta_of(newer))
    merged = merge_deltas(delta_of(older), delta_of(newer))
    at_once = lay_over(before, delta_in(merged.arrays()))
    assert at_once.vectors.tolist() == one_by_one.vectors.tolist()
    assert at_once.squares.tolist() == one_by_one.squares.tolist()
    assert (np.diff(merged.places.astype(np.int64)) > 0).all()
