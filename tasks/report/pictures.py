"""The pictures of the report: curves of the training, the map of pages, the neighbours of some of them."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.report.item_map import Matrix, Pages, divide_map, lay_out, nearest_pages, read_pages
from tasks.report.page_names import OTHER, sections, short_names, shorten, shown_url
from tasks.report.plots import Label, LineChart, Series, draw_lines, place_labels, thin_out
from tasks.root.story import Story
from tasks.root.wording import brief, count, duration

MAP_WIDTH, MAP_HEIGHT, MAP_MARGIN = 820, 640, 22
NUM_REGIONS = 8
NUM_NEIGHBOURS = 6
NAME_CHARS = 34
LEGEND_CHARS = 44
FONT, PHONE_FONT = 12.0, 25.0
NUM_LABELS, NUM_PHONE_LABELS = 64, 16


@dataclass(frozen=True)
class MapDot:
    """A page on the map; `group` chooses its colour, `title` says all that is known of it."""

    x: float
    y: float
    radius: float
    group: int
    name: str
    title: str


@dataclass(frozen=True)
class Group:
    """An entry of the map's legend: colour `group`, its name, how many pages."""

    group: int
    name: str
    num_pages: str


@dataclass(frozen=True)
class ItemMap:
    """The map: dots, labels for a wide and for a small screen, legend; `by_section` says what the colours mean."""

    dots: list[MapDot]
    labels: list[Label]
    phone_labels: list[Label]
    groups: list[Group]
    by_section: bool
    num_shown: str
    num_items: str


def draw_training(story: Story) -> dict[str, LineChart | None]:
    """`{"loss", "rate"}`: loss over epochs, tokens a second over time; None where there is nothing to draw."""
    curve = story.steps.train.curve if story.steps.train else []
    points = [point for point in curve if point.get("epoch") is not None]
    points = [points[ix] for ix in thin_out(len(points))]
    if not points:
        return {"loss": None, "rate": None}
    num_tokens = story.steps.corpus.num_tokens if story.steps.corpus else None
    rate_points = [point for point in points if point.get("seconds") is not None]
    unit, factor = choose_time_unit(max((point["seconds"] for point in rate_points), default=0))
    last_rate = rate_points[-1].get("tokens_per_second") if rate_points else None
    rate = Series(
        brief(last_rate or 0),
        [point.get("tokens_per_second") for point in rate_points],
        [f"{tell_rate(point)} at {duration(point['seconds'])}" for point in rate_points],
    )
    loss = [
        Series(
            name, [point.get(key) for point in points], [tell_loss(point, name, key, num_tokens) for point in points]
        )
        for name, key in (("training", "loss"), ("held out", "heldout_loss"))
    ]
    return {
        "loss": draw_lines([point["epoch"] for point in points], loss, "epoch", brief, lambda value: f"{value:.4g}"),
        "rate": draw_lines(
            [point["seconds"] / factor for point in rate_points],
            [rate],
            f"{unit} of training",
            brief,
            brief,
            from_zero=True,
        )
        if rate_points
        else None,
    }


def choose_time_unit(seconds: float) -> tuple[str, int]:
    """The unit an axis up to `seconds` is read in, and its seconds."""
    return ("seconds", 1) if seconds < 180 else ("minutes", 60) if seconds < 3 * 3600 else ("hours", 3600)


def tell_rate(point: dict[str, Any]) -> str:
    """`1.2 M tokens/s`."""
    rate = point.get("tokens_per_second")
    return "no rate" if rate is None else f"{brief(rate)} tokens/s"


def tell_loss(point: dict[str, Any], name: str, key: str, num_tokens: int | None) -> str:
    """What is said of a point of the loss curve when it is pointed at."""
    value = point.get(key)
    tokens = f", {count(point['epoch'] * num_tokens)} tokens" if num_tokens else ""
    alpha = f", learning rate {point['alpha']:.3g}" if point.get("alpha") is not None else ""
    return "" if value is None else f"{name} loss {value:.4f} at epoch {point['epoch']:.3g}{tokens}{alpha}"


def draw_items(export_dir: Path | None) -> tuple[ItemMap | None, list[dict[str, Any]]]:
    """The map of an export's pages and the neighbours of some; (None, []) where there are no item vectors."""
    pages = read_pages(export_dir) if export_dir else None
    if not pages or not pages.urls:
        return None, []
    places = lay_out(pages.directions)
    regions = divide_map(places, NUM_REGIONS)
    anchors = [int(np.flatnonzero(regions == region)[0]) for region in range(regions.max() + 1)]
    names = short_names(pages.urls, NAME_CHARS)
    item_map = draw_map(pages, places, regions, names)
    neighbours = list_neighbours(pages, anchors, names, None if item_map.by_section else regions.tolist())
    return item_map, neighbours


def draw_map(pages: Pages, places: Matrix, regions: np.ndarray, names: list[str]) -> ItemMap:
    """The map of the pages: coloured by section of the site where URLs tell one, else by region."""
    found = sections(pages.urls, NUM_REGIONS)
    if found is None:
        groups = regions.tolist()
        titles = {ix: name_region(regions, ix, names) for ix in range(int(regions.max()) + 1)}
    else:
        biggest = [name for name, _ in Counter(found).most_common() if name != OTHER]
        order = {name: ix for ix, name in enumerate(biggest)} | {OTHER: NUM_REGIONS}
        groups = [order[name] for name in found]
        titles = {ix: shorten(name, LEGEND_CHARS) for name, ix in order.items()}
    sizes = Counter(groups)
    most = max(int(pages.counts[0]), 1)
    dots = [
        MapDot(
            x=round(MAP_MARGIN + float(place[0]) * (MAP_WIDTH - 2 * MAP_MARGIN), 1),
            y=round(MAP_MARGIN + float(place[1]) * (MAP_HEIGHT - 2 * MAP_MARGIN), 1),
            radius=round(2.2 + 6.3 * float(np.sqrt(max(int(pages.counts[ix]), 0) / most)), 1),
            group=groups[ix],
            name=names[ix],
            title=f"{shown_url(pages.urls[ix])} · {count(int(pages.counts[ix]))} events",
        )
        for ix, place in enumerate(places)
    ]
    return ItemMap(
        dots=dots,
        labels=label_dots(dots, regions, 1.0, FONT, NUM_LABELS, NAME_CHARS),
        phone_labels=label_dots(dots, regions, 1.7, PHONE_FONT, NUM_PHONE_LABELS, 20),
        groups=[Group(ix, titles[ix], count(sizes[ix])) for ix in sorted(titles) if sizes[ix]],
        by_section=found is not None,
        num_shown=count(len(places)),
        num_items=count(pages.num_items),
    )


def label_dots(
    dots: list[MapDot], regions: np.ndarray, zoom: float, font: float, most: int, max_chars: int
) -> list[Label]:
    """Labels for the most frequent pages of every region in turn, so that no part of the map is left without."""
    seen: Counter[int] = Counter()
    turns = []
    for region in regions.tolist():
        turns.append(seen[region])
        seen[region] += 1
    order = sorted(range(len(dots)), key=lambda ix: (turns[ix], ix))
    spots = [(dots[ix].x, dots[ix].y, dots[ix].radius * zoom) for ix in order]
    names = [shorten(dots[ix].name, max_chars) for ix in order]
    return place_labels(spots, names, (MAP_WIDTH, MAP_HEIGHT), font, most)


def name_region(regions: np.ndarray, region: int, names: list[str]) -> str:
    """A region is called after its most frequent pages: up to three, as many as fit a line."""
    first, *others = [names[ix] for ix in np.flatnonzero(regions == region)[:3]]
    for name in others:
        if len(first) + len(name) <= LEGEND_CHARS:
            first = f"{first}, {name}"
    return first


def list_neighbours(
    pages: Pages, anchors: list[int], names: list[str], groups: list[int] | None
) -> list[dict[str, Any]]:
    """For each anchor its `name`, `count`, `group` (colour, or None) and `near`: nearest pages with cosines."""
    cards = []
    for anchor in anchors:
        near = [
            {
                "name": names[ix],
                "title": f"{shown_url(pages.urls[ix])} · {count(int(pages.counts[ix]))} events",
                "cosine": f"{cosine:.2f}",
                "width": round(100 * min(max(cosine, 0.0), 1.0), 1),
            }
            for ix, cosine in nearest_pages(pages, anchor, NUM_NEIGHBOURS)
        ]
        cards.append(
            {
                "name": names[anchor],
                "title": shown_url(pages.urls[anchor]),
                "count": count(int(pages.counts[anchor])),
                "group": None if groups is None else groups[anchor],
                "near": near,
            }
        )
    return [card for card in cards if card["near"]]
