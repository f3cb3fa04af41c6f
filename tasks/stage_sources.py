"""Stages the sources of a call, two at a time: each of DuckDB's steps has an end at which cores idle, and the other source's
steps take them. What is written does not depend on it; memory is shared, DuckDB spills what is too much, and where there is
little, one goes after the other.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TypeVar

from tasks.logfiles import LogFile
from tasks.sources import SourceFile
from tasks.staging import Staged, Stager

AT_ONCE = 2
SOURCE_BYTES = 128_000_000  # of DuckDB's memory, for each source that is staged at the same time
REPORT_SECONDS = 0.5
Log = tuple[LogFile, SourceFile]
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Crew:
    """As many stagers as DuckDB's memory allows, each with a cursor of its own."""

    stagers: tuple[Stager, ...]

    @classmethod
    def of(cls, stager: Stager, num_logs: int, duckdb_bytes: int) -> "Crew":
        num_stagers = max(1, min(AT_ONCE, num_logs, duckdb_bytes // SOURCE_BYTES))
        stager = replace(stager, part_bytes=stager.part_bytes // num_stagers)
        return cls((stager, *(stager.with_cursor() for _ in range(num_stagers - 1))))

    def sample_users(self, logs: Sequence[Log]) -> set[int]:
        """The hashes of one in SAMPLE_FACTOR of the users of all sources. An only log is left loaded for `stage`."""
        if len(logs) > 1:
            logs = [(log.without_pages(), source) for log, source in logs]
        return set().union(*self._each(logs, Stager.sample_users))

    def stage(self, logs: Sequence[Log], partitions: int, is_loaded: bool) -> Iterator[Staged]:
        """Stage every source; yields them in order. `is_loaded`: the only one was loaded last.

        Raises InputError when a file cannot be read or changes while it is read.
        """
        return self._each(logs, lambda own, log, source: own.stage(log, source, partitions, is_loaded))

    def _each(self, logs: Sequence[Log], work: Callable[[Stager, LogFile, SourceFile], _Result]) -> Iterator[_Result]:
        """Do `work` for each log; yields in order, and reports progress while it waits."""
        free: SimpleQueue[Stager] = SimpleQueue()
        for stager in self.stagers:
            free.put(stager)

        def work_alone(log: LogFile, source: SourceFile) -> _Result:
            own = free.get()
            try:
                return work(own, log, source)
            finally:
                free.put(own)

        progress = self.stagers[0].progress
        with ThreadPoolExecutor(len(self.stagers)) as pool:
            futures = [pool.submit(work_alone, log, source) for log, source in logs]
            try:
                for future in futures:
                    while not wait([future], timeout=REPORT_SECONDS).done:
                        progress.report()
                    yield future.result()
                    progress.report()
            except BaseException:
                for future in futures:
                    future.cancel()
                for stager in self.stagers:
                    stager.con.interrupt()
                raise
