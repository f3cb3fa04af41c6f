"""What a worker does with the others while it trains: it exchanges what it changed of the items they share, and at the end of
a place at which they did they tell each other what they measured and whether to commit.

So losses, early stopping and commits agree, whoever asks. With asynchronous sharing what was told is heard the next
time, so that nobody waits for the others here.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields

from trainer.plan.sharing import Sharing
from trainer.training.curve import Curve
from trainer.training.record import Load, Record
from trainer.workers.exchange import Exchange
from trainer.workers.group import Gathering, Workers


@dataclass(frozen=True)
class Heard:
    """What all workers told before `position`, added up: the sums of trainer.training.curve.Curve, tokens, whether one
    wishes to stop or to commit; loads: by rank.
    """

    position: int
    sums: list[float]
    tokens: float
    is_stopping: bool
    is_time: bool
    loads: list[Load]


class Together:
    """A worker's part. curve: what it measured since it told last; num_rows: of the items, which are exchanged."""

    def __init__(self, workers: Workers, sharing: Sharing, num_rows: int, record: Record) -> None:
        self.workers, self.record = workers, record
        self.exchange = Exchange(workers, num_rows, sharing.staleness)
        self.curve = Curve()
        self.tokens = 0.0
        self._passed: tuple[int, float] = (0, 0.0)
        self._lag = 1 if sharing.mode == "asynchronous" else 0
        self._before = record.loads[workers.rank] if record.loads else Load()
        self._told_tokens, self._exchanges, self._meet_seconds = 0.0, 0, 0.0
        self._underway: deque[tuple[int, Gathering]] = deque()

    def meet(self, position: int, num_exchanges: int, wishes: tuple[bool, bool]) -> Iterator[Heard]:
        """At a place's end: make up for exchanges that no user of this worker fell to, and tell; returns what is heard.

        wishes: to stop, and to commit.
        """
        self._exchanges += num_exchanges
        while self.exchange.num_exchanges < self._exchanges:
            self.exchange.run()
        tokens, self._told_tokens = self.tokens - self._told_tokens, self.tokens
        numbers = [*self.curve.point_sums, tokens, *map(float, wishes), *astuple(self.load())]
        self.curve = Curve()
        self._underway.append((position, self.workers.gather(numbers)))
        yield from self._hear(self._lag)

    def drain(self) -> Iterator[Heard]:
        """Answers all that was told and not heard yet; what was changed is exchanged."""
        self.exchange.drain()
        yield from self._hear(0)

    def count_passing(self, num_bytes: int, seconds: float) -> None:
        """Note what blocks were passed on so far, and how long this worker waited for it."""
        self._passed = num_bytes, seconds

    def gather_loads(self) -> list[Load]:
        """What every worker did so far, by rank."""
        return [Load(*row) for row in self.workers.gather(astuple(self.load())).result().tolist()]

    def load(self) -> Load:
        """What this worker did so far, in processes before this one, too."""
        before, exchange, record = self._before, self.exchange, self.record
        return Load(
            tokens=before.tokens + self.tokens,
            train_seconds=record.train_seconds,
            exchange_seconds=before.exchange_seconds + exchange.wait_seconds,
            pass_seconds=before.pass_seconds + self._passed[1],
            meet_seconds=before.meet_seconds + self._meet_seconds,
            stall_seconds=record.stall_seconds,
            bytes_read=record.bytes_read,
            bytes_written=record.bytes_written,
            passed_bytes=before.passed_bytes + self._passed[0],
            summed_bytes=before.summed_bytes + exchange.sent_bytes,
            num_exchanges=before.num_exchanges + exchange.num_exchanges,
            peak_bytes=record.peak_bytes,
            staleness_most=max(before.staleness_most, exchange.staleness_most),
            staleness_sum=before.staleness_sum + exchange.staleness_sum,
        )

    def _hear(self, most: int) -> Iterator[Heard]:
        started = time.perf_counter()
        while len(self._underway) > most:
            position, gathering = self._underway.popleft()
            rows = gathering.result().tolist()
            loads = [Load(*row[-len(fields(Load)) :]) for row in rows]
            total = [sum(column) for column in zip(*rows, strict=True)]
            yield Heard(position, total[:4], total[4], total[5] > 0, total[6] > 0, loads)
        self._meet_seconds += time.perf_counter() - started
