"""The geometry of the report's charts: scales, ticks, lines, labels that do not overlap. Pure functions; the template draws.

Coordinates are those of an SVG view box, y downwards. The style sheet sets colours and fonts, so that one drawing
serves light mode, dark mode and paper.
"""

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

MAX_POINTS = 240
LEFT, RIGHT, TOP, BOTTOM = 44, 62, 14, 40
WIDTH, HEIGHT = 400, 250
Box = tuple[float, float, float, float]
# The widths of letters, a little too wide rather than too narrow.
_EMS = dict.fromkeys("iljtfrI.,:;'|!()[]/ ·", 0.34) | dict.fromkeys("mwMW@%…—", 0.9)


class Dot(NamedTuple):
    """A measured value: its position and its tooltip."""

    x: float
    y: float
    title: str


class Line(NamedTuple):
    """A named curve: `path` is SVG path data; `label_y` is the height of its name, right of its end."""

    name: str
    path: str
    dots: list[Dot]
    label_y: float


class LineChart(NamedTuple):
    """Curves over one axis, within WIDTH x HEIGHT. Ticks: position on the axis, and text."""

    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    lines: list[Line]
    x_title: str


class Label(NamedTuple):
    """A text beside a dot: its position and its anchor."""

    x: float
    y: float
    anchor: str
    text: str


def nice_ticks(low: float, high: float, num: int) -> list[float]:
    """Returns about `num` round values that span [low, high], in steps of 1, 2 or 5 times a power of ten.

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
    curves: Mapping[str, Sequence[tuple[float | None, str]]],
    x_title: str,
    x_label: Callable[[float], str],
    y_label: Callable[[float], str],
    from_zero: bool = False,
) -> LineChart | None:
    """Returns a chart of curves over `xs` (ascending), or None if no curve has a value.

    curves: name → (value, tooltip) for each x. A value of None is not drawn. At most MAX_POINTS of a curve are drawn.
    """
    values = [value for curve in curves.values() for value, _ in curve if value is not None]
    if not values:
        return None
    y_ticks = nice_ticks(0.0 if from_zero else min(values), max(values), 4)
    x_ticks = [tick for tick in nice_ticks(0.0, max(xs), 5) if tick <= max(xs) * 1.001] or [0.0]

    def place(x: float, y: float) -> tuple[float, float]:
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return (
            round(LEFT + x / (max(xs) or 1.0) * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
        )

    lines = []
    for name, curve in curves.items():
        known = [(x, value, title) for x, (value, title) in zip(xs, curve, strict=True) if value is not None]
        kept = np.linspace(0, len(known) - 1, min(len(known), MAX_POINTS)).round().astype(int).tolist()
        dots = [Dot(*place(x, value), title) for x, value, title in (known[ix] for ix in kept)]
        if dots:
            lines.append(Line(name, "M" + "L".join(f"{dot.x:g} {dot.y:g}" for dot in dots), dots, dots[-1].y))
    return LineChart(
        [(place(tick, y_ticks[0])[0], x_label(tick)) for tick in x_ticks],
        [(place(0.0, tick)[1], y_label(tick)) for tick in y_ticks],
        separate_labels(lines),
        x_title,
    )


def separate_labels(lines: list[Line], gap: float = 17) -> list[Line]:
    """Returns the lines with their names moved apart to a distance of at least `gap`."""
    places: dict[str, float] = {}
    last = -math.inf
    for line in sorted(lines, key=lambda line: line.label_y):
        last = places[line.name] = max(line.label_y, last + gap)
    overshoot = max(0.0, last - (HEIGHT - BOTTOM))
    return [line._replace(label_y=places[line.name] - overshoot) for line in lines]


def text_width(text: str, font: float) -> float:
    """Returns the estimated width of `text` in a sans serif font of this size."""
    wide = {char: 1.0 for char in text if unicodedata.east_asian_width(char) in "WF"}
    return font * sum((_EMS | wide).get(char, 0.7 if char.isupper() else 0.57) for char in text)


def place_labels(
    dots: Sequence[tuple[float, float, float]],
    names: Sequence[str],
    size: tuple[float, float],
    font: float,
    most: int,
) -> list[Label]:
    """Returns labels for the first of `dots` (x, y, radius) that have room, at most `most`.

    No label overlaps another label or a labelled dot. Of the positions right, left, above and below, it takes the one
    that covers the fewest dots. `size` is that of the picture.
    """
    labels: list[Label] = []
    taken: list[Box] = []
    for name, (x, y, radius) in zip(names, dots, strict=True):
        if len(labels) == most:
            break
        width, gap = text_width(name, font), radius + font * 0.3
        around = (x - radius, y - radius, x + radius, y + radius)
        if any(overlap(around, other) for other in taken):
            continue
        candidates = []
        for anchor, at_x, at_y, left in (
            ("start", x + gap, y + font * 0.35, x + gap),
            ("end", x - gap, y + font * 0.35, x - gap - width),
            ("middle", x, y - gap, x - width / 2),
            ("middle", x, y + gap + font * 0.75, x - width / 2),
        ):
            box = (left, at_y - font * 0.85, left + width, at_y + font * 0.25)
            inside = box[0] >= 0 and box[1] >= 0 and box[2] <= size[0] and box[3] <= size[1]
            if inside and not any(overlap(box, other) for other in taken):
                covered = sum(box[0] <= dot[0] <= box[2] and box[1] <= dot[1] <= box[3] for dot in dots)
                candidates.append((covered, Label(round(at_x, 1), round(at_y, 1), anchor, name), box))
        if candidates:
            _, label, box = min(candidates, key=lambda candidate: candidate[0])
            labels.append(label)
            taken += [box, around]
    return labels


def overlap(one: Box, other: Box) -> bool:
    """Returns whether two boxes (left, top, right, bottom) overlap or touch."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
