"""Stages the sources of a call, two at a time: each of DuckDB's steps has an end at which cores idle, and the other source's
steps take them. What is written does not depend on it; memory is shared, DuckDB spills what is too much, and where there is
little, one goes after the other.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from sql.runner import connect
from tasks.config import IngestConfig
from tasks.ingest.formats import LogFile
from tasks.ingest.remote_logs import RemoteLogs
from tasks.ingest.sources import SourceFile
from tasks.ingest.staging import Progress, Staged, Stager, define_session
from tasks.ingest.user_key import check_fingerprint
from tasks.root.memory import spare_bytes
from tasks.root.run import Root
from tasks.users.tombstones import read_tombstones

AT_ONCE = 2
SOURCE_BYTES = 128_000_000  # of DuckDB's memory, for each source that is staged at the same time
DUCKDB_SHARE = 45  # per cent of what is spare; blocks of logs, and what DuckDB does not count, took 50 MB beside it
PART_SHARE = 40  # per cent, of all parts of sources that are in memory at the same time, at their peak
LEAST_DUCKDB_BYTES = 160_000_000  # with less, sorts of a million lines fail instead of spilling
REPORT_SECONDS = 0.5
Log = tuple[LogFile, SourceFile]
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Staging:
    """How the sources of a call are staged, as plain data: whoever stages some of them reads the user key and who was
    forgotten where they are.

    folder: for the files; downloads: where remote logs are while they are read; user_key: the key's fingerprint; now: the
    moment after which a day's events are from the future; threads: 0 takes all.
    """

    root: Root
    folder: Path
    downloads: Path
    config: IngestConfig
    user_key: str | None
    memory_bytes: int
    threads: int
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))


@contextmanager
def open_stagers(staging: Staging, remote: RemoteLogs, num_logs: int, progress: Progress) -> Iterator["Stagers"]:
    """As many stagers as `num_logs` and the memory allow, in this process.

    Raises ConfigError when the user key is not there, or not the one whose fingerprint is asked for.
    """
    key = check_fingerprint(staging.config, staging.user_key)
    least_bytes = min(staging.memory_bytes // 2, LEAST_DUCKDB_BYTES)
    spare = spare_bytes(staging.memory_bytes)
    duckdb_bytes = max(spare * DUCKDB_SHARE // 100, least_bytes)
    with connect(duckdb_bytes, staging.folder / "spill", staging.threads or os.cpu_count() or 1) as con:
        define_session(con, staging.config)
        stager = Stager(
            con, staging.config, key, staging.folder, spare * PART_SHARE // 100, progress,
            read_tombstones(staging.root), remote.present, staging.now,
        )  # fmt: skip
        yield Stagers.of(stager, num_logs, duckdb_bytes)


@dataclass(frozen=True)
class Stagers:
    """As many stagers as DuckDB's memory allows, each with a cursor of its own."""

    stagers: tuple[Stager, ...]

    @classmethod
    def of(cls, stager: Stager, num_logs: int, duckdb_bytes: int) -> "Stagers":
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
