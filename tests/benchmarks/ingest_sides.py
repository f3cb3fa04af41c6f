"""The two sides of the benchmark of ingest, each in a process of its own: `python -m tests.benchmarks.ingest_sides SIDE ...`.

The bare side is what a person would write by hand in SQL: URLs without query and fragment (most tracked URLs are seen once
otherwise), a vocabulary of those seen often enough, one join, one sort, one Parquet file, fsync. It accounts for no line, knows
no user's bots or repeats, and cannot be asked for another window.
"""

import json
import sys
import time
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

THREADS = 2
SIDES = ("bare", "ours")
_READERS = {
    "parquet": "read_parquet($files)",
    "csv": "read_csv($files, columns = {'user_id': 'varchar', 'url': 'varchar', 'ts': 'timestamptz'}, header = true, "
    "ignore_errors = true)",
}


def run_ours(logs: str, folder: Path, partitions: int, memory_bytes: int) -> int:
    """Our ingest and corpus into a fresh root; returns the lines."""
    root, settings = open_root(folder), IngestConfig()
    record = ingest(root, [logs], settings, partitions, memory_bytes, THREADS, ignore_event)
    build_corpus(root, CorpusRequest(settings, EvaluateConfig()), memory_bytes, THREADS)
    return int(record["lines"])


def run_bare(logs: str, folder: Path, partitions: int, memory_bytes: int) -> int:
    """Read, sort and join by DuckDB alone; returns the rows."""
    files = sorted(glob(logs))
    url = "split_part(split_part(url, '?', 1), '#', 1)"
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
    return int(written[0][0])


def main(side: str, logs: str, folder: Path, partitions: int, memory_bytes: int) -> dict[str, float]:
    """Run one side in the new folder `folder`; return its rows, and the wall and processor seconds that it took."""
    started, cpu_started = time.perf_counter(), time.process_time()
    rows = (run_ours if side == "ours" else run_bare)(logs, folder, partitions, memory_bytes)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return {"rows": rows, "seconds": seconds, "cpu_seconds": cpu_seconds}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))))
