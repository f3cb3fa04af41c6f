"""A map of the item vectors: the most frequent pages of an export laid out in two dimensions, grouped, with neighbours.

Pages are compared by direction, without their bias and after the mean of the vectors is taken off: a vector added to all items
moves all of a user's scores alike and changes no ranking, so what items share says nothing of them. The layout is t-SNE on the
leading principal components, exact, on at most MAX_PAGES points: a few seconds whatever the export's size. Nothing is drawn at
random: the same vectors give the same map.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tasks.export.export import EXPORT_MANIFEST, path_of
from tasks.export.vector_files import directions_of
from trainer.system.files import read_json

MAX_PAGES = 1200
LAYOUT_STEPS = 500
MIN_LAYOUT_PAGES = 24  # below, neighbourhoods are too small for t-SNE: the two leading components say as much

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Pages:
    """Pages of an export, the most frequent first: N urls, counts (N,), directions (N, D) of length 1."""

    urls: list[str]
    counts: NDArray[np.int64]
    directions: Matrix
    num_items: int


def read_pages(export_dir: Path, max_pages: int = MAX_PAGES) -> Pages:
    """The `max_pages` most frequent pages of an export, read by the row groups that hold them.

    Only these are drawn and compared: the vectors of pages seen a few times are mostly chance. Rows that are zero or
    not finite point nowhere and are left out.
    """
    manifest = read_json(export_dir / EXPORT_MANIFEST)
    names = [f"item_vectors/{name}" for name in manifest["item_files"]]
    files = [pq.ParquetFile(path_of(export_dir, manifest, name)) for name in names]
    if not files:
        return Pages([], np.zeros(0, np.int64), np.zeros((0, 1), np.float32), 0)
    counts = np.concatenate([file.read(["count"])["count"].to_numpy().astype(np.int64) for file in files])
    vector_size = files[0].schema_arrow.field("vector").type.list_size
    wanted: NDArray[np.int64] = np.sort(np.argsort(-counts, kind="stable")[:max_pages])
    urls: list[str] = []
    vectors = [np.zeros((0, vector_size), np.float32)]
    start = 0
    for file in files:
        for group in range(file.num_row_groups):
            num_rows = file.metadata.row_group(group).num_rows
            rows = wanted[(wanted >= start) & (wanted < start + num_rows)] - start
            if len(rows):
                table = file.read_row_group(group, columns=["url", "vector"]).take(rows)
                urls += table["url"].to_pylist()
                flat = table["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
                vectors.append(flat.astype(np.float32).reshape(-1, vector_size))
            start += num_rows
    directions, is_usable = point_apart(directions_of(np.concatenate(vectors), manifest))
    order = np.argsort(-counts[wanted], kind="stable")
    order = order[is_usable[order]]
    return Pages([urls[ix] for ix in order], counts[wanted][order], directions[order], len(counts))


def point_apart(X: Matrix) -> tuple[Matrix, NDArray[np.bool_]]:
    """Directions (N, D) of the vectors X (N, D) seen from their mean, and which rows (N,) have one."""
    is_finite = np.asarray(np.isfinite(X).all(axis=1))
    if is_finite.sum() >= MIN_LAYOUT_PAGES:  # the mean of a few vectors is no background but the vectors themselves
        X = X - X[is_finite].mean(axis=0)
    directions, is_usable = unit_rows(np.where(is_finite[:, None], X, 0))
    return directions, is_usable


def unit_rows(X: Matrix) -> tuple[Matrix, NDArray[np.bool_]]:
    """X (N, D) with rows of length 1, and which rows (N,) have a direction."""
    lengths = np.linalg.norm(X, axis=1)
    is_usable: NDArray[np.bool_] = lengths > 0
    return (X / np.where(is_usable, lengths, 1)[:, None]).astype(np.float32), is_usable


def principal_components(X: Matrix, num: int) -> Matrix:
    """X (N, D) centred and seen along its `num` leading components: (N, num), zeros where there are fewer.

    The sign of each is fixed by its largest entry, so that equal data gives equal pictures.
    """
    centred = X - X.mean(axis=0)
    U, S, _ = np.linalg.svd(centred, full_matrices=False)
    components = (U * S)[:, :num]
    signs = np.sign(components[np.abs(components).argmax(axis=0), np.arange(components.shape[1])])
    out = np.zeros((len(X), num), np.float32)
    out[:, : components.shape[1]] = components * np.where(signs == 0, 1, signs)
    return out


def lay_out(directions: Matrix) -> Matrix:
    """Places (N, 2) in the unit square for directions (N, D): near means alike."""
    if len(directions) < 2:
        return np.full((len(directions), 2), 0.5, np.float32)
    # On several threads these small products mostly wait for each other, on a busy machine for minutes; nor are their bits the
    # same on every number of threads.
    with threadpool_limits(1):
        components = principal_components(directions, 30)
        Y = components[:, :2]
        if len(directions) >= MIN_LAYOUT_PAGES:
            Y = principal_components(spread_neighbours(components), 2)
    low, high = Y.min(axis=0), Y.max(axis=0)
    extent = np.where(high - low > 1e-6, high - low, 1)
    return np.clip((Y - (low + high) / 2) / extent + 0.5, 0, 1).astype(np.float32)


def spread_neighbours(X: Matrix) -> Matrix:
    """t-SNE (van der Maaten and Hinton 2008) of X (N, C) into (N, 2): gradient descent with momentum and gains."""
    num = len(X)
    P = neighbour_shares(X, perplexity=min(30.0, (num - 1) / 3))
    Y = X[:, :2] * np.float32(1e-2 / max(float(X[:, 0].std()), 1e-12))
    step = np.zeros_like(Y)
    gains = np.ones_like(Y)
    rate = max(num / 48, 10.0)
    for ix in range(LAYOUT_STEPS):
        is_early = ix < LAYOUT_STEPS // 4
        gradient = layout_gradient(P * 12 if is_early else P, Y)
        gains = np.where(np.sign(gradient) == np.sign(step), gains * 0.8, gains + 0.2).clip(0.01)
        step = (0.5 if is_early else 0.8) * step - rate * gains * gradient
        Y = Y + step
        Y = Y - Y.mean(axis=0)
    return Y


def layout_gradient(P: Matrix, Y: Matrix) -> Matrix:
    """Gradient (N, 2) of the divergence between shares P (N, N) and those of the places Y (N, 2)."""
    squares = (Y * Y).sum(axis=1)
    ones = np.ones_like(squares)
    Q = np.column_stack([-2 * Y, squares + 1, ones]) @ np.column_stack([Y, ones, squares]).T  # 1 + distance ** 2
    np.maximum(Q, 1, out=Q)  # float32 loses small distances far from the middle
    np.reciprocal(Q, out=Q)
    np.fill_diagonal(Q, 0)
    W = (P - Q / Q.sum(dtype=np.float64).astype(np.float32)) * Q
    return 4 * (W.sum(axis=1)[:, None] * Y - W @ Y)


def neighbour_shares(X: Matrix, perplexity: float) -> Matrix:
    """Symmetric shares P (N, N), summing to 1: how much each pair are neighbours, by Gaussians of equal perplexity."""
    squares = (X * X).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares[None] - 2 * X @ X.T, 0).astype(np.float64)
    np.fill_diagonal(distances, np.inf)
    distances -= distances.min(axis=1, keepdims=True)
    precision = np.ones(len(X))
    low, high = np.zeros(len(X)), np.full(len(X), np.inf)
    for _ in range(40):  # bisection for the precision whose entropy is log(perplexity), all rows at once
        shares = np.exp(-distances * precision[:, None])
        shares /= shares.sum(axis=1, keepdims=True)
        entropy = -np.sum(shares * np.log(np.maximum(shares, 1e-30)), axis=1)
        is_wide = entropy > np.log(perplexity)
        low = np.where(is_wide, precision, low)
        high = np.where(is_wide, high, precision)
        precision = np.where(np.isinf(high), precision * 2, (low + high) / 2)
    return ((shares + shares.T) / (2 * len(X))).astype(np.float32)


def divide_map(places: Matrix, counts: NDArray[np.int64], num_regions: int) -> NDArray[np.int64]:
    """The region 0..R-1 of each place (N, 2), region 0 with the most frequent page: k-means on the map itself.

    On the map, not on the vectors: a few odd vectors would take a region each. It starts from pages that are frequent
    and far from each other.
    """
    if len(places) == 0:
        return np.zeros(0, np.int64)
    centres = places[:1]
    weights = np.sqrt(counts)
    while len(centres) < min(num_regions, len(places)):
        distances = np.linalg.norm(places[:, None] - centres[None], axis=2).min(axis=1)
        centres = np.vstack([centres, places[(weights * distances).argmax()]])
    for _ in range(30):
        regions = np.linalg.norm(places[:, None] - centres[None], axis=2).argmin(axis=1)
        members = [places[regions == region] for region in range(len(centres))]
        centres = np.stack([m.mean(axis=0) if len(m) else c for m, c in zip(members, centres, strict=True)])
    _, first, regions = np.unique(regions, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[regions].astype(np.int64)


def nearest_pages(pages: Pages, ix: int, num: int) -> list[tuple[int, float]]:
    """The `num` pages nearest to page `ix` and their cosines, nearest first."""
    cosines = pages.directions @ pages.directions[ix]
    cosines[ix] = -np.inf
    order = np.argsort(-cosines, kind="stable")[: min(num, len(cosines) - 1)]
    return [(int(other), float(cosines[other])) for other in order]
