"""Builds the index of nearest users: it compares every row if they are few, and is a quantised index of faiss otherwise.

A quantised index has about sqrt(N) lists. It puts each row into the list with the nearest centre, as a short code of the
residual. A search reads `nprobe` lists only and so misses some neighbours; recall@10 measures that. The rows are read several
times, a batch at a time: a sample, to learn centres and codes; all rows, to choose their lists and to find the exact neighbours
of some rows; and all rows again, to fill lists of the exact length (growing lists would take half as much memory again).
The same rows give the same bytes on any number of threads.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.system.units import size

BATCH_ROWS = 32_768
NEIGHBOURS = 10
FLAT = "flat-fp16"
MAX_NPROBE = 64
_TRAIN_ROWS_PER_LIST = 64
_TRAIN_CODE_ROWS = 100_000  # faiss learns the codes from at most so many
_MIN_PRODUCT_ROWS = 10_000  # a product quantiser's 256 centres are learned from a sample
_LIBRARY_BYTES = 96 * 2**20  # scores that faiss holds, and memory that the allocator keeps after the training
_NUM_QUERIES = 500
_TOLERANCE = 0.01

ReadRows = Callable[[int], Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]]
"""Reads every n-th group of rows (1: all) in batches: row numbers int64[n], ascending, and unit rows float32[n, D]."""


@dataclass(frozen=True)
class IndexPlan:
    """The index to build: faiss's name for it, its lists (0: every row is compared), the number of rows to train it on.

    peak_bytes: memory while it is built; index_bytes: size of its file.
    """

    kind: str
    factory: str
    num_lists: int
    sample_rows: int
    peak_bytes: int
    index_bytes: int
    reason: str = ""


def plan_index(num_rows: int, dim: int, room_bytes: int, quantise_above: int) -> IndexPlan:
    """Return the most exact index of `num_rows` rows of `dim` dimensions that fits `room_bytes`, with the reason.

    Raises ResourceError, with the numbers and the way out, if the smallest does not fit.
    """
    plans = [_plan_lists(num_rows, dim, *kind) for kind in _list_kinds(num_rows, dim)]
    if num_rows <= quantise_above:
        # Every row is compared, in 16-bit floats: half the bytes of float32, cosines are off by about 1e-4.
        index_bytes = num_rows * 2 * dim
        plans.insert(0, IndexPlan(FLAT, "SQfp16", 0, 0, index_bytes + _batch_bytes(num_rows, dim), index_bytes))
    rows = f"{num_rows:,} users x {dim} dimensions"
    for ix, plan in enumerate(plans):
        if plan.peak_bytes <= room_bytes:
            too_large = "".join(f"; {other.kind} would take {size(other.peak_bytes)}" for other in plans[:ix])
            why = f"{rows} take {size(plan.peak_bytes)} of the {size(room_bytes)} that are free{too_large}"
            return replace(plan, reason=f"{plan.kind}, as {why}")
    least = min(plans, key=lambda plan: plan.peak_bytes)
    raise ResourceError(
        f"the smallest index of {rows}, {least.kind}, needs {size(least.peak_bytes)} of memory while it is built and "
        f"{size(max(0, room_bytes))} of the budget are free: raise --host-memory, or set export.pca_dim lower"
    )


def build_index(plan: IndexPlan, num_rows: int, dim: int, read_rows: ReadRows) -> tuple[Any, dict[str, Any]]:
    """Return the index and its manifest entry: `kind`, and for a quantised index `nprobe` and `recall_at_10`."""
    import faiss  # commands that only read an export do without

    index: Any = faiss.index_factory(dim, plan.factory, faiss.METRIC_INNER_PRODUCT)
    if plan.num_lists == 0:
        index.codes.resize(num_rows * index.code_size)  # reserves memory: growing would hold the codes twice
        index.codes.resize(0)
        for _, units in read_rows(1):
            index.add(units)
        return index, {"kind": plan.kind}
    query_rows, queries = _train(index, plan, num_rows, read_rows)
    exact = faiss.ResultHeap(len(queries), NEIGHBOURS + 1, keep_max=True)
    lists: list[NDArray[np.int32]] = []
    for rows, units in read_rows(1):
        lists.append(index.quantizer.search(units, 1)[1][:, 0].astype(np.int32))
        near = faiss.knn(queries, units, min(NEIGHBOURS + 1, len(rows)), metric=faiss.METRIC_INNER_PRODUCT)
        exact.add_result(near[0], rows[near[1]])
    exact.finalize()
    # Reserve memory in each list for its rows: a list keeps its memory when it is emptied.
    counts = sum(np.bincount(chosen, minlength=index.nlist) for chosen in lists)
    for number, count in enumerate(np.asarray(counts).tolist()):
        index.invlists.resize(number, count)
        index.invlists.resize(number, 0)
    for (_, units), chosen in zip(read_rows(1), lists, strict=True):
        own = chosen.astype(np.int64)
        index.add_core(len(units), faiss.swig_ptr(units), None, faiss.swig_ptr(own))
    recalls = {}
    for nprobe in (2**power for power in range(MAX_NPROBE.bit_length())):
        if nprobe <= index.nlist:
            index.nprobe = nprobe
            recalls[nprobe] = _measure_recall(index, query_rows, queries, exact.I)
    # The smallest nprobe with a recall at most _TOLERANCE below the best.
    enough = max(recalls.values()) - _TOLERANCE
    index.nprobe = next(nprobe for nprobe, recall in recalls.items() if recall >= enough)
    return index, {"kind": plan.kind, "nprobe": index.nprobe, "recall_at_10": round(recalls[index.nprobe], 4)}


def _list_kinds(num_rows: int, dim: int) -> list[tuple[str, int]]:
    """Return faiss's names of the codes and their bytes per row, the most exact first."""
    kinds = [("SQ8", dim), ("SQ6", -(-dim * 6 // 8))]
    if num_rows >= _MIN_PRODUCT_ROWS:
        # A product quantiser finds more than a scalar one of as many bytes (4 bits a number: 0.77, not 0.67, of the ten
        # nearest of 300,000 rows x 64), but is slower to fill. np: its centres are not sorted, as only other searches need that.
        kinds += [(f"PQ{dim // width}np", dim // width) for width in (2, 4) if dim % width == 0]
    return kinds


def _plan_lists(num_rows: int, dim: int, code: str, code_bytes: int) -> IndexPlan:
    """Plan an index with sqrt(N) lists, rounded to a power of two."""
    num_lists = 2 ** round(np.log2(max(1, num_rows)) / 2)
    sample_rows = min(num_rows, num_lists * _TRAIN_ROWS_PER_LIST)
    learn_bytes = (2 * sample_rows + 3 * min(sample_rows, _TRAIN_CODE_ROWS)) * 4 * dim
    # Codes and row numbers in lists of exact length, a tenth for the allocator, and the list number of each row.
    index_bytes = num_rows * (code_bytes + 8) + num_lists * 4 * dim
    fill_bytes = index_bytes * 11 // 10 + num_rows * 4
    peak_bytes = max(learn_bytes, fill_bytes) + _batch_bytes(num_rows, dim) + _LIBRARY_BYTES
    kind = f"ivf{num_lists}-{code.lower().removesuffix('np')}"
    return IndexPlan(kind, f"IVF{num_lists},{code}", num_lists, sample_rows, peak_bytes, index_bytes)


def _batch_bytes(num_rows: int, dim: int) -> int:
    """Return the bytes of a batch as read, decoded and at length 1, and of the one before, which Arrow keeps."""
    return min(num_rows, BATCH_ROWS) * 4 * dim * 4


def _train(
    index: Any, plan: IndexPlan, num_rows: int, read_rows: ReadRows
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Train lists and codes on a sample of all rows; return some of it for measuring recall: row numbers and unit rows."""
    every = max(1, num_rows // plan.sample_rows)
    parts = list(read_rows(every))
    rows, sample = (np.concatenate(side) for side in zip(*parts, strict=True))
    parts.clear()
    index.cp.min_points_per_centroid = 1  # small tables may be quantised, too: suppresses the warning about few rows
    if hasattr(index, "pq"):
        index.pq.cp.min_points_per_centroid = 1
    index.train(sample)
    chosen = np.unique(np.linspace(0, len(rows) - 1, _NUM_QUERIES).astype(np.int64))
    return rows[chosen], sample[chosen].copy()


def _measure_recall(
    index: Any, query_rows: NDArray[np.int64], queries: NDArray[np.float32], exact: NDArray[np.int64]
) -> float:
    """Return the share of the exact neighbours, int64[n, NEIGHBOURS + 1], that the index finds; the query itself is left out."""
    _, found = index.search(queries, NEIGHBOURS + 1)
    shares = []
    for own, near, indexed in zip(query_rows.tolist(), exact.tolist(), found.tolist(), strict=True):
        expected = [row for row in near if row not in (own, -1)][:NEIGHBOURS]
        got = [row for row in indexed if row != own][: len(expected)]
        shares.append(len(set(expected) & set(got)) / max(1, len(expected)))
    return float(np.mean(shares))
