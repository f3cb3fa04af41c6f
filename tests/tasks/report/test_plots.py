"""Line charts: round ticks, and curves within the picture."""

from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.report.plots import MAX_POINTS, Chart, draw_lines, nice_ticks

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


def draw(xs: list[float], *curves: list[float | None]) -> Chart:
    chart = draw_lines(xs, dict(zip("abc", curves, strict=False)), "x", "{:g}".format, "{:g}".format)
    assert chart
    return chart


def test_a_curve_has_the_places_of_its_values_and_gaps_are_left_out() -> None:
    chart = draw([0.0, 1.0, 2.0], [3.0, None, 1.0], [None, None, None])
    assert chart.curves == {"a": [(0.0, 0.0, "a 3, x 0"), (1.0, 1.0, "a 1, x 2")]}
    assert chart.y_ticks == [(1.0, "1"), (0.75, "1.5"), (0.5, "2"), (0.25, "2.5"), (0.0, "3")]
    assert draw_lines([0.0], {"a": [None]}, "x", str, str) is None


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=30))
def test_curves_stay_in_the_picture(points: list[tuple[float, float]]) -> None:
    points.sort()
    for x, y, _ in draw([x for x, _ in points], [y for _, y in points]).curves["a"]:
        assert 0 <= x <= 1
        assert -1e-9 <= y <= 1 + 1e-9


def test_of_many_points_some_are_drawn_with_the_first_and_the_last() -> None:
    points = draw([float(x) for x in range(5000)], [float(x) for x in range(5000)]).curves["a"]
    assert len(points) == MAX_POINTS
    assert (points[0][2], points[-1][2]) == ("a 0, x 0", "a 4999, x 4999")
