"""The two sides of the benchmark of ingest, each in a process of its own: `python -m tests.benchmarks.ingest_sides SIDE ...`.

The bare side is what a person would write by hand in SQL: URLs without query and fragment (most tracked URLs are seen once
otherwise; with `raw` they stay), a vocabulary of those seen often enough, one join, one sort, one Parquet file, fsync. It
accounts for no line, knows no user's bots or repeats, and cannot be asked for another window.
"""

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from glob import glob
from pathlib import Path

from surf2vec.sql.runner import connect
from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.root.run import open_root
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.system.files import sync_path
from surf2vec.trainer.system.memory import private_bytes

THREADS = 2
SIDES = ("bare", "raw", "ours")
_READERS = {
    "parquet": "read_parquet($files)",
    "csv": "read_csv($files, columns = {'user_id': 'varchar', 'url': 'varchar', 'ts': 'timestamptz'}, header = true, "
    "ignore_errors = true)",
}


@dataclass(frozen=True)
class Run:
    """What one side took: wall and processor seconds, of which seconds of ingest; peak anonymous and shared bytes."""

    rows: int
    seconds: float
    cpu_seconds: float
    ingest_seconds: float
    peak_bytes: int
    disk_bytes: int


class PeakMemory:
    """The most memory that this process holds while the block runs, looked at a hundred times a second."""

    def __enter__(self) -> "PeakMemory":
        self.peak_bytes = 0
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.01):
            self.peak_bytes = max(self.peak_bytes, private_bytes())


def run_ours(logs: str, folder: Path, partitions: int, memory_bytes: int) -> tuple[int, float]:
    """Our ingest and corpus into a fresh root; returns the lines and the seconds of ingest."""
    root, settings = open_root(folder), IngestConfig()
    started = time.perf_counter()
    record = ingest(root, [logs], settings, partitions, memory_bytes, THREADS, ignore_event)
    ingest_seconds = time.perf_counter() - started
    build_corpus(root, CorpusRequest(settings, EvaluateConfig()), memory_bytes, THREADS)
    return record["lines"], ingest_seconds


def run_bare(logs: str, folder: Path, partitions: int, memory_bytes: int, is_raw: bool) -> tuple[int, float]:
    """Read, sort and join by DuckDB alone; returns the rows."""
    files = sorted(glob(logs))
    url = "url" if is_raw else "split_part(split_part(url, '?', 1), '#', 1)"
    rows = f"(select user_id, ts, {url} as item from {_READERS[Path(files[0]).suffix[1:]]})"
    folder.mkdir()
    target = folder / "tokens.parquet"
    with connect(memory_bytes, folder / "spill", THREADS) as con:
        con.execute(
            "create temporary table vocabulary as "
            "select (row_number() over (order by count(*) desc, item) - 1)::integer as item_ix, item "
            f"from {rows} group by item having count(*) >= $least",
            {"files": files, "least": IngestConfig().min_item_events},
        )
        written = con.execute(
            "copy (select (md5_number_lower(user_id) % $partitions)::integer as micro_partition, user_id, ts, item_ix "
            f"from {rows} left join vocabulary using (item) order by micro_partition, user_id, ts) "
            "to $target (format parquet, compression zstd)",
            {"files": files, "partitions": partitions, "target": str(target)},
        ).fetchall()
    sync_path(target)
    return written[0][0], 0.0


def main(side: str, logs: str, folder: Path, partitions: int, memory_bytes: int) -> Run:
    """Run one side in the new folder `folder`."""
    started, cpu_started = time.perf_counter(), time.process_time()
    with PeakMemory() as memory:
        if side == "ours":
            rows, ingest_seconds = run_ours(logs, folder, partitions, memory_bytes)
        else:
            rows, ingest_seconds = run_bare(logs, folder, partitions, memory_bytes, side == "raw")
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    disk_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Run(rows, seconds, cpu_seconds, ingest_seconds, memory.peak_bytes, disk_bytes)


if __name__ == "__main__":
    print(json.dumps(asdict(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])))))
