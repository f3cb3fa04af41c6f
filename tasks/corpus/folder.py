"""A corpus folder being built: its files, then its manifest, then its name.

Everything is written under a temporary name and then synced; the final rename publishes the complete corpus.
The same content gives the same bytes: row groups have a fixed number of rows and no file contains a time of writing.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.activity.count import read_activity, read_digests
from surf2vec.tasks.events.events_files import write_row_groups
from surf2vec.tasks.root.run import Root, open_scratch_folder
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.store.tokens import CHANGED, COUNTS, VOCABULARY, Corpus, Tokens, partition_name
from surf2vec.trainer.system.files import (
    TEMPORARY_SUFFIX,
    describe_file,
    put_folder,
    sync_path,
    sync_paths,
    write_manifest_json,
)

CORPUS_MANIFEST = "manifest.json"
BASE_KEYS = ("num_changed", "num_new_users", "num_left", "num_new_items")  # of the manifest of a corpus with a base
ROW_GROUP_ROWS = 100_000
USERS_SCHEMA = pa.schema([("user_id", pa.string()), ("hash", pa.uint64()), ("last_day", pa.int32())])
"""last_day: of the newest event ever seen, in days since 1970, or UNDATED, which never expires. A hole is null, 0, 0."""
ROWS_SCHEMA = USERS_SCHEMA.append(pa.field("digest", pa.uint64()))
"""digest: of the events that the row's activity was counted from (tasks/activity/count.py)."""


@dataclass(frozen=True)
class BaseCorpus:
    """The corpus to continue. oldest_day, in days since 1970: users whose newest event is older are dropped.

    is_full: for a full night, which takes over only users without events in the window.
    """

    corpus: Corpus
    oldest_day: int
    is_full: bool

    def read(self, partition: int) -> tuple[pa.Table, Tokens, NDArray[np.float32]]:
        """Return a micro-partition's users, as ROWS_SCHEMA, tokens and activity. Raises DamageError when a file was altered."""
        with self.explain_damage():
            histories = self.corpus.read(partition)
            tokens = Tokens(histories.offsets, histories.tokens)
            digests = pa.array(read_digests(self.corpus, partition))
            users = self.corpus.read_users(partition).append_column("digest", digests)
            return users, tokens, read_activity(self.corpus, partition)

    @contextmanager
    def explain_damage(self) -> Iterator[None]:
        """Add to a DamageError in the block how to do without this corpus."""
        try:
            yield
        except DamageError as error:
            way_out = "set nightly.full_from_champion to false" if self.is_full else "run with --full"
            raise DamageError(f"{error}; or {way_out}, then nothing is built on it") from None


@contextmanager
def open_building_folders(root: Root, window_id: str) -> Iterator[tuple[Path, Path]]:
    """Yield a folder to be renamed to the corpus, and a scratch folder on the same disk; removes both at the end.

    First removes the files of dead builds: the caller holds the writer lock, so no other build is alive.
    """
    corpora = root.corpus(window_id).parent
    for folder in corpora.glob(f".*{TEMPORARY_SUFFIX}"):
        shutil.rmtree(folder)
    building = corpora / f".{window_id}.{os.getpid()}{TEMPORARY_SUFFIX}"
    with open_scratch_folder(root, "corpus") as scratch:
        try:
            building.mkdir(parents=True)
            yield building, scratch
        finally:
            shutil.rmtree(building, ignore_errors=True)


def write_partition(folder: Path, partition: int, users: pa.Table, **arrays: np.ndarray) -> dict[str, Any]:
    """Write a micro-partition's users and arrays (offsets, tokens, held_out, rows, activity, digests); returns their entries."""
    name = partition_name(partition)
    paths = [folder / f"{name}.users.parquet", *(folder / f"{name}.{kind}.npy" for kind in arrays)]
    with _open_parquet(paths[0], users.schema) as writer:
        writer.write_table(users.combine_chunks(), row_group_size=ROW_GROUP_ROWS)
    for path, array in zip(paths[1:], arrays.values(), strict=True):
        np.save(path, array, allow_pickle=False)
    return {path.name: describe_file(path) for path in paths}


def write_vocabulary(folder: Path, rows: pa.RecordBatchReader) -> dict[str, Any]:
    """Write the vocabulary's rows to its file, in row groups of a fixed size; returns the manifest entry."""
    path = folder / VOCABULARY
    with _open_parquet(path, rows.schema) as writer:
        write_row_groups(writer, rows, ROW_GROUP_ROWS)
    return {path.name: describe_file(path)}


def write_changed(building: Path, manifest: dict[str, Any], about: dict[str, Any]) -> None:
    """Finish the corpus of changed rows in `building`: write the item counts of the full corpus, and the manifest.

    manifest: of the full corpus; about: the entries that differ from it.
    """
    path = building / CHANGED / COUNTS
    np.save(path, Corpus(building, manifest).count_training_tokens(), allow_pickle=False)
    files = about["files"] | {COUNTS: describe_file(path)}
    own = {"window_id": f"{manifest['window_id']}/{CHANGED}", "holes": [0] * manifest["partitions"], "funnel": []}
    write_manifest_json(building / CHANGED / CORPUS_MANIFEST, manifest | own | about | {"files": files})


def publish(building: Path, folder: Path, manifest: dict[str, Any]) -> None:
    """Sync the files, write the manifest and rename the folder, durably."""
    sync_paths(path for path in building.rglob("*") if path.is_file())
    if (building / CHANGED).exists():
        sync_path(building / CHANGED)
    write_manifest_json(building / CORPUS_MANIFEST, manifest)
    put_folder(building, folder)  # what is there has no manifest, or there would be nothing to build
    sync_path(folder.parent.parent)


def _open_parquet(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer without dictionaries (ids and urls hardly repeat) and without Arrow's schema, which has a version."""
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False, store_schema=False)


def newest_corpus(root: Root) -> str:
    """Return the window id of the newest corpus. Raises InputError when there is none."""
    corpora = root.corpora()
    if not corpora:
        raise InputError(f"{root.path} has no corpus to search on: give --logs, or run `surf2vec run` first")
    return max(corpora, key=lambda folder: (folder / CORPUS_MANIFEST).stat().st_mtime_ns).name
