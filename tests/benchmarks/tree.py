"""Hierarchical softmax: what a tree costs to build and what a token costs beside full softmax.

build    10 million classes with Zipf counts: seconds and bytes of a tree without its parameters, the best of two.
a token  Seconds a token in one pass over users with 25 Zipf tokens each, plain gradient steps, beside full softmax: torch
         by matrix products for a batch of users, every row updated in place, the fastest of three batch sizes. 10
         million classes have 32 dimensions (1.3 GB of rows; 128 would be 5 GB), 100,000 have 128. Two threads, the sides
         in turn, the best of two.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surf2vec.tasks.training.forecast import zipf_counts
from surf2vec.trainer.config import config_from_dict
from surf2vec.trainer.draws import mix_array
from surf2vec.trainer.model.trees import Tree, balanced_tree, huffman_tree, tree_bytes
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import THREADS
from tests.benchmarks.peers import KernelTraining
from tests.trainer.model.tree_shapes import expected_rows, two_level_tree

MANY_CLASSES, BUILD_SECONDS = 10_000_000, 5.0
BUILDERS: dict[str, Callable[[NDArray[np.int64]], Tree]] = {
    "Huffman": huffman_tree,
    "two-level": two_level_tree,
    "balanced, branching 16": partial(balanced_tree, branching=16),
}
SIZES = ((MANY_CLASSES, 32, (8, 16, 32), 4_000), (100_000, 128, (64, 256, 1024), 50_000))
"""Classes, dimensions, batches of full softmax, tokens of the two-level pass (Huffman's is ten times as long)."""
TOKENS_A_USER = 25
COST_MARK = 25
REPEATS = 2


class FullSoftmax:
    """Softmax over all classes by torch, for a batch of tokens at once, by plain gradient steps.

    users float32[n, D], copied; classes begin at zero.
    """

    def __init__(self, users: NDArray[np.float32], num_classes: int) -> None:
        self.users, self.classes = torch.from_numpy(users.copy()), torch.zeros(num_classes, users.shape[1])

    def step(self, rows: torch.Tensor, classes: torch.Tensor, alpha: float) -> None:
        """Learn one token of each of some users: `rows` and `classes`, int64[B], no row twice."""
        u = self.users[rows]
        p = torch.softmax(u @ self.classes.T, dim=1)
        p[torch.arange(len(rows)), classes] -= 1
        self.users[rows] -= alpha * (p @ self.classes)
        self.classes.addmm_(p.T, u, alpha=-alpha)


def measure_trees(data: Path) -> list[dict[str, Any]]:
    """The cases of building, of cost and of loss."""
    torch.set_flush_denormal(True)  # full softmax's tiny probabilities: a hundred times slower without
    torch.set_num_threads(THREADS)
    counts = zipf_counts(MANY_CLASSES, 10 * MANY_CLASSES)
    cases = [time_build(name, build, counts) for name, build in BUILDERS.items()]
    for size in SIZES:
        cases += race_a_token(*size)
    return cases


def time_build(name: str, build: Callable[[NDArray[np.int64]], Tree], counts: NDArray[np.int64]) -> dict[str, Any]:
    """Seconds and bytes of one tree."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        tree = build(counts)
        seconds.append(time.perf_counter() - start)
    return (
        make_case(
            f"build {len(counts):,} classes, {name}",
            BUILD_SECONDS / min(seconds),
            f"<= {BUILD_SECONDS:g} s",
            min(seconds) <= BUILD_SECONDS,
        )
        | {"seconds": min(seconds), "MB": tree_bytes(tree) / 1e6, "depth": tree.max_depth}
        | {"rows a token": expected_rows(tree, counts)}
    )


def race_a_token(num_classes: int, num_dims: int, batches: tuple[int, ...], num_tokens: int) -> list[dict[str, Any]]:
    """Two-level and Huffman beside full softmax: seconds a token."""
    counts = zipf_counts(num_classes, 10 * num_classes)
    lengths = {"two_level": num_tokens, "huffman": 10 * num_tokens}
    trees = {shape: begin_tree_training(counts, num_dims, shape, length) for shape, length in lengths.items()}
    full = FullSoftmax(trees["two_level"].users.vectors[: max(batches)], num_classes)
    tokens = torch.from_numpy(trees["two_level"].tokens.astype(np.int64))
    seconds: dict[str, list[float]] = {name: [] for name in (*trees, "full")}
    for _ in range(REPEATS):
        for shape, training in trees.items():
            seconds[shape].append(training.train_epoch(0) / len(training.tokens))
        for batch in batches:
            start = time.perf_counter()
            full.step(torch.arange(batch), tokens[:batch], alpha=0.01)
            seconds["full"].append((time.perf_counter() - start) / batch)
    cases = []
    for shape, name in (("two_level", "two-level"), ("huffman", "Huffman")):
        ratio = min(seconds["full"]) / min(seconds[shape])
        is_marked = shape == "two_level"
        case = (
            make_case(
                f"a token, {num_classes:,} classes x {num_dims}, {name}",
                ratio,
                f">= {COST_MARK} x full softmax" if is_marked else "none",
                not is_marked or ratio >= COST_MARK,
            )
            | {"us a token": 1e6 * min(seconds[shape]), "full us a token": 1e6 * min(seconds["full"])}
            | {"rows a token": expected_rows(the_tree(trees[shape]), counts)}
        )
        cases.append(case)
    return cases


def begin_tree_training(counts: NDArray[np.int64], num_dims: int, shape: str, num_tokens: int) -> KernelTraining:
    """The kernel before a pass over tokens drawn by `counts`; its rows are written once, so that their memory is there."""
    drawn = np.random.default_rng(1).random(num_tokens) * counts.sum()
    tokens = np.searchsorted(np.cumsum(counts), drawn, side="right").astype(np.int32)
    offsets = np.arange(0, num_tokens + 1, TOKENS_A_USER)
    hashes = mix_array(np.arange(1, len(offsets), dtype=np.uint64))
    plain = {"optimizer": "sgd", "alpha": 0.05, "min_alpha": 0.005, "l2": 0, "recency": 0, "sample": 0, "epochs": 1}
    plain |= {"trail_weight": 0}
    config = config_from_dict(plain | {"vector_size": num_dims, "tree": shape, "threads": THREADS, "hs": 1})
    training = KernelTraining(tokens, offsets, hashes, counts, config)
    training.items.outputs.vectors.fill(0.01)
    return training


def the_tree(training: KernelTraining) -> Tree:
    assert training.tree is not None
    return training.tree


if __name__ == "__main__":
    sys.exit(
        run_benchmark(
            measure_trees, small={"MANY_CLASSES": 10_000, "SIZES": ((10_000, 32, (8, 16), 400),), "REPEATS": 1}
        )
    )
