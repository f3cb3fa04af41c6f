"""The pictures of the report: training curves, the map of the item vectors, and the nearest neighbours of some items.

Pages are compared by the cosine of their vectors, without the bias and after subtracting the mean vector. A vector added to all
items shifts all scores of a user equally and changes no ranking, so the mean carries no information. The layout is t-SNE on the
leading principal components of at most MAX_PAGES points, which takes half a second for an export of any size. It draws nothing
at random and uses one thread, so the same vectors give the same map.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from surf2vec.tasks.export.vector_files import directions_of
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.release.release_reader import VECTOR_COLUMNS, decode_vectors, unit_rows
from surf2vec.tasks.report.plots import Chart, draw_lines
from surf2vec.tasks.root.records import TrainStep
from surf2vec.tasks.root.wording import format_short, shown

NUM_SECTIONS = 8
NUM_CARDS = 8
NEIGHBOUR_GAP = (0.25, 0.25)  # between the pages whose neighbours are listed, as shares of the map
NUM_NEIGHBOURS = 6
NAME_CHARS = 34
TITLE_CHARS = 300
LABEL_CHARS = {"label": 24, "phone": 16}
LABEL_GAPS = {"label": (0.22, 0.035), "phone": (0.36, 0.07)}  # between labels, as shares of the map's width and height
MAX_PAGES = 800
LAYOUT_STEPS, LAYOUT_RATE, MOMENTUM = 300, 50.0, 0.8
EXAGGERATED_STEPS, EXAGGERATION = 100, 12  # of the attraction, in the first steps, so that clusters form
NUM_CLOSE = 15  # nearest neighbours of a page that attract it
ONE_THREAD = 1  # with several, small products mostly wait for each other, and the bits depend on the number of threads
MIN_LAYOUT_PAGES = 24  # with fewer, neighbourhoods are too small for t-SNE: the two leading components are as good

Matrix = NDArray[np.float32]
MAX_PARTS = 6
OTHER = "elsewhere"
_SCHEME = re.compile(r"^[a-z][a-z0-9+.\-]*://(?:www\.)?", re.IGNORECASE)
_EXTENSION = re.compile(r"(?<=[^./])\.(?:s?html?|php\d?|aspx?|jsp|cgi|txt)$", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")


def draw_training(train: TrainStep) -> dict[str, Chart | None]:
    """Return `{"loss", "trail", "lags", "rate"}`: losses over epochs of the interest, or of the only part, and of the trail;
    the weight of each lag of the trail; tokens per second over time. None for a chart without values.
    """
    points = [point for point in train.curve if point.get("epoch") is not None]
    timed = [point for point in points if point.get("seconds") is not None]
    longest = max((point["seconds"] for point in timed), default=0)
    unit, factor = ("seconds", 1) if longest < 180 else ("minutes", 60) if longest < 3 * 3600 else ("hours", 3600)

    def losses(prefix: str) -> Chart | None:
        names = {"training": "loss", "held out": "heldout_loss"}
        curves = {name: [point.get(prefix + key) for point in points] for name, key in names.items()}
        return draw_lines([point["epoch"] for point in points], curves, "epoch", format_short, "{:.4g}".format)

    lags = range(1, len(train.lags) + 1)
    times, rates = ([point["seconds"] / factor for point in timed], [point.get("tokens_per_second") for point in timed])
    return {
        "loss": losses(""),
        "trail": losses("trail_"),
        "lags": draw_lines(lags, {"": train.lags}, "pages before the next", format_short, format_short, from_zero=True),
        "rate": draw_lines(times, {"": rates}, f"{unit} of training", format_short, format_short, from_zero=True),
    }


def draw_items(export_dir: Path | None) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the map of an export's pages and the neighbours of some pages; (None, []) if there are no item vectors.

    The map has `dots` (x and y as shares of its sides, radius, colour, name, tooltip), `labels` (rows of dots by the class of the
    label), the `legend` of the colours, which are sections of the site (colour, name, number of pages; empty if there are none),
    and the export's `num_items`. The neighbours are given for some frequent pages far apart on the map: `name`, `title`, `count`,
    and `near`, the nearest pages as (name, title, cosine).
    """
    pages = read_pages(export_dir) if export_dir else None
    if not pages or not pages.urls:
        return None, []
    places = lay_out(pages.directions)
    names, counts = short_names(pages.urls, NAME_CHARS), pages.counts.tolist()
    urls = [shorten(shown(url[: 4 * TITLE_CHARS]), TITLE_CHARS) for url in pages.urls]
    titles = [f"{url} · {number:,} events" for url, number in zip(urls, counts, strict=True)]
    colours, legend = choose_colours(pages.urls)
    radii = (2.2 + 6.3 * np.sqrt(np.maximum(pages.counts, 0) / max(counts[0], 1))).round(1).tolist()
    item_map = {
        "dots": list(zip(*places.T.tolist(), radii, colours, names, titles, strict=True)),
        "labels": {
            kind: [(ix, shorten(names[ix], LABEL_CHARS[kind])) for ix in thin_out(places, gap)]
            for kind, gap in LABEL_GAPS.items()
        },
        "legend": legend,
        "num_items": pages.num_items,
    }
    neighbours: list[dict[str, Any]] = []
    for ix in thin_out(places, NEIGHBOUR_GAP)[:NUM_CARDS]:
        near = [(names[other], titles[other], cosine) for other, cosine in nearest_pages(pages, ix, NUM_NEIGHBOURS)]
        if near:
            neighbours.append({"name": names[ix], "title": urls[ix], "count": counts[ix], "near": near})
    return item_map, neighbours


def choose_colours(urls: list[str]) -> tuple[list[int], list[tuple[int, str, int]]]:
    """Return the colour of each page, and the legend: colour, section of the site, number of pages; empty without sections."""
    found = sections(urls, NUM_SECTIONS)
    if not found:
        return [0] * len(urls), []
    sizes = Counter(found)
    biggest = [name for name, _ in sizes.most_common() if name != OTHER]
    colours = {name: ix for ix, name in enumerate(biggest)} | {OTHER: NUM_SECTIONS}
    return [colours[name] for name in found], [(ix, name, sizes[name]) for name, ix in colours.items() if sizes[name]]


def thin_out(places: Matrix, gap: tuple[float, float]) -> list[int]:
    """Return the rows of places (N, 2) that are not within `gap` (width, height) of an earlier such row."""
    kept: list[int] = []
    for row in range(len(places)):
        if not (np.abs(places[kept] - places[row]) < gap).all(axis=1).any():
            kept.append(row)
    return kept


@dataclass(frozen=True)
class Pages:
    """Pages of an export, the most frequent first: N urls, counts (N,), unit vectors `directions` (N, D)."""

    urls: list[str]
    counts: NDArray[np.int64]
    directions: Matrix
    num_items: int


def read_pages(export_dir: Path, max_pages: int = MAX_PAGES) -> Pages:
    """Return the `max_pages` most frequent pages of an export. Reads only the row groups that contain them.

    Only these are drawn and compared, because vectors of rarely seen pages are mostly noise. Vectors that are zero or
    not finite have no direction and are left out.
    """
    release = open_folder(export_dir)
    files = [pq.ParquetFile(release.path(f"item_vectors/{name}")) for name in release.manifest["item_files"]]
    counts = np.concatenate([np.zeros(0, np.int64), *(file.read(["count"])["count"].to_numpy() for file in files)])
    wanted: NDArray[np.int64] = np.sort(np.argsort(-counts, kind="stable")[:max_pages])
    if not len(wanted):
        return Pages([], counts, np.zeros((0, 1), np.float32), 0)
    tables, start = [], 0
    for file in files:
        for group in range(file.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            rows = wanted[(wanted >= start) & (wanted < stop)] - start
            if len(rows):
                tables.append(file.read_row_group(group, columns=["url", *VECTOR_COLUMNS]).take(rows))
            start = stop
    table = pa.concat_tables(tables)
    directions, is_usable = centre_directions(directions_of(decode_vectors(table), release.manifest))
    order = np.argsort(-counts[wanted], kind="stable")
    order = order[is_usable[order]]
    return Pages(table["url"].take(order).to_pylist(), counts[wanted][order], directions[order], len(counts))


def centre_directions(X: Matrix) -> tuple[Matrix, NDArray[np.bool_]]:
    """Return the unit vectors (N, D) of X (N, D) minus its mean, and a mask (N,) of the rows that have one."""
    is_finite = np.asarray(np.isfinite(X).all(axis=1))
    if is_finite.sum() >= MIN_LAYOUT_PAGES:  # the mean of few vectors depends on each of them
        X = X - X[is_finite].mean(axis=0)
    directions = unit_rows(np.where(is_finite[:, None], X, 0))
    return directions, np.asarray(directions.any(axis=1))


def lay_out(directions: Matrix) -> Matrix:
    """Return positions (N, 2) in the unit square for directions (N, D). Similar pages are close to each other."""
    if len(directions) < 2 or not np.ptp(directions, axis=0).any():
        return np.full((len(directions), 2), 0.5, np.float32)
    with threadpool_limits(ONE_THREAD):
        Y = leading_components(np.pad(directions, ((0, 0), (0, 1))), 30)  # two columns at least
        if len(Y) >= MIN_LAYOUT_PAGES:
            Y = leading_components(spread(Y), 2)
    low, high = Y[:, :2].min(axis=0), Y[:, :2].max(axis=0)
    extent = np.where(high - low > 1e-6, high - low, 1)
    return np.clip((Y[:, :2] - (low + high) / 2) / extent + 0.5, 0, 1).round(5).astype(np.float32)


def leading_components(X: Matrix, num: int) -> Matrix:
    """Return the leading principal components (N, at most num) of X (N, D). The largest element of a direction is positive."""
    X = X - X.mean(axis=0)
    V = np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :num]
    return X @ (V * np.sign(V[np.abs(V).argmax(axis=0), range(V.shape[1])]))


def spread(Y: Matrix) -> Matrix:
    """Return positions (N, 2) for points Y (N, D) by exact t-SNE (van der Maaten and Hinton, 2008), with O(N^2) work per step.

    The nearest neighbours of a point have equal weights, which gives much the same map as weights by their distances.
    """
    order = np.argsort(squared_distances(Y), axis=1, kind="stable")
    P = np.zeros((len(Y), len(Y)), np.float32)
    np.put_along_axis(P, order[:, : NUM_CLOSE + 1], 1, axis=1)  # a point itself is the nearest
    np.fill_diagonal(P, 0)
    P = (P + P.T) / (2 * P.sum())
    Z = Y[:, :2] * (1e-4 / max(Y[:, 0].std(), 1e-12))
    moved, gains = np.zeros_like(Z), np.ones_like(Z)
    for step in range(LAYOUT_STEPS):
        W = 1 / (1 + squared_distances(Z))
        np.fill_diagonal(W, 0)
        pull = ((EXAGGERATION if step < EXAGGERATED_STEPS else 1) * P - W / W.sum()) * W
        gradient = 4 * (pull.sum(axis=1, keepdims=True) * Z - pull @ Z)
        gains = np.maximum(np.where(gradient * moved < 0, gains + 0.2, gains * 0.8), 0.01).astype(np.float32)
        moved = MOMENTUM * moved - LAYOUT_RATE * gains * gradient
        Z = Z + moved
    return Z


def squared_distances(Y: Matrix) -> Matrix:
    """Return the squared distance (N, N) of each pair of points Y (N, D)."""
    squares = (Y * Y).sum(axis=1)
    return np.maximum(squares + squares[:, None] - 2 * (Y @ Y.T), 0)


def nearest_pages(pages: Pages, ix: int, num: int) -> list[tuple[int, float]]:
    """Return the `num` pages nearest to page `ix` and their cosines, nearest first."""
    cosines = pages.directions @ pages.directions[ix]
    cosines[ix] = -np.inf
    order = np.argsort(-cosines, kind="stable")[: min(num, len(cosines) - 1)]
    return [(int(other), float(cosines[other])) for other in order]


def page_parts(url: str) -> list[str]:
    """Return the host, if any, and the parts of the path, percent-decoded and printable; at least one part."""
    parts = [shown(unquote(part)).strip() for part in _SCHEME.sub("", url[:4096]).split("/")]
    return [part for part in parts if part] or ["/"]


def short_names(urls: Sequence[str], max_chars: int) -> list[str]:
    """Return a name for each URL: the last part of its path, or the last few if fewer have no letter or are not unique."""
    parts, names = [page_parts(url) for url in urls], [""] * len(urls)
    for depth in range(1, MAX_PARTS + 1):
        times = Counter(names)
        names = [
            "/".join(of_page[-depth:]) if times[name] > 1 or not _LETTER.search(name) else name
            for name, of_page in zip(names, parts, strict=True)
        ]
    return [shorten(_EXTENSION.sub("", name).replace("_", " ").strip() or name, max_chars) for name in names]


def shorten(name: str, max_chars: int) -> str:
    """Return `name` cut to `max_chars` in its middle, because pages often differ in their endings."""
    if len(name) <= max_chars:
        return name
    tail = max_chars // 3
    return f"{name[: max_chars - tail - 1].rstrip()}…{name[-tail:].lstrip()}"


def sections(urls: Sequence[str], max_sections: int) -> list[str] | None:
    """Return the site or section of each page; None if all pages are in one section or scattered over too many.

    Uses the first part of the URL that divides the pages: the host, or one of the first two directories. The
    `max_sections` largest sections keep their name; the others become OTHER.
    """
    folders = [page_parts(url)[:-1] if "/" in url else [] for url in urls]
    for depth in (1, 2, 3):
        names = ["/".join(parts[:depth]) if len(parts) >= depth else OTHER for parts in folders]
        biggest = dict(Counter(name for name in names if name != OTHER).most_common(max_sections))
        is_divided = len(biggest) >= 2 and max(biggest.values()) <= 0.8 * len(names)
        if is_divided and sum(biggest.values()) >= 0.6 * len(names):
            return [name if name in biggest else OTHER for name in names]
    return None
