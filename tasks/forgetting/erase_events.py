"""Takes users' events out of events/: files that have some are written anew without them, a source at a time.

Each source is committed by its own renaming of sources.json, so that the disk holds one source twice and a call that dies
leaves whole sources. What is left out is counted as "forgotten", as if it had never been let in.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.events.events_files import EVENTS_SCHEMA, write_events
from tasks.ingest.ingest import free_name, remove_leftovers
from tasks.ingest.sources import Catalog, events_files, read_catalog
from tasks.root.run import Root, open_scratch_folder
from tasks.users.tombstones import FORGOTTEN
from tasks.users.user_set import BATCH_ROWS, UserSet, search_file
from trainer.events import OnEvent
from trainer.system.files import describe_file, sync_file, sync_folder, verify_once

_SCRATCH = "forget.events"


def erase_events(root: Root, wanted: UserSet, on_event: OnEvent) -> int:
    """Take out all events of these users; returns how many. The caller holds the lock of writers and writes tombstones first.

    Raises DamageError when an events file is not as sources.json says; sources before it are then done.
    """
    catalog = read_catalog(root)
    remove_leftovers(root, catalog)
    num_erased = 0
    for done, digest in enumerate(sorted(catalog.entries), start=1):
        if erased := _erase_source(root, catalog, digest, wanted):
            catalog.write(root)
            remove_leftovers(root, catalog)
            num_erased += erased
        progress = {"step": "forget", "done": done, "total": len(catalog.entries), "unit": "sources"}
        on_event("progress", progress)
    return num_erased


def _erase_source(root: Root, catalog: Catalog, digest: str, wanted: UserSet) -> int:
    """Write the files of a source that have these users anew, and its entry in the catalog; returns the events taken out."""
    entry = catalog.entries[digest]
    files, days = dict(entry["files"]), dict(entry["days"])
    for path, about, way_out in events_files(root, entry):
        verify_once(path, about, way_out)
        if not _has_any(path, wanted, catalog.partitions or 1):
            continue
        name = str(path.relative_to(root.path))
        del files[name]
        written = _write_without(root, path, wanted, free_name(name, catalog.files))
        num_left = sum(written_about["rows"] for written_about in written.values())
        files |= written
        day = path.parent.name.removeprefix("day=")
        days[day] -= about["rows"] - num_left
    num_left = sum(about["rows"] for about in files.values())
    num_erased = entry["events"] - num_left
    if num_erased:
        left_out = entry["left_out"] | {FORGOTTEN: entry["left_out"].get(FORGOTTEN, 0) + num_erased}
        days = {day: number for day, number in days.items() if number}
        changed = {"files": files, "days": days, "events": num_left, "left_out": left_out}
        catalog.entries[digest] = entry | changed
    return num_erased


def _has_any(path: Path, wanted: UserSet, partitions: int) -> bool:
    with pq.ParquetFile(path) as file:
        return any(is_wanted.any() for is_wanted in search_file(file, wanted, wanted.groups(file.metadata, partitions)))


def _write_without(root: Root, path: Path, wanted: UserSet, name: str) -> dict[str, Any]:
    """Write an events file without these users under the name, durably; returns its entry, none where nothing is left."""
    with open_scratch_folder(root, f"{_SCRATCH}.{os.getpid()}") as folder, pq.ParquetFile(path) as file:
        staged = folder / "events.parquet"
        rows = pa.RecordBatchReader.from_batches(EVENTS_SCHEMA, _others(file, wanted))
        write_events(staged, rows)
        num_rows = pq.read_metadata(staged).num_rows
        if not num_rows:
            return {}
        sync_file(staged)
        target = root.path / name
        os.replace(staged, target)
        sync_folder(target.parent)
        return {name: {"rows": num_rows} | describe_file(target)}


def _others(file: pq.ParquetFile, wanted: UserSet) -> Iterator[pa.RecordBatch]:
    for rows in file.iter_batches(BATCH_ROWS):
        yield rows.cast(EVENTS_SCHEMA).filter(pa.array(~np.asarray(wanted.find(rows.column("user_id")))))
