"""Stages the sources of a call, two at a time: each of DuckDB's steps has an end at which cores idle, and the other source's
steps take them. What is written does not depend on it; memory is shared, and DuckDB spills what is too much.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import TypeVar

from tasks.logfiles import LogFile
from tasks.sources import SourceFile
from tasks.staging import Staged, Stager

AT_ONCE = 2
REPORT_SECONDS = 0.5
Log = tuple[LogFile, SourceFile]
_Result = TypeVar("_Result")


def sample_users(stager: Stager, logs: Sequence[Log]) -> set[int]:
    """The hashes of one in SAMPLE_FACTOR of the users of all sources. An only log is left loaded for `stage_sources`."""
    if len(logs) == 1:
        return set().union(*_run(stager, logs, Stager.sample_users))
    return set().union(*_run(stager, [(log.without_pages(), source) for log, source in logs], Stager.sample_users))


def stage_sources(stager: Stager, logs: Sequence[Log], partitions: int, is_loaded: bool) -> Iterator[Staged]:
    """Stage every source; yields them in order. `is_loaded`: the only one was loaded last.

    Raises InputError when a file cannot be read or changes while it is read.
    """
    return _run(stager, logs, lambda own, log, source: own.stage(log, source, partitions, is_loaded))


def _run(
    stager: Stager, logs: Sequence[Log], work: Callable[[Stager, LogFile, SourceFile], _Result]
) -> Iterator[_Result]:
    """Do `work` for each log, AT_ONCE of them at a time; yields in order, and reports progress while it waits."""
    stagers = [stager, *(stager.with_cursor() for _ in logs[1:AT_ONCE])]
    free: SimpleQueue[Stager] = SimpleQueue()
    for one in stagers:
        free.put(one)

    def work_alone(log: LogFile, source: SourceFile) -> _Result:
        own = free.get()
        try:
            return work(own, log, source)
        finally:
            free.put(own)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(work_alone, log, source) for log, source in logs]
        try:
            for future in futures:
                while not wait([future], timeout=REPORT_SECONDS).done:
                    stager.progress.report()
                yield future.result()
                stager.progress.report()
        except BaseException:
            for future in futures:
                future.cancel()
            for one in stagers:
                one.con.interrupt()
            raise
        finally:
            pool.shutdown()
            for one in stagers[1:]:
                one.con.close()
