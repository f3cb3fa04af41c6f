"""The index of nearest users that an export has: what it finds and how fast, beside exact search and beside faiss's HNSW.

`--users N` rows of 128 numbers as users have: mixtures of four of 300 topics, with noise of half their length, at length 1. Each
kind is built at the same rows: `flat-fp16`, which compares every row, the quantised lists that an export has above a million
users, and a graph (HNSW), which it never has. `picked`: the kind that `surf2vec run` picks by itself at this number of users with
ROOM_BYTES free. Queries are rows of the table, asked one at a time by one thread; a row is no neighbour of its own.

recall@10   of the ten nearest by exact search in float32; the mark is for the picked kind: what a release finds of the truth
ratio       queries a second, over those of exact search
bytes       of the index on disk; seconds to build it, learning and adding together
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from surf2vec.tasks.export.export import QUANTISE_ABOVE
from surf2vec.tasks.export.index import BATCH_ROWS, NEIGHBOURS, build_index, plan_index
from surf2vec.tasks.release.release_reader import unit_rows
from tests.benchmarks.harness import run_benchmark

DIM, NUM_TOPICS, TOPICS_A_USER, NOISE, NUM_QUERIES = 128, 300, 4, 0.5, 300
ROOM_BYTES = 4 * 10**9
HNSW_LINKS, HNSW_LOOKS = 32, 64
MIN_RECALL = 0.9


def draw_users(num_users: int) -> NDArray[np.float32]:
    """Rows float32[N, DIM] at length 1, of topics whose weights sum up to 1; the same at every call."""
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((NUM_TOPICS, DIM), np.float32)
    rows = np.empty((num_users, DIM), np.float32)
    for start in range(0, num_users, BATCH_ROWS):
        part = rows[start : start + BATCH_ROWS]
        weights = rng.dirichlet(np.ones(TOPICS_A_USER), len(part)).astype(np.float32)
        chosen = topics[rng.integers(0, NUM_TOPICS, (len(part), TOPICS_A_USER))]
        part[:] = np.einsum("nk,nkd->nd", weights, chosen)
        lengths = np.linalg.norm(part, axis=1, keepdims=True) / np.sqrt(DIM)
        part += NOISE * lengths * rng.standard_normal(part.shape, np.float32)
        part[:] = unit_rows(part)
    return rows


def ask(index: Any, units: NDArray[np.float32], asked: NDArray[np.int64]) -> tuple[list[list[int]], float]:
    """The NEIGHBOURS nearest rows of each asked row without itself, and queries a second of one thread."""
    num_threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    index.search(units[asked[:1]], NEIGHBOURS + 1)
    started = time.perf_counter()
    found = [index.search(units[row : row + 1], NEIGHBOURS + 1)[1][0].tolist() for row in asked]
    rate = len(asked) / (time.perf_counter() - started)
    faiss.omp_set_num_threads(num_threads)
    return [[one for one in near if one != row][:NEIGHBOURS] for row, near in zip(asked, found, strict=True)], rate


def share_found(exact: list[list[int]], found: list[list[int]]) -> float:
    """Recall@10."""
    return float(np.mean([len(set(near) & set(got)) / len(near) for near, got in zip(exact, found, strict=True)]))


def build_exported(units: NDArray[np.float32], quantise_above: int) -> tuple[str, Any]:
    """The kind and the index that an export has with this limit."""

    def read(every: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        rows = np.arange(0, len(units), every)
        for start in range(0, len(rows), BATCH_ROWS):
            some = rows[start : start + BATCH_ROWS]
            yield some, units[some]

    plan = plan_index(len(units), DIM, ROOM_BYTES, quantise_above)
    return plan.kind, build_index(plan, len(units), DIM, read)[0]


def build_graph(units: NDArray[np.float32]) -> tuple[str, Any]:
    index = faiss.IndexHNSWFlat(DIM, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.add(units)
    index.hnsw.efSearch = HNSW_LOOKS
    return f"hnsw{HNSW_LINKS}, efSearch {HNSW_LOOKS}", index


def measure_indexes(_: Path, users: int) -> list[dict[str, Any]]:
    """A case a kind."""
    units = draw_users(users)
    asked = np.random.default_rng(1).choice(users, min(NUM_QUERIES, users), replace=False)
    exact_index = faiss.IndexFlatIP(DIM)
    exact_index.add(units)
    exact, exact_rate = ask(exact_index, units, asked)
    del exact_index
    picked = plan_index(users, DIM, ROOM_BYTES, QUANTISE_ABOVE).kind
    builds: list[Callable[[], tuple[str, Any]]] = [
        lambda: build_exported(units, users),
        lambda: build_exported(units, 0),
        lambda: build_graph(units),
    ]
    cases = []
    for build in builds:
        started = time.perf_counter()
        kind, index = build()
        seconds = time.perf_counter() - started
        found, rate = ask(index, units, asked)
        recall, is_picked = share_found(exact, found), kind == picked
        cases.append({
            "case": f"{users:,} x {DIM}: {kind}", "ratio": rate / exact_rate,
            "mark": f"recall@10 >= {MIN_RECALL}" if is_picked else "none", "passed": recall >= MIN_RECALL or not is_picked,
            "picked": is_picked, "recall@10": recall, "queries/s": rate, "exact queries/s": exact_rate,
            "seconds to build": seconds, "bytes": len(faiss.serialize_index(index)),
        })  # fmt: skip
        del index
    return cases


if __name__ == "__main__":
    sys.exit(run_benchmark("neighbour_index", __doc__ or "", measure_indexes, {"users": 1_000_000}))
