"""A map of the item vectors: the most frequent pages of an export laid out in two dimensions, grouped, with neighbours.

Pages are compared by direction, without their bias and after the mean of the vectors is taken off: a vector added to all items
moves all of a user's scores alike and changes no ranking, so what items share says nothing of them. The layout is t-SNE on the
leading principal components of at most MAX_PAGES points: a few seconds whatever the export's size. The seed is fixed and
there is one thread: the same vectors give the same map.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tasks.export.export import EXPORT_MANIFEST, path_of
from tasks.export.index import unit_rows
from tasks.export.vector_files import directions_of
from trainer.system.files import read_json

MAX_PAGES = 1200
LAYOUT_STEPS = 500
ONE_THREAD = 1  # on several, small products mostly wait for each other, and their bits depend on how many there are
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
    directions = unit_rows(np.where(is_finite[:, None], X, 0))
    return directions, np.asarray(directions.any(axis=1))


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
    from sklearn.manifold import TSNE  # here, as it takes two seconds that only a report needs

    with threadpool_limits(ONE_THREAD):
        components = principal_components(directions, 30)
        Y = components[:, :2]
        if len(directions) >= MIN_LAYOUT_PAGES:
            start = Y * np.float32(1e-4 / max(float(Y[:, 0].std()), 1e-12))
            perplexity = min(30.0, (len(Y) - 1) / 3)
            spread = TSNE(perplexity=perplexity, init=start, max_iter=LAYOUT_STEPS, random_state=0)
            Y = principal_components(spread.fit_transform(components), 2)
    low, high = Y.min(axis=0), Y.max(axis=0)
    extent = np.where(high - low > 1e-6, high - low, 1)
    return np.clip((Y - (low + high) / 2) / extent + 0.5, 0, 1).astype(np.float32)


def divide_map(places: Matrix, num_regions: int) -> NDArray[np.int64]:
    """The region 0..R-1 of each place (N, 2), region 0 with the first page: k-means on the map itself.

    On the map, not on the vectors: a few odd vectors would take a region each.
    """
    if len(places) == 0:
        return np.zeros(0, np.int64)
    from sklearn.cluster import KMeans

    num_clusters = min(num_regions, len(np.unique(places, axis=0)))
    with threadpool_limits(ONE_THREAD):
        regions = KMeans(num_clusters, n_init=4, random_state=0).fit_predict(places)
    _, first, regions = np.unique(regions, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[regions].astype(np.int64)


def nearest_pages(pages: Pages, ix: int, num: int) -> list[tuple[int, float]]:
    """The `num` pages nearest to page `ix` and their cosines, nearest first."""
    cosines = pages.directions @ pages.directions[ix]
    cosines[ix] = -np.inf
    order = np.argsort(-cosines, kind="stable")[: min(num, len(cosines) - 1)]
    return [(int(other), float(cosines[other])) for other in order]
