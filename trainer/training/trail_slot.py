"""The trail's item table in memory: it trains beside the interest's items, is never divided, and is committed with them."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import HELDOUT, user_keys
from surf2vec.trainer.kernels.first_rows import begin_trail
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import make_trail_tables
from surf2vec.trainer.model.rows import TrailItems
from surf2vec.trainer.store.images import Image, image_of
from surf2vec.trainer.store.layout import image_of_items, items_of
from surf2vec.trainer.store.tokens import Histories
from surf2vec.trainer.store.writer import Writer
from surf2vec.trainer.training.curve import Sample, softmax_losses


class TrailSlot:
    """The trail's item table, from the writer's file or untrained, and the tables to train it.

    counts int64[V]: how often training sees each item in an epoch.
    """

    name = "trail"

    def __init__(self, config: TrainConfig, counts: NDArray[np.int64], writer: Writer) -> None:
        self.config = config
        self.tables = make_trail_tables(counts, config)
        begun = writer.read(self.name, 0) if writer.has(self.name, 0) else None
        self._image = begun or image_of_items(begin_trail(config, len(counts)))

    @property
    def items(self) -> TrailItems:
        items = items_of(self._image.arrays)
        assert isinstance(items, TrailItems), f"{self.name} is a table of {type(items).__name__}"
        return items

    def train(self, work: Pass, histories: Histories, backward: float) -> None:
        """Train the users of `work` in place, with tokens that are rows of this table."""
        from surf2vec.trainer.kernels.cpu import train_trail  # numba takes half a second to import

        own = replace(work, tokens=histories.tokens, starts=histories.starts, ends=histories.ends)
        train_trail(self.items, own, self.tables, backward)

    def draw(
        self, sample: Sample, histories: Histories
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return, of a sample's training tokens and then its held-out items, the starts of their histories and their places among
        the tokens, int64[S], and what they score: item and negatives, int64[S, 1 + K].
        """
        from surf2vec.trainer.kernels.cpu import draw_negatives

        users, places = np.concatenate(sample.users), np.concatenate(sample.places)
        keys = user_keys(self.config.seed, -1, histories.hashes[users])
        negatives = draw_negatives(keys, HELDOUT, self.tables, self.config.trail_negative)
        return histories.starts[users], places, np.column_stack((histories.tokens[places].astype(np.int64), negatives))

    def sum_losses(self, sample: Sample, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> list[float]:
        """Return the sum of the losses of a sample's training tokens and their number, then the same of its held-out items."""
        handicap, num = math.log(self.config.negative_weight), len(sample.users[0])
        losses = softmax_losses(scores, rows[:, 0], rows[:, 1:], self.tables.corrections, handicap)
        return [float(losses[:num].sum()), num, float(losses[num:].sum()), len(losses) - num]

    def measure(self, sample: Sample, histories: Histories) -> list[float]:
        """Return `sum_losses` of a sample, by the rows in the host's memory."""
        from surf2vec.trainer.kernels.cpu import score_rows, trail_vectors

        trail, (starts, places, rows) = self.items, self.draw(sample, histories)
        skipped = rows[:, 0].astype(np.int32)
        vectors = trail_vectors(trail, histories.tokens, starts, places, self.config.trail_window, skipped)
        return self.sum_losses(sample, rows, score_rows(vectors, trail.outputs.vectors, rows))

    def copy(self) -> Image:
        """Return a copy for a commit."""
        return image_of(self._image.arrays)
