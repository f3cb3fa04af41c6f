"""The training curve: loss on a fixed sample of tokens, and on the held-out items.

A micro-partition is measured at the end of its pass, while it is in memory: the curve needs no extra reads from disk.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import HELDOUT, counter, draws, epoch_key, user_keys
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import Sampling
from surf2vec.trainer.model.trees import Tree, path
from surf2vec.trainer.store.tokens import Histories

MAX_SAMPLE_USERS = 512  # of a micro-partition: 8 of them give a standard error of about 1 %
MIN_SAMPLE_USERS, SAMPLE_SHARE = 64, 8  # of small ones at most every eighth, so that measuring stays cheap
MAX_POINTS = 100
MEASURED_PARTS = ("interest", "trail")
NUM_SUMS = 4 * len(MEASURED_PARTS)
MAX_SAMPLES = 2 * MAX_SAMPLE_USERS  # a training token and a held-out item each


@dataclass(frozen=True)
class Targets:
    """The objective's settings and tables, for all items or an item block."""

    config: TrainConfig
    sampling: Sampling
    tree: Tree | None
    is_class_in_block: NDArray[np.bool_] | None = None

    def make_pass(
        self, histories: Histories, order: NDArray[np.int64], alphas: NDArray[np.float32], recency: float, epoch: int,
        update_items: bool = True,
    ) -> Pass:  # fmt: skip
        """Return a pass in an epoch over the users `order` of histories, whose tokens are rows of these tables."""
        return Pass(
            self.config, histories.tokens, histories.starts, histories.ends, histories.hashes, order, alphas, self.sampling,
            self.tree, recency, epoch_key(self.config.seed, epoch), update_items,
        )  # fmt: skip

    def has(self, items: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these items, or rows of an item block, are learned with this block, bool[m]."""
        if self.tree is not None:
            return np.ones(len(items), dtype=bool) if self.is_class_in_block is None else self.is_class_in_block[items]
        return items < len(self.sampling.aliases)


@np.errstate(over="ignore", invalid="ignore")  # where vectors are no longer finite, training is refused in words
def token_losses(
    targets: Targets,
    users: NDArray[np.float32],
    outputs: NDArray[np.float32],
    items: NDArray[np.int64],
    negatives: NDArray[np.int64],
    rows: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Return the loss of each token, float64[m], predicted by its user alone; users [m, D], items [m], negatives [m, K].

    rows [m, 1 + K]: where `outputs` has the rows of item and negatives, if not by their numbers.
    """
    if targets.tree is not None:  # nothing is drawn
        return tree_losses(targets.tree, users, outputs, items)
    from surf2vec.trainer.kernels.cpu import score_rows  # numba takes half a second to import

    scores = score_rows(users, outputs, np.column_stack((items, negatives)) if rows is None else rows)
    if targets.config.objective == "sampled_softmax":
        return softmax_losses(scores, items, negatives, targets.sampling.corrections, targets.config.handicap)
    scores = scores.astype(np.float64)
    return np.logaddexp(0, -scores[:, 0]) + np.logaddexp(0, scores[:, 1:]).sum(axis=1)


def softmax_losses(
    scores: NDArray[np.float32],
    items: NDArray[np.int64],
    negatives: NDArray[np.int64],
    corrections: NDArray[np.float32],
    handicap: float,
) -> NDArray[np.float64]:
    """Return the loss of each token by a sampled softmax, float64[m]; scores [m, 1 + K] of items [m] and negatives [m, K]."""
    scores = scores.astype(np.float64)
    own, other = scores[:, 0] - (corrections[items] + handicap), scores[:, 1:] - corrections[negatives]
    other[negatives == items[:, None]] = -np.inf
    highest = np.maximum(own, other.max(axis=1, initial=-np.inf))
    return np.log(np.exp(own - highest) + np.exp(other - highest[:, None]).sum(axis=1)) + highest - own


def tree_losses(
    tree: Tree, users: NDArray[np.float32], outputs: NDArray[np.float32], items: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return -log of each item's probability in the tree, float64[m]; users [m, D], items [m]."""
    losses = np.zeros(len(items))
    for i, (user, item) in enumerate(zip(users, items.tolist(), strict=True)):
        for node, slot in path(tree, item):
            first, width = int(tree.first_rows[node]), int(tree.widths[node])
            if width == 2:
                losses[i] += np.logaddexp(0, (2 * slot - 1) * float(outputs[first] @ user))
            else:
                scores = outputs[first : first + width].astype(np.float64) @ user
                losses[i] += np.logaddexp.reduce(scores) - scores[slot] if width > 2 else 0
    return losses


@dataclass(frozen=True)
class Sample:
    """The measured sample of a micro-partition: training tokens, then held-out items.

    parts: for each, the rows of the users int64[m], of the items int64[m], and of the negatives int64[m, K], without items of
    other blocks. users, places: for each, the rows of all users int64[n], and where their tokens are, int64[n].
    """

    parts: tuple[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], ...]
    users: tuple[NDArray[np.int64], ...]
    places: tuple[NDArray[np.int64], ...]

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows for the losses, not of a tree: of users int64[m], and of the item table or block int64[m * (1 + K)]."""
        items = [np.column_stack(both).ravel() for _, *both in self.parts]
        return np.concatenate([users for users, *_ in self.parts]), np.concatenate(items)


def draw_sample(targets: Targets, histories: Histories) -> Sample:
    """Draw the sample of a micro-partition, always the same, without items of other blocks."""
    config, sampling = targets.config, targets.sampling
    seen, held = first_users(histories.ends > histories.starts), first_users(histories.is_held_out)
    keys = user_keys(config.seed, -1, histories.hashes[seen])
    bits = draws(keys, np.array([counter(0, HELDOUT, 4095)], dtype=np.uint64))
    lengths = (histories.ends - histories.starts)[seen].astype(np.uint64)
    parts, all_places = [], (histories.starts[seen] + (bits % lengths).astype(np.int64), histories.ends[held])
    for users, places in zip((seen, held), all_places, strict=True):
        items = histories.tokens[places].astype(np.int64)
        is_in_block = targets.has(items)
        rows, items = users[is_in_block], items[is_in_block]
        negatives = np.empty((len(rows), 0), dtype=np.int64)
        if len(sampling.aliases):  # a tree draws none
            from surf2vec.trainer.kernels.cpu import draw_negatives  # numba takes half a second to import

            keys = user_keys(config.seed, -1, histories.hashes[rows])
            negatives = draw_negatives(keys, HELDOUT, sampling, config.negative)
        parts.append((rows, items, negatives))
    return Sample(tuple(parts), (seen, held), all_places)


def first_users(is_eligible: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the rows of the first eligible users, int64[m], as many as a micro-partition's sample has."""
    return np.flatnonzero(is_eligible)[: min(max(len(is_eligible) // SAMPLE_SHARE, MIN_SAMPLE_USERS), MAX_SAMPLE_USERS)]


def sum_losses(
    targets: Targets,
    users: NDArray[np.float32],
    outputs: NDArray[np.float32],
    sample: Sample,
    is_gathered: bool = False,
) -> list[float]:
    """Return the sum of the losses of a sample's training tokens and their number, then the same of its held-out items.

    users float32[n, D]. is_gathered: users and outputs have only the rows of `Sample.rows`.
    """
    sums: list[float] = []
    first = 0
    for user_rows, items, negatives in sample.parts:
        rows = np.column_stack((items, negatives))
        if is_gathered:
            user_rows = np.arange(first, first + len(items))
            rows = np.arange(first * rows.shape[1], (first + len(items)) * rows.shape[1]).reshape(rows.shape)
            first += len(items)
        losses = token_losses(targets, users[user_rows], outputs, items, negatives, rows)
        sums += [float(losses.sum()), len(items)]
    return sums


@dataclass
class Curve:
    """Points of the curve, and the sums for the next point and for the epoch's mean: of losses and their number, on the sample
    and held out, for each of MEASURED_PARTS.
    """

    points: list[dict[str, Any]] = field(default_factory=list)
    point_sums: list[float] = field(default_factory=lambda: [0.0] * NUM_SUMS)
    epoch_sums: list[float] = field(default_factory=lambda: [0.0] * NUM_SUMS)

    def add_sums(self, sums: list[float]) -> None:
        """Add the sums of a pass, or of other workers' passes: of all parts."""
        self.point_sums = [a + b for a, b in zip(self.point_sums, sums, strict=True)]
        self.epoch_sums = [a + b for a, b in zip(self.epoch_sums, sums, strict=True)]

    def begin_epoch(self) -> None:
        self.epoch_sums = [0.0] * NUM_SUMS

    def epoch_losses(self) -> dict[str, float | None]:
        return losses(self.epoch_sums)


def losses(sums: list[float]) -> dict[str, float | None]:
    """Return the mean of each pair (sum, number); None without measurements. The first measured part has the plain names."""
    means = [total / num if num else None for total, num in zip(sums[::2], sums[1::2], strict=True)]
    pairs = dict(zip(MEASURED_PARTS, zip(means[::2], means[1::2], strict=True), strict=True))
    measured = [part for part, (loss, _) in pairs.items() if loss is not None] or [MEASURED_PARTS[0]]
    named: dict[str, float | None] = {}
    for part in measured:
        prefix = "" if part == measured[0] else f"{part}_"
        named |= dict(zip((f"{prefix}loss", f"{prefix}heldout_loss"), pairs[part], strict=True))
    return named
