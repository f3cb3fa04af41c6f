"""The geometry of the drawings."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.report.plots import (
    HEIGHT,
    MAX_POINTS,
    WIDTH,
    draw_lines,
    nice_ticks,
    overlap,
    place_labels,
    text_width,
)

finite = st.floats(-1e9, 1e9)


def test_ticks_are_round() -> None:
    assert nice_ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert nice_ticks(2.39, 3.95, 4) == [2, 2.5, 3, 3.5, 4]


@given(finite, finite, st.integers(2, 8))
def test_ticks_span_the_values_and_are_few(one: float, other: float, num: int) -> None:
    low, high = min(one, other), max(one, other)
    ticks = nice_ticks(low, high, num)
    slack = 1e-6 * (abs(low) + abs(high) + 1)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 1 < len(ticks) <= 2 * num + 3


def draw(xs: list[float], *curves: list[float | None]):  # type: ignore[no-untyped-def]
    named = {f"curve {ix}": [(value, "said") for value in values] for ix, values in enumerate(curves)}
    return draw_lines(xs, named, "x", str, str)


def test_a_curve_goes_from_left_to_right_and_down() -> None:
    line = draw([0.0, 1.0, 2.0], [3.0, 2.0, 1.0]).lines[0]
    assert [dot.x for dot in line.dots] == sorted(dot.x for dot in line.dots)
    assert [dot.y for dot in line.dots] == sorted(dot.y for dot in line.dots)
    assert line.path.startswith("M")
    assert line.path.count("L") == 2


def test_gaps_are_left_out_and_nothing_is_none() -> None:
    chart = draw([0.0, 1.0, 2.0], [3.0, None, 1.0], [None, None, None])
    assert [len(line.dots) for line in chart.lines] == [2]
    assert draw([0.0], [None]) is None


def test_names_of_curves_that_end_together_stand_apart() -> None:
    lines = draw([0.0, 1.0], [2.0, 1.0], [2.0, 1.0], [3.0, 1.0]).lines
    places = sorted(line.label_y for line in lines)
    assert all(later - earlier >= 16.9 for earlier, later in pairwise(places))
    assert places[-1] <= HEIGHT


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=30))
def test_curves_stay_in_the_picture(points: list[tuple[float, float]]) -> None:
    points.sort()
    chart = draw([x for x, _ in points], [y for _, y in points])
    for dot in chart.lines[0].dots:
        assert 0 <= dot.x <= WIDTH
        assert 0 <= dot.y <= HEIGHT


def test_of_many_points_some_are_drawn_with_the_first_and_the_last() -> None:
    [line] = draw([float(x) for x in range(5000)], [float(x) for x in range(5000)]).lines
    few = draw([0.0, 4999.0], [0.0, 4999.0]).lines[0].dots
    assert len(line.dots) == MAX_POINTS
    assert [line.dots[0], line.dots[-1]] == few


dots = st.lists(st.tuples(st.floats(0, 300), st.floats(0, 200), st.floats(1, 8)), max_size=40)


@given(dots, st.integers(0, 20))
def test_labels_never_overlap_nor_leave_the_picture(spots: list[tuple[float, float, float]], most: int) -> None:
    labels = place_labels(spots, [f"page {ix}" for ix in range(len(spots))], (300, 200), 12, most)
    assert len(labels) <= most
    boxes = []
    for label in labels:
        width = text_width(label.text, 12)
        left = {"start": label.x, "end": label.x - width, "middle": label.x - width / 2}[label.anchor]
        boxes.append((left + 0.2, label.y - 10, left + width - 0.2, label.y + 2.8))
    for ix, box in enumerate(boxes):
        assert box[0] >= 0
        assert box[2] <= 300
        assert not any(overlap(box, other) for other in boxes[:ix])


def test_a_label_stands_where_it_covers_no_dot() -> None:
    crowd = [(100.0, 100.0, 3.0)] + [(115.0 + 5 * ix, 100.0, 2.0) for ix in range(5)]
    assert place_labels(crowd, ["a page", *"bcdef"], (300, 200), 12, 1)[0].anchor == "end"


@pytest.mark.parametrize(("narrow", "wide"), [("ill", "mmm"), ("abc", "日本語"), ("abc", "ABC")])
def test_wide_letters_are_wide(narrow: str, wide: str) -> None:
    assert text_width(narrow, 12) < text_width(wide, 12)
