"""The index of nearest users that an export has: recall@10 and queries a second, beside exact search and faiss's HNSW.

`--users N` (1,000,000) rows of 128 numbers: mixtures of TOPICS directions with noise, at length 1. Up to a million users an
export compares every row in 16-bit floats; above, it has a quantised index, which is measured at the same number of rows.
Queries are rows, asked one at a time as `surf2vec similar` asks, by as many threads as faiss takes; a row is no neighbour of its
own. ratio: queries a second, over those of exact search in float32.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from tasks.export.index import NEIGHBOURS, build_index, plan_index, unit_rows
from tests.benchmarks.harness import run_benchmark

DIM, TOPICS, BATCH_ROWS, NUM_QUERIES = 128, 300, 32_768, 300
ROOM_BYTES = 4 * 10**9
HNSW_LINKS, HNSW_LOOKS = 32, 64
MIN_RECALL = 0.9


def draw_users(num_users: int) -> NDArray[np.float32]:
    """Rows float32[N, DIM] at length 1: four topics each, with weights that sum up to 1, and noise of half their length."""
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((TOPICS, DIM), np.float32)
    rows = np.empty((num_users, DIM), np.float32)
    for start in range(0, num_users, BATCH_ROWS):
        part = rows[start : start + BATCH_ROWS]
        weights = rng.dirichlet(np.ones(4), len(part)).astype(np.float32)
        part[:] = np.einsum("nk,nkd->nd", weights, topics[rng.integers(0, TOPICS, (len(part), 4))])
        lengths = np.linalg.norm(part, axis=1, keepdims=True) / np.sqrt(DIM)
        part += 0.5 * lengths * rng.standard_normal(part.shape, np.float32)
        part[:] = unit_rows(part)
    return rows


def ask(index: Any, units: NDArray[np.float32], asked: NDArray[np.int64]) -> tuple[NDArray[np.int64], float]:
    """The NEIGHBOURS + 1 nearest rows of each asked row, int64[n, 11], and queries a second."""
    index.search(units[asked[:1]], NEIGHBOURS + 1)
    started = time.perf_counter()
    found = [index.search(units[row : row + 1], NEIGHBOURS + 1)[1][0] for row in asked]
    return np.stack(found), len(asked) / (time.perf_counter() - started)


def share_found(exact: NDArray[np.int64], found: NDArray[np.int64], asked: NDArray[np.int64]) -> float:
    """Recall@10: the share of the exact neighbours, without the row itself, that were found."""
    shares = []
    for row, near, got in zip(asked.tolist(), exact.tolist(), found.tolist(), strict=True):
        expected = [one for one in near if one != row][:NEIGHBOURS]
        shares.append(len(set(expected) & set([one for one in got if one != row][:NEIGHBOURS])) / len(expected))
    return float(np.mean(shares))


def build_exported(units: NDArray[np.float32], quantise_above: int) -> tuple[str, Any]:
    """The kind and the index that an export has with this limit."""

    def read(every: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        rows = np.arange(0, len(units), every)
        for start in range(0, len(rows), BATCH_ROWS):
            some = rows[start : start + BATCH_ROWS]
            yield some, units[some]

    plan = plan_index(len(units), DIM, ROOM_BYTES, quantise_above)
    return plan.kind, build_index(plan, len(units), DIM, read)[0]


def build_hnsw(units: NDArray[np.float32]) -> tuple[str, Any]:
    index = faiss.IndexHNSWFlat(DIM, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.add(units)
    index.hnsw.efSearch = HNSW_LOOKS
    return f"hnsw{HNSW_LINKS}, efSearch {HNSW_LOOKS}", index


def measure_indexes(_: Path, users: int) -> list[dict[str, Any]]:
    """A case an index; exact search is the first."""
    units = draw_users(users)
    asked = np.random.default_rng(1).choice(users, min(NUM_QUERIES, users), replace=False)
    exact_index = faiss.IndexFlatIP(DIM)
    exact_index.add(units)
    exact, exact_rate = ask(exact_index, units, asked)
    del exact_index
    cases = []
    for build, mark in (
        (lambda: build_exported(units, users), MIN_RECALL),
        (lambda: build_exported(units, 0), MIN_RECALL),
        (lambda: build_hnsw(units), None),
    ):
        started = time.perf_counter()
        kind, index = build()
        seconds = time.perf_counter() - started
        found, rate = ask(index, units, asked)
        recall = share_found(exact, found, asked)
        cases.append({
            "case": f"{users:,} x {DIM}: {kind}", "ratio": rate / exact_rate,
            "mark": f"recall >= {mark}" if mark else "none", "passed": mark is None or recall >= mark,
            "recall@10": round(recall, 4), "queries/s": round(rate, 1), "exact queries/s": round(exact_rate, 1),
            "built in seconds": round(seconds, 1), "index MB": round(len(faiss.serialize_index(index)) / 1e6),
        })  # fmt: skip
        del index
    return cases


if __name__ == "__main__":
    sys.exit(run_benchmark("neighbour_index", __doc__ or "", measure_indexes, {"users": 1_000_000}))
