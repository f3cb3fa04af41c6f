"""The training curve: loss on a fixed sample of tokens, and on the held-out items, as training goes on.

A micro-partition is measured when its turn in an epoch ends and it is still in memory, so the curve costs no extra
reading out of core. The negatives of the sample are the same every time, so that points can be compared.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.corpus import Histories
from trainer.draws import HELDOUT, counter, draws, user_keys
from trainer.objectives import Sampling

SAMPLE_USERS = 512  # of a micro-partition: 8 of them give a standard error of about 1 %
MAX_POINTS = 100


def pair_losses(
    user_vectors: NDArray[np.float32],
    item_vectors: NDArray[np.float32],
    items: NDArray[np.int64],
    negatives: NDArray[np.int64],
) -> NDArray[np.float64]:
    """-log σ(u·v⁺) - Σ_k log σ(-u·v_k) of each pair, float64[m]; users [m, D], items [m], negatives [m, K]."""
    positive = np.einsum("md,md->m", user_vectors, item_vectors[items]).astype(np.float64)
    negative = np.einsum("md,mkd->mk", user_vectors, item_vectors[negatives]).astype(np.float64)
    return np.logaddexp(0, -positive) + np.logaddexp(0, negative).sum(axis=1)


def fixed_negatives(seed: int, hashes: NDArray[np.uint64], sampling: Sampling, negative: int) -> NDArray[np.int64]:
    """The negatives of the fixed sample, int64[m, K]: the same at every measurement."""
    counters = np.array([counter(0, HELDOUT, k) for k in range(negative)], dtype=np.uint64)
    bits = draws(user_keys(seed, -1, hashes)[:, None], counters[None, :])
    slots = ((bits >> np.uint64(32)) * np.uint64(len(sampling.aliases)) >> np.uint64(32)).astype(np.int64)
    is_own = (bits & np.uint64(2**32 - 1)) < sampling.thresholds[slots]
    return np.where(is_own, slots, sampling.aliases[slots])


def sampled_tokens(seed: int, histories: Histories) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A fixed sample of training tokens: rows of users and items, int64[m] each."""
    rows = np.flatnonzero(histories.ends > histories.starts)[:SAMPLE_USERS]
    bits = draws(user_keys(seed, -1, histories.hashes[rows]), np.array([counter(0, HELDOUT, 4095)], dtype=np.uint64))
    lengths = (histories.ends - histories.starts)[rows]
    places = histories.starts[rows] + (bits % lengths.astype(np.uint64)).astype(np.int64)
    return rows, histories.tokens[places].astype(np.int64)


@dataclass
class Curve:
    """Points of the curve, and the sums that make up the next point and the epoch's mean."""

    points: list[dict[str, Any]] = field(default_factory=list)
    point_sums: list[float] = field(default_factory=lambda: [0.0, 0, 0.0, 0])
    epoch_sums: list[float] = field(default_factory=lambda: [0.0, 0, 0.0, 0])

    def measure(
        self,
        seed: int,
        negative: int,
        sampling: Sampling,
        vectors: NDArray[np.float32],
        items: NDArray[np.float32],
        histories: Histories,
    ) -> None:
        """Add the losses of one micro-partition's sample to the sums."""
        rows, tokens = sampled_tokens(seed, histories)
        held_rows = np.flatnonzero(histories.is_held_out)[:SAMPLE_USERS]
        held_items = histories.tokens[histories.ends[held_rows]].astype(np.int64) if len(held_rows) else held_rows
        sums: list[float] = []
        for users, wanted in ((rows, tokens), (held_rows, held_items)):
            negatives = fixed_negatives(seed, histories.hashes[users], sampling, negative)
            sums += [float(pair_losses(vectors[users], items, wanted, negatives).sum()), len(users)]
        self.point_sums = [a + b for a, b in zip(self.point_sums, sums, strict=True)]
        self.epoch_sums = [a + b for a, b in zip(self.epoch_sums, sums, strict=True)]

    def add_point(self, **values: Any) -> dict[str, Any]:
        """Close the point: its means join `values`."""
        point = values | losses(self.point_sums)
        self.points.append(point)
        self.point_sums = [0.0, 0, 0.0, 0]
        return point

    def begin_epoch(self) -> None:
        self.epoch_sums = [0.0, 0, 0.0, 0]

    def epoch_losses(self) -> dict[str, float | None]:
        """Mean losses of the current epoch."""
        return losses(self.epoch_sums)

    def to_json(self) -> dict[str, Any]:
        return {"points": self.points, "point_sums": self.point_sums, "epoch_sums": self.epoch_sums}


def losses(sums: list[float]) -> dict[str, float | None]:
    """`loss` and `heldout_loss` from (sum, number) of each; None where nothing was measured."""
    loss, num, heldout_loss, num_heldout = sums
    return {"loss": loss / num if num else None, "heldout_loss": heldout_loss / num_heldout if num_heldout else None}
