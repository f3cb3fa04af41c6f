"""With whom a worker trains. Alone it is a team of one: what it did counts at once, and nobody has to be told.

trainer/training/worker_part.py is the part of one worker in a training of several.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.training.course import Course, Ended
from trainer.training.engine import conclude
from trainer.training.item_blocks import ItemBlocks
from trainer.training.record import Record
from trainer.workers.group import Workers
from trainer.workers.ring import Ring

if TYPE_CHECKING:  # torch takes a second to import
    from trainer.workers.exchange import Exchange


class Wishes(NamedTuple):
    """What a worker wishes after a position: to stop, or to commit because it is time."""

    is_stopping: bool
    is_time: bool


class Team:
    """A worker that trains alone. unit: what a position is; exchange: what is done with the others while a visit is trained."""

    unit = "micro-partitions"
    exchange: "Exchange | None" = None

    def __init__(self, course: Course, record: Record) -> None:
        self.course, self.record = course, record

    def count(self, ended: Ended, outputs: NDArray[np.float32]) -> None:
        """Count a visit that has ended; outputs: of the items, as `conclude` needs them."""
        self.begin_epoch()
        conclude(ended, outputs, self.record.curve)
        self.record.position = ended.visit.position + 1
        self.record.tokens_done += ended.visit.num_tokens / self.course.plan.num_blocks

    def begin_epoch(self) -> None:
        """Let the means of the curve begin anew where an epoch begins."""
        if self.record.position % self.course.positions_an_epoch == 0:
            self.record.curve.begin_epoch()

    def meets_at(self, position: int) -> bool:
        """Whether the workers meet there, for which all that was begun has to have ended."""
        return False

    def meet(self, position: int, own: Wishes) -> Iterator[Wishes]:
        """Tell what was done and is wished up to a position; yields what was heard, which the record counts already."""
        yield own

    def drain(self) -> Iterator[Wishes]:
        """Yields what was told and not heard yet."""
        yield from ()

    def first_does(self, work: Callable[[], Any]) -> None:
        """Do what one worker of a team does for all."""
        work()

    def note_loads(self) -> None:
        """Let the record say what each of several workers did."""


def make_team(workers: Workers, course: Course, record: Record, blocks: ItemBlocks, ring: Ring | None) -> Team:
    """This worker's part; of items those rows are exchanged that all workers have. ring: by which item blocks go round."""
    if workers.is_alone:
        return Team(course, record)
    from trainer.training.worker_part import Together

    num_rows = blocks.num_shared_rows if course.plan.sharing.is_sharded else blocks.num_outputs(0)
    return Together(course, record, workers, num_rows, ring)
