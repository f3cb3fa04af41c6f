"""Two threads beside the training: one reads ahead, the other writes behind, each in order.

The training waits for one of them only where it needs what is not there yet; that time is the stall.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from trainer.training.record import Record

T = TypeVar("T")


class Background:
    """The two threads of a training. record: where the time that the training waits for them is added up."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._failure: Exception | None = None
        self._reader = ThreadPoolExecutor(1, "prefetch")
        self._writer = ThreadPoolExecutor(1, "write-behind")

    def read(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Begin to read, after what was to be read before."""
        return self._reader.submit(work, *arguments)

    def write(self, work: Callable[..., None], *arguments: Any) -> Future[None]:
        """Begin to write, after what was to be written before. `check` raises what goes wrong."""

        def keep_failure() -> None:
            try:
                work(*arguments)
            except Exception as error:
                self._failure = error
                raise

        return self._writer.submit(keep_failure)

    @contextmanager
    def stall(self) -> Iterator[None]:
        """Count the time within as waiting."""
        started = time.perf_counter()
        yield
        self.record.stall_seconds += time.perf_counter() - started

    def check(self) -> None:
        """Raise what went wrong with writing since, if anything did."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the threads. What has not begun is not done."""
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown(cancel_futures=True)
