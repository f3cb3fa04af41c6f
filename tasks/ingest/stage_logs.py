"""Stages the logs of a call: two batches at a time per process, divided among the machines of a cluster.

At the end of each DuckDB step cores idle, and the other batch uses them. Both share the memory; if it is small, they are staged
one after the other. Machines exchange only paths, counts and settings.
"""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from surf2vec.sql.runner import connect
from surf2vec.tasks.ingest.batches import Batch
from surf2vec.tasks.ingest.remote_logs import RemoteLogs
from surf2vec.tasks.ingest.staging import BytesDone, Staged, Stager, Staging, define_session
from surf2vec.tasks.ingest.user_key import check_fingerprint
from surf2vec.tasks.root.memory import spare_bytes
from surf2vec.tasks.users.tombstones import read_tombstones
from surf2vec.trainer.events import OnEvent
from surf2vec.trainer.system.fan_out import FanOut, cut

AT_ONCE = 2
SOURCE_BYTES = 128_000_000  # DuckDB memory for each batch staged at the same time
DUCKDB_SHARE = 45  # per cent of the spare memory; blocks of logs and uncounted DuckDB memory take 50 MB more
PART_SHARE = 40  # per cent of the spare memory for all parts in memory at the same time, at their peak
LEAST_DUCKDB_BYTES = 160_000_000  # with less, sorting a million lines fails instead of spilling
REPORT_SECONDS = 0.5


def stage_logs(staging: Staging, fan_out: FanOut, progress: BytesDone) -> Iterator[Staged]:
    """Stage every batch; yields what is staged in order. Raises InputError for an unreadable log, ConfigError for another key."""
    batches = staging.batches
    if fan_out.num_parts == 1 or len(batches) == 1:
        yield from _stage_each(staging, progress)
        return
    threads = fan_out.choose_threads(staging.threads)
    places = cut([max(1, batch.bytes) for batch in batches], fan_out.num_parts)
    parts = [replace(staging, threads=threads, batches=batches[place.start : place.stop]) for place in places]
    for staged in fan_out.run(stage_part, parts, progress.on_event):
        yield from staged


def stage_part(part: Staging, on_event: OnEvent) -> list[Staged]:
    """Stage the logs of a part into a folder of its own."""
    in_folder = replace(part, folder=Path(tempfile.mkdtemp(dir=part.folder, prefix="part.")))
    return list(_stage_each(in_folder, BytesDone(part.num_bytes, on_event)))


def _stage_each(staging: Staging, progress: BytesDone) -> Iterator[Staged]:
    """Stage each batch with as many stagers as fit into memory; yields what is staged in order and reports progress."""
    spare = spare_bytes(staging.memory_bytes)
    duckdb_bytes = max(spare * DUCKDB_SHARE // 100, min(staging.memory_bytes // 2, LEAST_DUCKDB_BYTES))
    num_stagers = max(1, min(AT_ONCE, len(staging.batches), duckdb_bytes // SOURCE_BYTES))
    shared = (
        staging,
        progress,
        spare * PART_SHARE // 100 // num_stagers,
        check_fingerprint(staging.config, staging.user_key),
        read_tombstones(staging.root),
        RemoteLogs(staging.downloads, staging.config),
    )
    free: SimpleQueue[Stager] = SimpleQueue()

    def stage(batch: Batch) -> list[Staged]:
        stager = free.get()
        try:
            return stager.stage(batch)
        finally:
            free.put(stager)

    threads = staging.threads or os.cpu_count() or 1
    with connect(duckdb_bytes, staging.folder / "spill", threads) as con, ThreadPoolExecutor(num_stagers) as pool:
        cursors = [con.cursor() for _ in range(num_stagers)]
        for cursor in cursors:
            define_session(cursor, staging.config)
            free.put(Stager(cursor, *shared))
        futures = [pool.submit(stage, batch) for batch in staging.batches]
        try:
            for future in futures:
                while not wait([future], timeout=REPORT_SECONDS).done:
                    progress.report()
                yield from future.result()
                progress.report()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for cursor in cursors:
                cursor.interrupt()
            raise
