"""The path's item table in memory: it trains beside the interest's items, is never divided, and is committed with them."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.draws import HELDOUT, user_keys
from trainer.kernels.first_rows import begin_path
from trainer.kernels.signature import Pass
from trainer.model.objectives import RANGE_32, Sampling
from trainer.model.rows import PathItems
from trainer.store.images import Image, image_of
from trainer.store.layout import image_of_path, path_in
from trainer.store.tokens import Histories
from trainer.store.writer import Writer
from trainer.training.course import Visit
from trainer.training.curve import Sample, softmax_losses


class PathSlot:
    """The path's item table, from the writer's file or untrained, and the tables to train it.

    counts int64[V]: how often training sees each item in an epoch.
    """

    def __init__(self, config: TrainConfig, counts: NDArray[np.int64], writer: Writer, is_committed_here: bool) -> None:
        from trainer.kernels.path import make_path_tables  # numba takes half a second to import

        self.config, self.writer, self.is_committed_here = config, writer, is_committed_here
        self.tables = make_path_tables(counts, config)
        keep = np.full(len(counts), RANGE_32, dtype=np.uint64)
        self.noise = Sampling(self.tables.thresholds, self.tables.aliases, keep, self.tables.corrections)
        self._image = writer.read_path() or image_of_path(begin_path(config, len(counts)))

    @property
    def items(self) -> PathItems:
        return path_in(self._image.arrays)

    def train(self, work: Pass, visit: Visit) -> None:
        """Train the users of `work`, a part of the visit's. With several item blocks only the first turn trains the path."""
        from trainer.kernels.path import train_path

        if visit.step.turn == 0 and len(work.order):
            histories = visit.resident.histories
            own = replace(work, tokens=histories.tokens, starts=histories.starts, ends=histories.ends)
            train_path(self.items, own, self.tables, visit.backward, visit.step.epoch)

    def measure(self, sample: Sample, histories: Histories) -> list[float]:
        """Return the sum of the losses of a sample's training tokens and their number, then the same of its held-out items."""
        from trainer.kernels.cpu import draw_negatives, score_rows
        from trainer.kernels.path import path_vectors

        config, path, sums = self.config, self.items, []
        handicap = math.log(config.negative_weight)
        for users, places in zip(sample.users, sample.places, strict=True):
            items = histories.tokens[places].astype(np.int64)
            starts = histories.starts[users]
            vectors = path_vectors(path, histories.tokens, starts, places, config.path_window, items.astype(np.int32))
            keys = user_keys(config.seed, -1, histories.hashes[users])
            negatives = draw_negatives(keys, HELDOUT, self.noise, config.path_negative)
            scores = score_rows(vectors, path.outputs.vectors, np.column_stack((items, negatives)))
            losses = softmax_losses(scores, items, negatives, self.tables.corrections, handicap)
            sums += [float(losses.sum()), len(users)]
        return sums

    def copy(self) -> Image | None:
        """Return a copy for a commit; None if another worker commits it."""
        return image_of(self._image.arrays) if self.is_committed_here else None
