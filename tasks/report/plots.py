"""Line charts of the report: round ticks, and curves as shares of both axes. The template draws them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

MAX_POINTS = 240


class Chart(NamedTuple):
    """Curves by name. A point is (x, y, tooltip), a tick (place, text). Places are shares of an axis, from left or top."""

    x_title: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    curves: dict[str, list[tuple[float, float, str]]]


def nice_ticks(low: float, high: float, num: int) -> list[float]:
    """Return about `num` round values that span [low, high], in steps of 1, 2 or 5 times a power of ten.

    If low and high hardly differ, the span is a tenth of their size, so that a flat curve is drawn flat.
    """
    if high - low < 1e-9 * max(1, abs(low)):
        high = low + 0.1 * (abs(low) if abs(low) > 1e-9 else 1)
    rough = (high - low) / num
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(ix * step, 12) for ix in range(first, last + 1)]


def draw_lines(
    xs: Sequence[float],
    curves: Mapping[str, Sequence[float | None]],
    x_title: str,
    show_x: Callable[[float], str],
    show_y: Callable[[float], str],
    from_zero: bool = False,
) -> Chart | None:
    """Return a chart of the curves' values at `xs` (ascending), or None if no curve has a value.

    A value of None is not drawn. At most MAX_POINTS of a curve are drawn.
    """
    values = [value for curve in curves.values() for value in curve if value is not None]
    if not values:
        return None
    y_ticks = nice_ticks(0.0 if from_zero else min(values), max(values), 4)
    x_ticks = [tick for tick in nice_ticks(0.0, max(xs), 5) if tick <= max(xs) * 1.001] or [0.0]
    width, height = max(xs) or 1.0, y_ticks[-1] - y_ticks[0]
    drawn = {}
    for name, curve in curves.items():
        known = [(x, y) for x, y in zip(xs, curve, strict=True) if y is not None]
        kept = np.linspace(0, len(known) - 1, min(len(known), MAX_POINTS)).round().astype(int).tolist()
        drawn[name] = [
            (x / width, (y_ticks[-1] - y) / height, f"{name} {show_y(y)}, {x_title} {show_x(x)}".strip())
            for x, y in (known[ix] for ix in kept)
        ]
    return Chart(
        x_title,
        [(tick / width, show_x(tick)) for tick in x_ticks],
        [((y_ticks[-1] - tick) / height, show_y(tick)) for tick in y_ticks],
        {name: points for name, points in drawn.items() if points},
    )
