"""An engine trains users, one pass over a micro-partition after the other. This one trains in the host's memory.

An engine may begin a pass before the previous one has ended, so `train` yields the passes that have ended meanwhile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import TrainingError
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.kernels.first_rows import at_rest
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.training.curve import NUM_SUMS, Curve, Targets, sum_losses
from surf2vec.trainer.training.schedule import PartitionPass
from surf2vec.trainer.training.trail_slot import TrailSlot

if TYPE_CHECKING:  # torch takes a second to import
    from surf2vec.trainer.workers.exchange import Exchange


@dataclass(frozen=True)
class FinishedPass:
    """A pass whose users are as they are stored. is_finite: whether all vectors are; sums: for `Curve.add_sums`."""

    partition_pass: PartitionPass
    is_finite: bool = True
    sums: list[float] = field(default_factory=lambda: [0.0] * NUM_SUMS)

    def record(self, curve: Curve) -> None:
        """Add the losses to the curve, and mark the users as changed: they may be written.

        Raises TrainingError when the vectors or the losses are not finite.
        """
        done, config = self.partition_pass, self.partition_pass.work.config
        try:
            curve.add_sums(self.sums)
            if not (self.is_finite and np.isfinite(curve.point_sums).all()):
                raise TrainingError(
                    f"vectors are no longer finite in epoch {done.step.epoch + 1}, micro-partition {done.partition} (learning "
                    f"rate {done.work.alphas[-1]:.4g}); nothing of it was written: lower train.alpha (now {config.alpha:g})"
                )
            done.resident.is_dirty = done.num_users > 0 and config.interest_size > 0
        finally:
            done.resident.release()


class Engine:
    """Trains in place. parts: what is trained beside the interest; exchange: with the other workers, during a pass.

    looks_ahead: whether it copies the next pass while one is trained.
    """

    looks_ahead = False
    items: Items

    def __init__(
        self, kernel: Kernel, config: TrainConfig, parts: Sequence[TrailSlot], exchange: "Exchange | None" = None
    ) -> None:
        self.kernel, self.config, self.parts, self.exchange = kernel, config, parts, exchange

    def admit_block(self, items: Items, targets: Targets) -> None:
        """Use these items from now on. No pass is in progress."""
        self.items = items
        if self.exchange is not None:
            self.exchange.attach(items.outputs, [items.inputs], [part.items for part in self.parts])

    def is_training(self, partition: int) -> bool:
        """Return whether a pass over a micro-partition is in progress."""
        return False

    def stage(self, partition_pass: PartitionPass) -> None:
        """Bring in the next pass while another is trained."""

    def train(self, partition_pass: PartitionPass) -> Iterator[FinishedPass]:
        """Train a pass. Yields the passes that have ended meanwhile, in order; the caller records each before the next."""
        rows = partition_pass.resident.rows
        rows = Rows(rows.widened(), rows.squares)
        for work, is_exchanged in partition_pass.parts():
            if len(work.order) and self.config.interest_size:
                self.kernel.train_users(rows, self.items, work)
            self.train_parts(partition_pass, work)
            if is_exchanged and self.exchange is not None:
                self.exchange.run()
        if not np.isfinite(rows.vectors).all():
            yield FinishedPass(partition_pass, is_finite=False)
            return
        finished = self.measure(partition_pass, rows.vectors, self.items.outputs.vectors)
        if self.config.dtype != "float32":
            stored = at_rest(self.config, partition_pass.step.epoch, partition_pass.work.hashes, rows)
            partition_pass.resident.rows.vectors[:] = stored.vectors
        yield finished

    def train_parts(self, partition_pass: PartitionPass, work: Pass) -> None:
        """Train the other parts by the users of `work`, in the host's memory; with several item blocks only in the first turn."""
        histories, step = partition_pass.resident.histories, partition_pass.step
        for part in self.parts if step.turn == 0 and len(work.order) else ():
            part.train(work, histories, partition_pass.backward)

    def measure(
        self,
        done: PartitionPass,
        users: NDArray[np.float32],
        outputs: NDArray[np.float32],
        is_gathered: bool = False,
        of_parts: list[list[float]] | None = None,
    ) -> FinishedPass:
        """Measure a pass by its users' vectors float32[n, D] and the items' outputs at its end.

        is_gathered: both have only the rows of its sample; of_parts: the sums of the parts, if they are not in the host's memory.
        """
        if done.num_users == 0:
            return FinishedPass(done)
        sums = [0.0] * NUM_SUMS
        if self.config.interest_size:
            sums[:4] = sum_losses(done.targets, users, outputs, done.sample, is_gathered)
        for i, part in enumerate(self.parts if done.step.turn == 0 else ()):
            own = of_parts[i] if of_parts else part.measure(done.sample, done.resident.histories)
            sums[4 * i + 4 : 4 * i + 8] = own
        return FinishedPass(done, sums=sums)

    def settle(self) -> Iterator[FinishedPass]:
        """Wait for passes in progress, and yield them."""
        yield from ()

    def update_host(self) -> None:
        """Update the items in the host's memory. No pass is in progress."""

    def close(self) -> None:
        """Release all resources, also of passes in progress."""
