"""An engine trains users, visit by visit. This one trains in the host's memory.

An engine may begin a visit before the previous one has ended, so `train` yields the visits that have ended meanwhile. For all
engines `conclude` measures, rounds and marks ended visits as changed.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

import numpy as np

from surf2vec.trainer.errors import TrainingError
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.kernels.first_rows import at_rest
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.store.images import Image
from surf2vec.trainer.store.tokens import Histories
from surf2vec.trainer.training.course import Ended, Visit
from surf2vec.trainer.training.curve import Curve, Sample, Targets

if TYPE_CHECKING:  # torch takes a second to import
    from surf2vec.trainer.workers.exchange import Exchange


class TrainedPart(Protocol):
    """A part of the vectors beside the interest, with an item table of its own, whole in memory."""

    name: str

    @property
    def items(self) -> Items:
        """Its item table."""

    def train(self, work: Pass, visit: Visit) -> None:
        """Train the users of `work`, a part of the visit's, in place."""

    def measure(self, sample: Sample, histories: Histories) -> list[float]:
        """Return the sum of the losses of a sample's training tokens and their number, then the same of its held-out items."""

    def copy(self) -> Image:
        """Return a copy of its item table for a commit."""


class Engine:
    """Trains visits one after the other, in place; exchange: with the other workers, during a visit.

    looks_ahead: whether it prepares the next visit while one is trained.
    """

    looks_ahead = False
    items: Items

    def __init__(self, kernel: Kernel, parts: Sequence[TrainedPart], exchange: "Exchange | None" = None) -> None:
        self.kernel, self.parts, self.exchange = kernel, parts, exchange

    def admit_block(self, items: Items, targets: Targets) -> None:
        """Use these items from now on. No visit is in progress."""
        self.items = items
        if self.exchange is not None:
            self.exchange.attach_items(items, [part.items for part in self.parts])

    def begin(self, visit: Visit) -> Iterator[Ended]:
        """Begin a visit, if the engine trains while the caller goes on. Yields the visits that have ended, as `train`."""
        yield from ()

    def is_training(self, partition: int) -> bool:
        """Return whether a visit of a micro-partition is in progress."""
        return False

    def prepare(self, make: Callable[[], Visit]) -> Future[Visit]:
        """Make the next visit, or begin to make it in another thread."""
        made: Future[Visit] = Future()
        made.set_result(make())
        return made

    def train(self, visit: Visit) -> Iterator[Ended]:
        """Train a visit that has begun. Yields the visits that have ended meanwhile, in order; the caller concludes each before
        the next.
        """
        rows = visit.resident.rows
        rows = Rows(rows.widened(), rows.squares)
        for work, is_exchanged in visit.parts():
            if len(work.order) and work.config.interest_size:
                self.kernel.train_users(rows, self.items, work)
            for part in self.parts:
                part.train(work, visit)
            if is_exchanged and self.exchange is not None:
                self.exchange.run()
        yield Ended(visit, rows.vectors, self.items.outputs.vectors, bool(np.isfinite(rows.vectors).all()))

    def stage(self, visit: Visit) -> None:
        """Bring in a prepared visit while another is trained."""

    def settle(self) -> Iterator[Ended]:
        """Wait for visits in progress, and yield them."""
        yield from ()

    def update_host(self) -> None:
        """Update the items and users in the host's memory. No visit is in progress."""

    def close(self) -> None:
        """Release all resources, also of visits in progress."""


def conclude(ended: Ended, curve: Curve, parts: Sequence[TrainedPart] = ()) -> None:
    """Add a visit to the curve, and round its users for storage. Then they may be written.

    Raises TrainingError when the vectors or the losses are not finite.
    """
    visit, resident, config = ended.visit, ended.visit.resident, ended.visit.work.config
    try:
        if visit.num_users == 0:
            return
        if ended.is_finite and config.interest_size:
            curve.measure(visit.targets, ended.vectors, ended.outputs, visit.sample, ended.is_stored)
        for part in parts if visit.step.turn == 0 else ():
            curve.add_part(part.name, ended.trail_sums or part.measure(visit.sample, resident.histories))
        if not (ended.is_finite and np.isfinite(curve.point_sums).all()):
            raise TrainingError(
                f"vectors are no longer finite in epoch {visit.step.epoch + 1}, micro-partition {visit.partition} (learning "
                f"rate {visit.work.alphas[-1]:.4g}); nothing of it was written: lower train.alpha (now {config.alpha:g})"
            )
        if config.dtype != "float32" and not ended.is_stored:
            rows = Rows(ended.vectors, resident.rows.squares)
            resident.rows.vectors[:] = at_rest(config, visit.step.epoch, visit.work.hashes, rows).vectors
        resident.is_dirty = config.interest_size > 0
    finally:
        if resident.landed is not None:
            resident.landed.set()
