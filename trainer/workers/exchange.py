"""Exchanges rows that every worker has: the changes since the last exchange are summed, and all continue from the sum.

    the rows of all   base + sum over workers of (rows - base)

Adagrad's sums of squares are summed in the same way. With staleness 0 a worker waits for the sum; then all have the same bits.
With staleness s it continues training, and adds the others' changes when they arrive. It waits only if more than s exchanges are
in progress ("stale synchronous parallel", Ho et al., NIPS 2013).
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from surf2vec.trainer.kernels.signature import LEAST_LAG
from surf2vec.trainer.plan.sharing import sent_by_sum
from surf2vec.trainer.workers.group import Workers

RunOn = Callable[[Callable[[], None]], None]


@dataclass
class Underway:
    """An exchange in progress. own float32[n], of each device: this worker's changes; total: becomes the sum of all.

    works: the handles of the sums; number: its number.
    """

    own: list[torch.Tensor]
    total: list[torch.Tensor]
    works: list[Any]
    number: int

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)


class Exchange:
    """Exchanges of the first `num_rows` rows of the items' outputs, and of all rows of their inputs and of trails.

    All work on the rows is done by `run_on`: on a device in the stream that trains them, so that it is in order with training.
    staleness_most, staleness_sum: maximum and sum over exchanges of how many others began before the sum arrived.
    """

    def __init__(self, workers: Workers, num_rows: int, staleness: int) -> None:
        self.workers, self.num_rows, self.staleness = workers, num_rows, staleness
        self.num_exchanges, self.sent_bytes, self.wait_seconds = 0, 0, 0.0
        self.staleness_most, self.staleness_sum = 0, 0
        self._tables: Sequence[torch.Tensor] = ()
        self._lags: Sequence[torch.Tensor] = ()
        self._run_on: RunOn = lambda work: work()
        self._base: list[torch.Tensor] = []
        self._free: list[list[torch.Tensor]] = []
        self._underway: deque[Underway] = deque()

    def attach(
        self, outputs: Any, inputs: Sequence[Any] = (), trails: Sequence[Any] = (), run_on: RunOn | None = None
    ) -> None:
        """Exchange the rows of items and of trails from now on, in the host's memory (Rows, TrailItems) or as DeviceRecord.

        They have the values of the previous ones. No sum leaves a lag below LEAST_LAG, as several workers may lower a weight by
        as much as one may.
        """
        whole = [*inputs, *(rows for trail in trails for rows in (trail.outputs, trail.inputs, trail.lags))]
        arrays = [outputs.vectors[: self.num_rows], outputs.squares[: self.num_rows]]
        arrays += [array for rows in whole for array in (rows.vectors, rows.squares)]
        tables = [torch.as_tensor(array) for array in arrays if len(array)]
        self._tables = sorted(tables, key=lambda table: table.device.type)

        def copy_base() -> None:
            self._base = self._base or [table.clone() for table in self._tables]

        self._lags = [torch.as_tensor(trail.lags.vectors) for trail in trails]
        self._run_on = run_on or self._run_on
        self._run_on(copy_base)

    def run(self) -> None:
        """Send this worker's changes, and add the others' changes that have arrived."""
        self.num_exchanges += 1
        if not self._tables:  # a table too small for blocks to share any of it
            return
        started, number = time.perf_counter(), self.num_exchanges
        self._run_on(lambda: self._send(number))
        self.wait_seconds += time.perf_counter() - started

    def _send(self, number: int) -> None:
        assert self._base, "an exchange was sent before the first tables were shared"
        own = self._buffers()
        for table, base, part in zip(self._tables, self._base, self._parts(own), strict=True):
            torch.sub(table, base, out=part)
        self.sent_bytes += sent_by_sum(sum(buffer.nbytes for buffer in own), self.workers.num)
        if self.staleness == 0:
            for work in [self.workers.add_up(buffer) for buffer in own]:
                self.workers.wait(work)
            for table, base, part in zip(self._tables, self._base, self._parts(own), strict=True):
                torch.add(base, part, out=table)
            self._free.append(own)
            self._note_base()
        else:
            total = self._buffers()
            for changes, sums in zip(own, total, strict=True):
                sums.copy_(changes)
            self._underway.append(Underway(own, total, [self.workers.add_up(sums) for sums in total], number))
            self._take(self.staleness)

    def drain(self) -> None:
        """Wait for all exchanges in progress, and add their changes."""
        started = time.perf_counter()
        self._run_on(lambda: self._take(0))
        self.wait_seconds += time.perf_counter() - started

    def _take(self, most: int) -> None:
        """Add the others' changes that have arrived; wait until at most `most` exchanges are in progress."""
        while self._underway and (len(self._underway) > most or self._underway[0].is_completed()):
            first = self._underway.popleft()
            for work in first.works:
                self.workers.wait(work)
            for table, own, total in zip(self._tables, self._parts(first.own), self._parts(first.total), strict=True):
                table.add_(total.sub_(own))
            self._free += [first.own, first.total]
            late = self.num_exchanges - first.number
            self.staleness_most, self.staleness_sum = max(self.staleness_most, late), self.staleness_sum + late
        self._note_base()

    def _note_base(self) -> None:
        """Note the state from which changes count."""
        for lags in self._lags:
            lags.clamp_(min=LEAST_LAG)
        for table, base in zip(self._tables, self._base, strict=False):
            base.copy_(table)

    def _buffers(self) -> list[torch.Tensor]:
        """Return a buffer for the tables of each device: a trail may be trained on the host beside items on a GPU."""
        if self._free:
            return self._free.pop()
        lengths = Counter[torch.device]()
        for table in self._tables:
            lengths[table.device] += table.numel()
        return [torch.empty(length, device=device) for device, length in lengths.items()]

    def _parts(self, buffers: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return views of the buffers as the tables, one after the other."""
        parts = []
        for buffer in buffers:
            tables = [table for table in self._tables if table.device == buffer.device]
            split = buffer.split([table.numel() for table in tables])
            parts += [part.view(table.shape) for part, table in zip(split, tables, strict=True)]
        return parts
