"""`surf2vec repartition`: splits or joins the micro-partitions of a root that grew (or shrank).

The events are sorted again beside the old files. Renaming sources.json is the only commit point: if the command is killed before
it, the root is unchanged; the next writer of events removes what was left. Corpora, vectors and releases stay as they are, and
the champion serves on. The next night is a full night: it builds its corpus in the new micro-partitions and begins with the
champion's vectors (`surf2vec.tasks.training.beginning`).
"""

import os
import time
from glob import escape
from pathlib import Path
from typing import Any

from surf2vec.sql.runner import connect, stream_rows
from surf2vec.tasks.events.events_files import write_events
from surf2vec.tasks.ingest.ingest import choose_partitions, remove_leftovers
from surf2vec.tasks.ingest.sources import Catalog, events_files, read_catalog
from surf2vec.tasks.root.failures import explain_failures
from surf2vec.tasks.root.run import Root, open_scratch_folder, refuse_training
from surf2vec.trainer.events import OnEvent, ignore_event, log
from surf2vec.trainer.system.files import describe_file, sync_path, verify_all, verify_once


def repartition(
    root: Root, partitions: int | None, memory_bytes: int, threads: int, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """Give the root `partitions` micro-partitions, by default one for about 50,000 users of its events. Returns a summary.

    The caller holds the lock of writers. Raises ConfigError while a training is under way, ResourceError if disk or memory are
    too small, DamageError if a file does not match sources.json; the root is then unchanged.
    """
    started = time.monotonic()
    catalog = read_catalog(root)
    result: dict[str, Any] = {"partitions_before": catalog.partitions}
    remove_leftovers(root, catalog)
    try:
        with (
            explain_failures(root, "micro-partitions are split or joined", memory_bytes),
            open_scratch_folder(root, "repartition") as folder,
        ):
            if partitions is None:
                result["users"] = _count_users(root, catalog, folder, memory_bytes, threads)
                partitions = choose_partitions(result["users"])
            is_needed = catalog.partitions != partitions
            result |= {"partitions": partitions, "changed": is_needed, "bytes_written": 0}
            if is_needed:
                refuse_training(root, "repartition")
                moved = f"{len(catalog.files):,} events files go to {partitions:,} micro-partitions"
                log(on_event, f"{moved}; the next night is full")
                _move_events(root, catalog, partitions, memory_bytes, folder, threads)
                result["bytes_written"] = sum(about["bytes"] for about in catalog.files.values())
                catalog.partitions = partitions
                catalog.write(root)  # the commit point
            else:
                log(on_event, f"{root.path} has {partitions:,} micro-partitions already: nothing to do")
    finally:
        remove_leftovers(root, read_catalog(root))
    return result | {"seconds": round(time.monotonic() - started, 3)}


def _count_users(root: Root, catalog: Catalog, folder: Path, memory_bytes: int, threads: int) -> int:
    verify_all(events_files(root, catalog))
    with connect(memory_bytes // 2, folder / "spill", threads) as con:
        files = [escape(str(root.path / name)) for name in sorted(catalog.files)]
        # A grouping, unlike count(distinct), can spill to disk.
        users = con.read_parquet(files, hive_partitioning=False).select("user_id").distinct()
        return int(users.count("*").fetchall()[0][0])


def _move_events(root: Root, catalog: Catalog, after: int, memory_bytes: int, folder: Path, threads: int) -> None:
    """Rewrite each events file, sorted by the new micro-partitions, and enter the new files into the catalog."""
    with connect(memory_bytes // 2, folder / "spill", threads) as con:
        moved, files = {}, {}
        for path, about, way_out in events_files(root, catalog):
            verify_once(path, about, way_out)
            target = path.with_name(f"{path.name.split('.')[0]}.p{after:05d}.parquet")
            staged = folder / target.name
            params = {"files": [escape(str(path))], "partitions": after}
            write_events(staged, stream_rows(con, "intermediate/int_sorted_events", params))
            sync_path(staged)
            os.replace(staged, target)
            name = moved[str(path.relative_to(root.path))] = str(target.relative_to(root.path))
            files[name] = {"rows": about["rows"]} | describe_file(target)
    for entry in catalog.entries.values():
        entry["files"] = [moved[name] for name in entry["files"]]
    catalog.files = files
    for day in {(root.path / name).parent for name in catalog.files}:
        sync_path(day)
