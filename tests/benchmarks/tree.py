"""Hierarchical softmax: what a tree costs to build, what a token costs beside full softmax, and the loss that is paid.

build    10 million classes with Zipf counts: seconds and bytes of a tree without its parameters, the best of two.
a token  Seconds a token in one pass over users with 25 Zipf tokens each, plain gradient steps, beside full softmax: torch
         by matrix products for a batch of users, every row updated in place, the fastest of three batch sizes. 10
         million classes have 32 dimensions (1.3 GB of rows; 128 would be 5 GB), 100,000 have 128. Two threads, the sides
         in turn, the best of two.
loss     Where full softmax can be trained to the end: wikispeedia, 64 dimensions. The loss is the mean -log p of the
         held-out items over all classes, through `log_probabilities` or log_softmax. All learn by row-wise Adagrad with
         the same settings, those that are best for full softmax among a few; it takes the n-th token of 256 users at
         once, so that both sides see a user's tokens in order. The epoch with the lowest loss counts. Ratio: seconds
         until full softmax has an epoch's end with a loss as low as the tree's, by the tree's own: at equal loss.
         `loss above full` says what is lost where full softmax can be had, with its paired standard error.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig, config_from_dict
from surf2vec.trainer.draws import mix_array
from surf2vec.trainer.model.rows import EPSILON
from surf2vec.trainer.model.trees import (
    Tree,
    balanced_tree,
    huffman_tree,
    log_probabilities,
    tree_bytes,
    two_level_tree,
)
from surf2vec.trainer.store.tokens import Corpus
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import THREADS, find_log, held_out_rows, make_corpus
from tests.benchmarks.peers import KernelTraining, begin_kernel_training
from tests.trainer.model.tree_shapes import expected_rows

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

LOSSES: dict[str, int | None] = {"wikispeedia_unfinished": None, "gowalla_train": 1}
"""Logs of which losses are measured, and of how many of their 8 micro-partitions; None: all."""
LEARNING: dict[str, Any] = {"vector_size": 64, "epochs": 3, "alpha": 0.5, "min_alpha": 0.05, "l2": 4, "item_l2": 0} | {
    "recency": 0,
    "sample": 0,
    "bias": 0,
    "threads": THREADS,
    "parts": "interest",
}
TREE = {"hs": 1}
BATCH_USERS = 256
SHAPES: dict[str, dict[str, Any]] = {"two-level": {"tree": "two_level"}, "Huffman": {"tree": "huffman"}}
SWEEP: dict[str, dict[str, Any]] = {
    f"balanced, branching {b}": {"tree": "balanced", "tree_branching": b} for b in (2, 4, 8, 16, 64)
}


@dataclass(frozen=True)
class Trained:
    """losses float64[epochs, m]: of the held-out items after each epoch; the seconds of each epoch's training."""

    losses: NDArray[np.float64]
    seconds: list[float]

    @property
    def best(self) -> int:
        return int(self.losses.mean(axis=1).argmin())


class FullSoftmax:
    """Softmax over all classes by torch, for a batch of tokens at once.

    users float32[n, D], copied; classes begin at zero. Row-wise Adagrad with L2 on the users as in trainer/kernels, or plain
    gradient steps.
    """

    def __init__(self, users: NDArray[np.float32], num_classes: int, is_adagrad: bool, l2: float) -> None:
        self.users, self.classes = torch.from_numpy(users.copy()), torch.zeros(num_classes, users.shape[1])
        self.user_squares, self.class_squares = torch.zeros(len(users)), torch.zeros(num_classes)
        self.is_adagrad, self.l2 = is_adagrad, l2

    def step(self, rows: torch.Tensor, classes: torch.Tensor, alpha: float) -> None:
        """Learn one token of each of some users: `rows` and `classes`, int64[B], no row twice."""
        u = self.users[rows]
        p = torch.softmax(u @ self.classes.T, dim=1)
        p[torch.arange(len(rows)), classes] -= 1
        user_steps = -(p @ self.classes) - self.l2 * u
        if not self.is_adagrad:
            self.users[rows] += alpha * user_steps
            self.classes.addmm_(p.T, u, alpha=-alpha)
            return
        class_steps = -(p.T @ u)
        self.user_squares[rows] += user_steps.square().mean(dim=1)
        self.class_squares += class_steps.square().mean(dim=1)
        self.users[rows] += alpha * user_steps / torch.sqrt(self.user_squares[rows] + EPSILON)[:, None]
        self.classes += alpha * class_steps / torch.sqrt(self.class_squares + EPSILON)[:, None]

    def losses(self, rows: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.float64]:
        """-log p of one class a user, float64[m]."""
        losses = []
        for users, held in zip(
            torch.from_numpy(rows).split(BATCH_USERS), torch.from_numpy(classes).split(BATCH_USERS), strict=True
        ):
            losses.append(torch.nn.functional.cross_entropy(self.users[users] @ self.classes.T, held, reduction="none"))
        return torch.cat(losses).double().numpy()


def measure_trees(data: Path) -> list[dict[str, Any]]:
    """The cases of building, of cost and of loss."""
    torch.set_flush_denormal(True)  # full softmax's tiny probabilities: a hundred times slower without
    torch.set_num_threads(THREADS)
    counts = zipf_counts(MANY_CLASSES)
    cases = [time_build(name, build, counts) for name, build in BUILDERS.items()]
    for size in SIZES:
        cases += race_a_token(*size)
    for log, num_partitions in LOSSES.items():
        with tempfile.TemporaryDirectory() as folder:
            corpus = make_corpus(find_log(data, log, Path(folder)), Path(folder) / "root")
            cases += compare_losses(log, corpus, num_partitions)
    return cases


def zipf_counts(num_classes: int) -> NDArray[np.int64]:
    """Counts that fall with the rank, int64[num_classes], ten a class on average."""
    shares = 1 / np.arange(1, num_classes + 1)
    return np.maximum(shares * (10 * num_classes / shares.sum()), 1).astype(np.int64)


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
    counts = zipf_counts(num_classes)
    lengths = {"two_level": num_tokens, "huffman": 10 * num_tokens}
    trees = {shape: begin_tree_training(counts, num_dims, shape, length) for shape, length in lengths.items()}
    full = FullSoftmax(trees["two_level"].users.vectors[: max(batches)], num_classes, is_adagrad=False, l2=0)
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
    config = config_from_dict(plain | {"vector_size": num_dims, "tree": shape, "threads": THREADS} | TREE)
    training = KernelTraining(tokens, offsets, hashes, counts, config)
    training.items.outputs.vectors.fill(0.01)
    return training


def the_tree(training: KernelTraining) -> Tree:
    assert training.tree is not None
    return training.tree


def compare_losses(log: str, corpus: Corpus, num_partitions: int | None) -> list[dict[str, Any]]:
    """Full softmax and trees, trained and asked alike."""
    begin = partial(begin_kernel_training, corpus, num_partitions=num_partitions)
    asked = held_out_pairs(corpus, num_partitions or corpus.num_partitions)
    name = f"loss, {log.split('_')[0]}, {corpus.num_items:,} classes"
    full = train_full(begin(TrainConfig(**LEARNING)), *asked)
    cases: list[dict[str, Any]] = [{"case": f"{name}, full softmax"} | judge_loss(full, full, has_mark=False)]
    for shape, settings in (SHAPES if num_partitions else SHAPES | SWEEP).items():
        training = begin(TrainConfig(**LEARNING | TREE | settings))
        tree = the_tree(training)
        counts = np.bincount(training.tokens, minlength=corpus.num_items)
        case = judge_loss(train_tree(training, *asked), full, bool(num_partitions) and shape == "two-level")
        case |= {"depth": tree.max_depth, "rows a token": expected_rows(tree, counts)}
        cases.append({"case": f"{name}, {shape}"} | case)
    cases[0] |= {"depth": 1, "rows a token": float(corpus.num_items)}
    return cases


def held_out_pairs(corpus: Corpus, num_partitions: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and items of the held-out users in the first micro-partitions, int64[m] each."""
    items = [corpus.read(partition).held_out_items() for partition in range(num_partitions)]
    held = np.concatenate(items).astype(np.int64)
    return held_out_rows(corpus)[: len(held)], held


def judge_loss(side: Trained, full: Trained, has_mark: bool) -> dict[str, Any]:
    """One side beside full softmax."""
    above = side.losses[side.best] - full.losses[full.best]
    full_means = full.losses.mean(axis=1)
    as_low = np.flatnonzero(full_means <= side.losses[side.best].mean())
    full_epochs = int(as_low[0]) + 1 if len(as_low) else full.best + 1
    ratio = sum(full.seconds[:full_epochs]) / sum(side.seconds[: side.best + 1])
    return (
        {"ratio": ratio, "mark": f">= {COST_MARK} x full softmax" if has_mark else "none"}
        | {"passed": not has_mark or ratio >= COST_MARK, "loss": float(side.losses[side.best].mean())}
        | {"loss above full": float(above.mean()), "s.e.": float(above.std(ddof=1) / len(above) ** 0.5)}
        | {"epochs": side.best + 1, "seconds an epoch": min(side.seconds)}
    )


def train_tree(training: KernelTraining, rows: NDArray[np.int64], items: NDArray[np.int64]) -> Trained:
    """All epochs down a tree."""
    tree, losses, seconds = the_tree(training), [], []
    for epoch in range(training.config.epochs):
        seconds.append(training.train_epoch(epoch))
        losses.append(tree_losses(tree, training, rows, items))
    return Trained(np.array(losses), seconds)


def tree_losses(
    tree: Tree, training: KernelTraining, rows: NDArray[np.int64], items: NDArray[np.int64]
) -> NDArray[np.float64]:
    """-log p of one item a user, float64[m]."""
    losses = np.empty(len(rows))
    for start in range(0, len(rows), BATCH_USERS):
        batch = slice(start, start + BATCH_USERS)
        logs = log_probabilities(tree, training.items.outputs.vectors, training.users.vectors[rows[batch]])
        losses[batch] = -logs[np.arange(len(logs)), items[batch]]
    return losses


def train_full(training: KernelTraining, rows: NDArray[np.int64], items: NDArray[np.int64]) -> Trained:
    """All epochs by full softmax: the n-th token of BATCH_USERS users at once."""
    config, offsets = training.config, training.offsets
    full = FullSoftmax(training.users.vectors, len(training.sampling.keep), is_adagrad=True, l2=config.l2)
    lengths, rng = np.diff(offsets), np.random.default_rng(1)
    losses, seconds = [], []
    for epoch in range(config.epochs):
        start = time.perf_counter()
        for done, batch in alike_batches(lengths, rng):
            alpha = config.alpha - (config.alpha - config.min_alpha) * (epoch + done) / config.epochs
            for place in range(lengths[batch].max()):
                users = batch[lengths[batch] > place]
                tokens = training.tokens[offsets[users] + place].astype(np.int64)
                full.step(torch.from_numpy(users), torch.from_numpy(tokens), alpha)
        seconds.append(time.perf_counter() - start)
        losses.append(full.losses(rows, items))
    return Trained(np.array(losses), seconds)


def alike_batches(lengths: NDArray[np.int64], rng: np.random.Generator) -> Iterator[tuple[float, NDArray[np.int64]]]:
    """All users in batches of about the same length, in random order, each after the share of users that came before."""
    order = np.lexsort((rng.random(len(lengths)), lengths))
    batches = [order[start : start + BATCH_USERS] for start in range(0, len(order), BATCH_USERS)]
    for place, batch in enumerate(rng.permutation(len(batches))):
        yield place / len(batches), batches[batch]


if __name__ == "__main__":
    sys.exit(
        run_benchmark(
            measure_trees,
            small={"MANY_CLASSES": 10_000, "SIZES": ((10_000, 32, (8, 16), 400),), "LOSSES": {}, "REPEATS": 1},
        )
    )
