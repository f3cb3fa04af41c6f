"""The team of a worker. A worker alone is a team of one, and records its work at once.

Several workers exchange the changes of shared items. At the end of a place with an exchange they meet: they send each other
their losses and requests to commit, so that losses, early stopping and commits agree. With asynchronous sharing a message is
read at the next meeting, so that workers do not wait for each other.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.training.curve import NUM_SUMS, Curve
from surf2vec.trainer.training.engine import FinishedPass
from surf2vec.trainer.training.record import Load, Record
from surf2vec.trainer.training.schedule import Schedule
from surf2vec.trainer.training.slots import ItemSlots, RingSlots
from surf2vec.trainer.workers.group import Workers

if TYPE_CHECKING:  # torch takes a second to import
    from surf2vec.trainer.workers.exchange import Exchange


class Requests(NamedTuple):
    """A worker's requests after a position: to stop, or to commit because it is time."""

    is_stopping: bool
    is_time: bool


class Team:
    """A worker that trains alone. unit: the meaning of a position; exchange: with other workers, during a pass."""

    unit = "micro-partitions"
    exchange: "Exchange | None" = None

    def __init__(self, schedule: Schedule, record: Record) -> None:
        self.schedule, self.record = schedule, record

    def count(self, finished: FinishedPass) -> None:
        """Record a finished pass."""
        self.begin_epoch()
        finished.record(self.record.curve)
        self.record.position = finished.partition_pass.position + 1
        self.record.tokens_done += finished.partition_pass.num_tokens / self.schedule.plan.num_blocks

    def begin_epoch(self) -> None:
        """Reset the means of the curve at the start of an epoch."""
        if self.record.position % self.schedule.positions_per_epoch == 0:
            self.record.curve.begin_epoch()

    def meets_at(self, position: int) -> bool:
        """Return whether the workers meet at a position. Passes in progress must end before."""
        return False

    def meet(self, position: int, own: Requests) -> Iterator[Requests]:
        """Send this worker's results and requests up to a position. Yields received requests, after recording their results."""
        yield own

    def drain(self) -> Iterator[Requests]:
        """Wait for messages in progress, and yield their requests."""
        yield from ()

    def note_loads(self) -> None:
        """Write the load of each worker to the record."""


class Together(Team):
    """A worker in a team of several. num_rows: the item rows that are exchanged.

    curve: its losses since the last message; tokens: all that it trained in this process.
    """

    unit = "places"
    exchange: "Exchange"

    def __init__(self, schedule: Schedule, record: Record, workers: Workers, num_rows: int, items: ItemSlots) -> None:
        from surf2vec.trainer.workers.exchange import Exchange

        super().__init__(schedule, record)
        sharing = schedule.plan.sharing
        self.workers, self.items = workers, items
        self.exchange = Exchange(workers, num_rows, sharing.staleness)
        self.curve = Curve()
        self.tokens = 0.0
        self._lag = 1 if sharing.mode == "asynchronous" else 0
        self._before = record.loads[workers.rank] if record.loads else Load()
        self._sent_tokens, self._exchanges, self._meet_seconds = 0.0, 0, 0.0
        self._underway: deque[tuple[int, Callable[[], NDArray[np.float64]]]] = deque()

    def count(self, finished: FinishedPass) -> None:
        """Measure a finished pass. It is recorded at the next meeting of the workers."""
        finished.record(self.curve)
        self.tokens += finished.partition_pass.num_tokens / self.schedule.plan.num_blocks

    def meets_at(self, position: int) -> bool:
        return self.schedule.num_exchanges(position - 1) > 0

    def meet(self, position: int, own: Requests) -> Iterator[Requests]:
        """If the workers meet: run exchanges that had no user of this worker, then send results and requests."""
        if not self.meets_at(position):
            return
        self._exchanges += self.schedule.num_exchanges(position - 1)
        while self.exchange.num_exchanges < self._exchanges:
            self.exchange.run()
        tokens, self._sent_tokens = self.tokens - self._sent_tokens, self.tokens
        numbers = [*self.curve.point_sums, tokens, *map(float, own), *astuple(self._load())]
        self.curve = Curve()
        self._underway.append((position, self.workers.gather(numbers)))
        yield from self._receive(self._lag)

    def drain(self) -> Iterator[Requests]:
        self.exchange.drain()
        yield from self._receive(0)

    def note_loads(self) -> None:
        self.record.loads = [Load(*row) for row in self.workers.gather(astuple(self._load()))().tolist()]

    def _load(self) -> Load:
        """Return the load of this worker so far, with earlier processes."""
        before, exchange, record = self._before, self.exchange, self.record
        ring = self.items if isinstance(self.items, RingSlots) else None
        passed_bytes, pass_seconds = (ring.passed_bytes, ring.wait_seconds) if ring else (0, 0.0)
        return Load(
            tokens=before.tokens + self.tokens,
            train_seconds=record.train_seconds,
            exchange_seconds=before.exchange_seconds + exchange.wait_seconds,
            pass_seconds=before.pass_seconds + pass_seconds,
            meet_seconds=before.meet_seconds + self._meet_seconds,
            stall_seconds=record.stall_seconds,
            bytes_read=record.bytes_read,
            bytes_written=record.bytes_written,
            passed_bytes=before.passed_bytes + passed_bytes,
            summed_bytes=before.summed_bytes + exchange.sent_bytes,
            num_exchanges=before.num_exchanges + exchange.num_exchanges,
            peak_bytes=record.peak_bytes,
            staleness_most=max(before.staleness_most, exchange.staleness_most),
            staleness_sum=before.staleness_sum + exchange.staleness_sum,
        )

    def _receive(self, most: int) -> Iterator[Requests]:
        """Receive messages until at most `most` are in progress, record their results, and yield their requests."""
        started = time.perf_counter()
        while len(self._underway) > most:
            position, result = self._underway.popleft()
            rows = result().tolist()
            total = [sum(column) for column in zip(*rows, strict=True)]
            self.begin_epoch()
            self.record.curve.add_sums(total[:NUM_SUMS])
            self.record.position = position
            self.record.tokens_done += total[NUM_SUMS]
            self.record.loads = [Load(*row[-len(fields(Load)) :]) for row in rows]
            yield Requests(total[NUM_SUMS + 1] > 0, total[NUM_SUMS + 2] > 0)
        self._meet_seconds += time.perf_counter() - started
