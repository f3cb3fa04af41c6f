"""Removes users from a root's events, corpora and generations. All other rows keep the same bits.

Events are committed by renaming sources.json: a killed call leaves no half-written file. New corpora
and generations are written beside the old ones, which stay until no manifest names them. Rows move up in the corpus and in the
store, so there are no gaps. The vocabulary is unchanged: its counts include these users until a corpus is built from the events.
"""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.activity.count import read_activity
from surf2vec.tasks.corpus.folder import BASE_KEYS, CORPUS_MANIFEST, open_building_folders, publish, write_partition
from surf2vec.tasks.corpus.window import name_corpus
from surf2vec.tasks.events.events_files import BATCH_ROWS, filter_events
from surf2vec.tasks.ingest.ingest import free_name, remove_leftovers
from surf2vec.tasks.ingest.sources import Catalog, day_of, events_files, number_source, read_catalog
from surf2vec.tasks.registry.release_state import find_generation
from surf2vec.tasks.root.run import Root, current_generation
from surf2vec.tasks.users.tombstones import FORGOTTEN
from surf2vec.tasks.users.user_set import UserSet
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.events import OnEvent, log_progress
from surf2vec.trainer.store.generation import Generation, next_generation, read_manifest, write_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST
from surf2vec.trainer.store.tokens import Corpus, Tokens, open_corpus, partition_name
from surf2vec.trainer.store.writer import erase_rows
from surf2vec.trainer.system.files import describe_file, digest_json, link_file, replace_file, verify_once

COMMIT_BYTES = 1_000_000_000  # of events files that are rewritten before they are committed
Rows = dict[int, NDArray[np.int64]]
"""Micro-partition → rows of the users to remove, ascending; only micro-partitions with some."""


def erase_events(root: Root, wanted: UserSet, on_event: OnEvent) -> int:
    """Remove all events of these users; the catalog then counts them as "forgotten". Returns their number.

    The caller holds the lock of writers and writes tombstones first. Raises DamageError if an events file does not match
    sources.json; the files before it are then done, but for less than COMMIT_BYTES.
    """
    catalog = read_catalog(root)
    remove_leftovers(root, catalog)
    num_erased = num_unwritten = 0
    files, sharers = list(events_files(root, catalog)), catalog.sharers
    for done, (path, about, way_out) in enumerate(files, start=1):
        verify_once(path, about, way_out)
        name = str(path.relative_to(root.path))
        if erased := _erase_file(root, catalog, name, sharers[name], wanted):
            num_erased += erased
            num_unwritten += about["bytes"]
        if num_unwritten and (num_unwritten > COMMIT_BYTES or done == len(files)):
            catalog.write(root)
            remove_leftovers(root, catalog)
            num_unwritten = 0
        log_progress(on_event, "forget", done, len(files), "files")
    return num_erased


def _erase_file(root: Root, catalog: Catalog, name: str, entries: list[dict[str, Any]], wanted: UserSet) -> int:
    """Rewrite a file without these users, and the catalog's entries of its sources. Returns the number of removed events."""
    path, erased = root.path / name, Counter[int]()
    with pq.ParquetFile(path, pre_buffer=False) as file:
        groups = wanted.groups(file.metadata, catalog.partitions or 1)
        for rows in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=["user_id", "source"]) if groups else ():
            erased.update(rows["source"].filter(pa.array(wanted.find(rows["user_id"]))).to_pylist())
    if not erased:
        return 0
    new_name = free_name(name, catalog.files)
    if num_left := catalog.files[name]["rows"] - erased.total():
        with replace_file(root.path / new_name) as staged:
            filter_events(path, staged, "user_id", lambda ids: ~wanted.find(ids))
        catalog.files[new_name] = {"rows": num_left} | describe_file(root.path / new_name)
    day = day_of(name)
    for entry in entries:
        num_gone = erased[number_source(entry["sha256"])]
        entry["days"][day] -= num_gone
        entry["events"] -= num_gone
        place = entry["files"].index(name)
        entry["files"][place : place + 1] = [new_name] if entry["days"][day] else []
        if num_gone:
            entry["left_out"][FORGOTTEN] = entry["left_out"].get(FORGOTTEN, 0) + num_gone
        entry["days"] = {day: number for day, number in entry["days"].items() if number}
    return erased.total()


def find_rows(corpus: Corpus, wanted: UserSet) -> Rows:
    """Return the rows of these users in a corpus."""
    found: Rows = {}
    for partition in wanted.partitions(corpus.num_partitions):
        if corpus.users[partition]:
            rows = np.flatnonzero(wanted.find(corpus.read_ids(partition)))
            found |= {partition: rows} if len(rows) else {}
    return found


def erase_from_corpus(root: Root, corpus: Corpus, rows: Rows) -> Corpus:
    """Write the corpus without the users in these rows, beside the old one, unless it exists. Returns it.

    The rows that a night trained (`changed/`) are left out, as that training has ended. One micro-partition is in memory at a
    time; those without any of the users are linked. Raises DamageError if a file does not match the manifest.
    """
    manifest = {name: value for name, value in corpus.manifest.items() if name not in BASE_KEYS} | {"files": {}}
    without = digest_json([[partition, found.tolist()] for partition, found in sorted(rows.items())])
    forgotten = {"of": manifest["window_id"], "without": without}
    manifest["made_from"] = manifest.get("made_from", {}) | {"forgotten": forgotten}
    manifest["window_id"] = name_corpus(manifest["made_from"])
    folder = root.corpus(manifest["window_id"])
    if (folder / CORPUS_MANIFEST).exists():
        return open_corpus(folder)
    users, tokens = corpus.users.copy(), corpus.tokens.copy()
    with open_building_folders(root, folder.name) as (building, _):
        for name, about in corpus.manifest["files"].items():
            if name.partition(".")[0] not in map(partition_name, rows):
                link_file(corpus.folder / name, building / name)
                manifest["files"][name] = about
        for partition, gone in rows.items():
            histories, kept = corpus.read(partition), np.setdiff1d(np.arange(corpus.users[partition]), gone)
            held_out = np.load(corpus.path(f"{partition_name(partition)}.held_out.npy"))[kept]
            left = Tokens(histories.offsets, histories.tokens).take(kept)
            manifest["files"] |= write_partition(
                building,
                partition,
                corpus.read_users(partition).take(pa.array(kept)),
                offsets=left.offsets,
                tokens=left.tokens,
                held_out=held_out,
                activity=read_activity(corpus, partition)[kept],
            )
            users[partition], tokens[partition] = len(kept), len(left.tokens)
            manifest["num_users"] -= len(gone)
            manifest["num_held_out"] -= int(histories.is_held_out[gone].sum())
            manifest["num_choosing"] = manifest.get("num_choosing", 0) - int(histories.is_choosing[gone].sum())
        manifest |= {"users": users.tolist(), "tokens": tokens.tolist(), "num_tokens": int(tokens.sum())}
        publish(building, folder, manifest)
    return open_corpus(folder)


def erase_state(
    root: Root, wanted: UserSet, export: dict[str, Any] | None = None, release: str = ""
) -> dict[str, Any] | None:
    """Remove the users from the store's generation and from that of the champion, which is then pinned as `release`.

    export: the manifest of the champion's export, if it has any of the users. Returns the manifest of its generation without
    them, None if the store lacks it. The caller holds the store's lock. Raises DamageError if a generation does not match its
    corpus, or a file was altered.
    """
    served, champion = find_generation(root, export) if export else None, None
    if served:
        pinned = f"pinned/{release}.json"  # a killed call may have written it
        is_done = (root.store / pinned).exists()
        champion = read_manifest(root.store / pinned) if is_done else _erase_generation(root, served, wanted, pinned)
    if current := current_generation(root):
        if not (served and champion and served.manifest["users"] == current.manifest["users"]):
            _erase_generation(root, current, wanted, STORE_MANIFEST)
        elif current.manifest["window_id"] != champion["window_id"]:
            _write_generation(current, STORE_MANIFEST, champion)
    return champion


def _erase_generation(root: Root, generation: Generation, wanted: UserSet, name: str) -> dict[str, Any] | None:
    """Write corpus, users' files and manifest `name` without the users. Returns it; None if the generation has none of them."""
    folder = root.corpus(generation.manifest["window_id"])
    if not folder.exists():
        raise DamageError(
            f"{folder} is missing, so the rows of generation {generation.generation} in {root.store} have no names: "
            f"restore a copy, or remove {root.store / STORE_MANIFEST} and train again; then run the same command again"
        )
    corpus = open_corpus(folder)
    rows = find_rows(corpus, wanted)
    if not rows:
        return None
    number = next_generation(root.store)
    users = erase_rows(generation, rows, corpus.users.tolist(), number)
    window_id = erase_from_corpus(root, corpus, rows).manifest["window_id"]
    erased = {"generation": number, "window_id": window_id, "users": users}
    _write_generation(generation, name, erased)
    return erased


def _write_generation(generation: Generation, name: str, erased: dict[str, Any]) -> None:
    values = {key: erased[key] for key in ("generation", "window_id", "users")}
    known_as = digest_json({"forgotten": generation.manifest["identity"], "window_id": values["window_id"]})
    write_manifest(generation.folder, name, generation.manifest | values | {"identity": known_as})
