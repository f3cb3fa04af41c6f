"""The geometry of the report's drawings: scales, ticks, lines, labels that do not overlap. Pure; the template draws.

Coordinates are those of an SVG view box, y downwards. Colours and fonts are the style sheet's, so that one drawing
serves light, dark and paper.
"""

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_POINTS = 240
LEFT, RIGHT, TOP, BOTTOM = 44, 62, 14, 40
WIDTH, HEIGHT = 400, 250


@dataclass(frozen=True)
class Tick:
    """A value on an axis: where, and what is written there."""

    at: float
    label: str


@dataclass(frozen=True)
class Dot:
    """A measured value: where, and what is said of it when pointed at."""

    x: float
    y: float
    title: str


@dataclass(frozen=True)
class Line:
    """A named curve: `path` is SVG path data; `label_y` is where its name stands, right of its end."""

    name: str
    path: str
    area: str
    dots: tuple[Dot, ...]
    label_y: float


@dataclass(frozen=True)
class LineChart:
    """Curves over one axis, within WIDTH x HEIGHT."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    x_title: str


@dataclass(frozen=True)
class Series:
    """A curve to draw: values of None are gaps that are not drawn."""

    name: str
    values: Sequence[float | None]
    titles: Sequence[str]


@dataclass(frozen=True)
class Label:
    """A text beside a dot: where, and how it is anchored."""

    x: float
    y: float
    anchor: str
    text: str


def nice_ticks(low: float, high: float, num: int) -> list[float]:
    """About `num` round values that span [low, high]: steps of 1, 2 or 5 times a power of ten.

    Values that hardly differ are spanned by a tenth of their size, so that a flat curve is drawn flat.
    """
    if high - low < 1e-9 * max(1, abs(low)):
        high = low + 0.1 * (abs(low) if abs(low) > 1e-9 else 1)
    rough = (high - low) / num
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(ix * step, 12) for ix in range(first, last + 1)]


def thin_out(num: int, most: int = MAX_POINTS) -> list[int]:
    """At most `most` of the positions 0..num-1, evenly, with the first and the last."""
    if num <= most:
        return list(range(num))
    return [round(ix * (num - 1) / (most - 1)) for ix in range(most)]


def draw_lines(
    xs: Sequence[float],
    series: Sequence[Series],
    x_title: str,
    x_label: Callable[[float], str],
    y_label: Callable[[float], str],
    from_zero: bool = False,
) -> LineChart | None:
    """A chart of curves over `xs` (ascending), or None when there is nothing to draw."""
    values = [value for one in series for value in one.values if value is not None]
    if not values:
        return None
    y_ticks = nice_ticks(0.0 if from_zero else min(values), max(values), 4)
    x_ticks = [tick for tick in nice_ticks(0.0, max(xs), 5) if tick <= max(xs) * 1.001] or [0.0]
    x_low, x_high = 0.0, max(xs) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low)
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
        )

    lines = []
    for one in series:
        known = [ix for ix, value in enumerate(one.values) if value is not None]
        kept = [known[ix] for ix in thin_out(len(known))]
        dots = tuple(Dot(*place(xs[ix], float(one.values[ix] or 0)), one.titles[ix]) for ix in kept)
        if dots:
            lines.append(as_line(one.name, dots))
    return LineChart(
        tuple(Tick(place(tick, y_ticks[0])[0], x_label(tick)) for tick in x_ticks),
        tuple(Tick(place(x_low, tick)[1], y_label(tick)) for tick in y_ticks),
        tuple(separate_labels(lines)),
        x_title,
    )


def as_line(name: str, dots: tuple[Dot, ...]) -> Line:
    """A curve through the dots, and the area under it."""
    path = "M" + "L".join(f"{dot.x:g} {dot.y:g}" for dot in dots)
    floor = HEIGHT - BOTTOM
    area = f"{path}L{dots[-1].x:g} {floor}L{dots[0].x:g} {floor}Z"
    return Line(name, path, area, dots, dots[-1].y)


def separate_labels(lines: Sequence[Line], gap: float = 17) -> list[Line]:
    """The lines with their names moved apart, so that no two stand closer than `gap`."""
    out: list[Line] = []
    for line in sorted(lines, key=lambda line: line.label_y):
        at = max(line.label_y, out[-1].label_y + gap) if out else line.label_y
        out.append(Line(line.name, line.path, line.area, line.dots, at))
    overshoot = max([line.label_y - (HEIGHT - BOTTOM) for line in out], default=0)
    if overshoot > 0:
        out = [Line(line.name, line.path, line.area, line.dots, line.label_y - overshoot) for line in out]
    return [next(moved for moved in out if moved.name == line.name) for line in lines]


def text_width(text: str, font: float) -> float:
    """About how wide `text` is in a sans serif font of this size: a little too wide rather than too narrow."""
    ems = 0.0
    for char in text:
        if unicodedata.east_asian_width(char) in "WF":
            ems += 1.0
        elif char in "iljtfrI.,:;'|!()[]/ ·":
            ems += 0.34
        elif char in "mwMW@%…—":
            ems += 0.9
        else:
            ems += 0.7 if char.isupper() else 0.57
    return ems * font


def place_labels(
    dots: Sequence[tuple[float, float, float]],
    names: Sequence[str],
    size: tuple[float, float],
    font: float,
    most: int,
) -> list[Label]:
    """Labels for the first of `dots` (x, y, radius) that find room, at most `most`.

    None overlaps another or a labelled dot. Of the places right, left, above and below, that which covers the
    fewest dots is taken. `size` is the picture's.
    """
    labels: list[Label] = []
    taken: list[tuple[float, float, float, float]] = []
    for name, (x, y, radius) in zip(names, dots, strict=True):
        if len(labels) == most:
            break
        width, gap = text_width(name, font), radius + font * 0.3
        around = (x - radius, y - radius, x + radius, y + radius)
        if any(overlap(around, other) for other in taken):
            continue
        candidates = (
            ("start", x + gap, y + font * 0.35, x + gap),
            ("end", x - gap, y + font * 0.35, x - gap - width),
            ("middle", x, y - gap, x - width / 2),
            ("middle", x, y + gap + font * 0.75, x - width / 2),
        )
        best: tuple[int, Label, tuple[float, float, float, float]] | None = None
        for anchor, at_x, at_y, left in candidates:
            box = (left, at_y - font * 0.85, left + width, at_y + font * 0.25)
            inside = box[0] >= 0 and box[1] >= 0 and box[2] <= size[0] and box[3] <= size[1]
            if not inside or any(overlap(box, other) for other in taken):
                continue
            covered = sum(box[0] <= dot[0] <= box[2] and box[1] <= dot[1] <= box[3] for dot in dots)
            if best is None or covered < best[0]:
                best = (covered, Label(round(at_x, 1), round(at_y, 1), anchor, name), box)
        if best:
            labels.append(best[1])
            taken += [best[2], around]
    return labels


def overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two boxes (left, top, right, bottom) have a point in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
