"""Exchanges rows that every worker has: the changes since the last exchange are summed, and all continue from the sum.

    the rows of all   base + sum over workers of (rows - base)

Adagrad's sums of squares are summed in the same way. With staleness 0 a worker waits for the sum; then all have the same bits.
With staleness s it continues training, and adds the others' changes when they arrive. It waits only if more than s exchanges are
in progress ("stale synchronous parallel", Ho et al., NIPS 2013).
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from surf2vec.trainer.model.rows import Items
from surf2vec.trainer.plan.sharing import sent_by_sum
from surf2vec.trainer.workers.group import Workers

RunOn = Callable[[Callable[[], None]], None]


@dataclass
class Underway:
    """An exchange in progress. own float32[n]: this worker's changes; total: becomes the sum of all; number: its number."""

    own: torch.Tensor
    total: torch.Tensor
    work: Any
    number: int


class Exchange:
    """Exchanges of the first `num_rows` rows of the items' outputs, and of all their inputs, where there are any.

    All work on the rows is done by `run_on`: on a device in the stream that trains them, so that it is in order with training.
    staleness_most, staleness_sum: maximum and sum over exchanges of how many others began before the sum arrived.
    """

    def __init__(self, workers: Workers, num_rows: int, staleness: int) -> None:
        self.workers, self.num_rows, self.staleness = workers, num_rows, staleness
        self.num_exchanges, self.sent_bytes, self.wait_seconds = 0, 0, 0.0
        self.staleness_most, self.staleness_sum = 0, 0
        self._tables: Sequence[torch.Tensor] = ()
        self._run_on: RunOn = lambda work: work()
        self._base: list[torch.Tensor] | None = None
        self._free: list[torch.Tensor] = []
        self._underway: deque[Underway] = deque()

    def attach(self, tables: Sequence[torch.Tensor], run_on: RunOn | None = None) -> None:
        """Exchange these rows from now on, all work on them by `run_on`. They have the values of the previous ones."""

        def copy_base() -> None:
            self._base = self._base or [table.clone() for table in tables]

        self._tables, self._run_on = tables, run_on or self._run_on
        self._run_on(copy_base)

    def attach_items(self, items: Items, others: Sequence[Items] = ()) -> None:
        """`attach` for items in the host's memory; others: the item tables of other parts, which are exchanged whole."""
        outputs, tables = items.outputs, [items.inputs, *(rows for table in others for rows in vars(table).values())]
        arrays = [outputs.vectors[: self.num_rows], outputs.squares[: self.num_rows]]
        arrays += [array for rows in tables for array in (rows.vectors, rows.squares)]
        self.attach([torch.from_numpy(array) for array in arrays if array.size])

    def run(self) -> None:
        """Send this worker's changes, and add the others' changes that have arrived."""
        self.num_exchanges += 1
        if not self._tables:  # a table too small for blocks to share any of it
            return
        started, number = time.perf_counter(), self.num_exchanges
        self._run_on(lambda: self._send(number))
        self.wait_seconds += time.perf_counter() - started

    def _send(self, number: int) -> None:
        assert self._base is not None, "an exchange was sent before the first tables were shared"
        own = self._buffer()
        for table, base, part in zip(self._tables, self._base, self._parts(own), strict=True):
            torch.sub(table, base, out=part)
        self.sent_bytes += sent_by_sum(own.numel() * 4, self.workers.num)
        if self.staleness == 0:
            self.workers.wait(self.workers.add_up(own))
            for table, base, part in zip(self._tables, self._base, self._parts(own), strict=True):
                table.copy_(base.add_(part))
            self._free.append(own)
        else:
            total = self._buffer().copy_(own)
            self._underway.append(Underway(own, total, self.workers.add_up(total), number))
            self._take(self.staleness)

    def drain(self) -> None:
        """Wait for all exchanges in progress, and add their changes."""
        started = time.perf_counter()
        self._run_on(lambda: self._take(0))
        self.wait_seconds += time.perf_counter() - started

    def _take(self, most: int) -> None:
        """Add the others' changes that have arrived; wait until at most `most` exchanges are in progress."""
        while self._underway and (len(self._underway) > most or self._underway[0].work.is_completed()):
            first = self._underway.popleft()
            self.workers.wait(first.work)
            first.total.sub_(first.own)
            for table, part in zip(self._tables, self._parts(first.total), strict=True):
                table.add_(part)
            self._free += [first.own, first.total]
            late = self.num_exchanges - first.number
            self.staleness_most, self.staleness_sum = max(self.staleness_most, late), self.staleness_sum + late
        for table, base in zip(self._tables, self._base or (), strict=True):
            base.copy_(table)

    def _buffer(self) -> torch.Tensor:
        num = sum(table.numel() for table in self._tables)
        return self._free.pop() if self._free else torch.empty(num, device=self._tables[0].device)

    def _parts(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a buffer as the tables, one after the other."""
        parts = buffer.split([table.numel() for table in self._tables])
        return [part.view(table.shape) for part, table in zip(parts, self._tables, strict=True)]
