"""A corpus without some of its users: their rows go, with ids and tokens, and everybody after them moves up.

Micro-partitions without any of them are second names of the same files. Rows of the store move up with those of the corpus
(`trainer/store/erase.py`), so that nobody has to know of a gap. The vocabulary stays as it is: items are numbered by
it, and their counts go on counting the users who left until a corpus is built from the events.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.corpus.folder import CORPUS_MANIFEST, open_building_folders, partition_name, publish, write_partition
from tasks.corpus.regroup import read_part
from tasks.corpus.window import name_corpus
from tasks.root.run import Root
from tasks.users.user_set import UserSet
from trainer.store.tokens import CHANGED, COUNTS, Corpus, held_out_keys, open_corpus
from trainer.system.files import describe_file, digest_json, link_file, sync_file, write_manifest_json

_ROWS = "rows.npy"

Rows = dict[int, NDArray[np.int64]]
"""Micro-partition → rows of users who go, ascending; only those with some."""


def find_rows(corpus: Corpus, wanted: UserSet) -> Rows:
    """The rows of these users in a corpus."""
    found: Rows = {}
    for partition in wanted.partitions(corpus.num_partitions):
        if corpus.users[partition]:
            rows = np.flatnonzero(wanted.find(corpus.read_ids(partition)))
            found |= {partition: rows} if len(rows) else {}
    return found


def erase_from_corpus(root: Root, corpus: Corpus, rows: Rows) -> Corpus:
    """Make the corpus without the users in these rows, beside the one there is, unless it exists; returns it.

    Raises DamageError when a file is not as the manifest says.
    """
    made_from = {"of": corpus.manifest["window_id"], "without": digest_json(_list_rows(rows))}
    made_from = corpus.manifest.get("made_from", {}) | {"forgotten": made_from}
    window_id = name_corpus(made_from)
    folder = root.corpus(window_id)
    if not (folder / CORPUS_MANIFEST).exists():
        with open_building_folders(root, window_id) as (building, _):
            whole = _Erasing(corpus, building)
            whole.erase(rows)
            named: dict[str, Any] = {"window_id": window_id, "made_from": made_from}
            if (corpus.folder / CHANGED / CORPUS_MANIFEST).exists():
                named["num_changed"] = _erase_changed(corpus, building, rows, whole.item_counts, window_id)
            publish(building, folder, whole.manifest() | named)
    return open_corpus(folder)


def _list_rows(rows: Rows) -> list[Any]:
    return [[partition, found.tolist()] for partition, found in sorted(rows.items())]


@dataclass
class _Erasing:
    """A corpus that is written without some rows; item_counts int64[V]: what training saw of the rows that went, by item."""

    corpus: Corpus
    building: Path
    users: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    files: dict[str, Any] = field(default_factory=dict)
    num_held_out: int = 0
    item_counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def erase(self, rows: Rows) -> None:
        """Write all files. One micro-partition is in memory at a time."""
        manifest = self.corpus.manifest
        self.users, self.tokens = list(manifest["users"]), list(manifest["tokens"])
        self.item_counts = np.zeros(self.corpus.num_items, dtype=np.int64)
        changed = tuple(f"{partition_name(partition)}." for partition in rows)
        for name, about in manifest["files"].items():
            if not name.startswith(changed or ("\0",)):
                link_file(self.corpus.folder / name, self.building / name)
                self.files[name] = about
        for partition, going in rows.items():
            self._erase_partition(partition, going)

    def _erase_partition(self, partition: int, going: NDArray[np.int64]) -> None:
        part = read_part(self.corpus, partition)
        gone, kept = part.take(going), part.take(np.setdiff1d(np.arange(part.users.num_rows), going))
        is_held_out = self._are_held_out(gone)
        ends = np.where(is_held_out, gone.offsets[:-1] + gone.held_out, gone.offsets[1:])
        is_seen = np.arange(len(gone.tokens)) < np.repeat(ends, np.diff(gone.offsets))
        self.item_counts += np.bincount(gone.tokens[is_seen], minlength=self.corpus.num_items)
        self.num_held_out += int(is_held_out.sum())
        arrays: dict[str, Any] = {"offsets": kept.offsets, "tokens": kept.tokens, "held_out": kept.held_out}
        self.files |= write_partition(self.building, partition, kept.users, **arrays)
        self.users[partition], self.tokens[partition] = kept.users.num_rows, len(kept.tokens)

    def _are_held_out(self, part: Any) -> NDArray[np.bool_]:
        key_max = self.corpus.manifest["held_out_key_max"]
        if key_max < 0:
            return np.zeros(part.users.num_rows, dtype=bool)
        return (part.held_out >= 0) & (held_out_keys(part.users["hash"].to_numpy()) <= np.uint64(key_max))

    def manifest(self) -> dict[str, Any]:
        """What the new corpus's manifest says, but for its name."""
        old = self.corpus.manifest
        return old | {
            "users": self.users,
            "tokens": self.tokens,
            "num_users": old["num_users"] - sum(old["users"]) + sum(self.users),
            "num_tokens": sum(self.tokens),
            "num_held_out": old["num_held_out"] - self.num_held_out,
            "files": self.files,
        }


def _erase_changed(corpus: Corpus, building: Path, rows: Rows, item_counts: NDArray[np.int64], window_id: str) -> int:
    """Write the rows that a night trained without those that went; what is left has the numbers of the new corpus.

    Returns how many there are.
    """
    changed = open_corpus(corpus.folder / CHANGED)
    going: Rows = {}
    for partition, gone in rows.items():
        found = np.flatnonzero(np.isin(_read_rows(changed, partition), gone))
        going |= {partition: found}
    (building / CHANGED).mkdir()
    erasing = _Erasing(changed, building / CHANGED)
    erasing.erase(going)
    for partition, gone in rows.items():
        kept = np.setdiff1d(_read_rows(changed, partition), gone)
        renumbered = (kept - np.searchsorted(gone, kept)).astype(np.uint32)
        erasing.files |= _write_array(building / CHANGED / f"{partition_name(partition)}.{_ROWS}", renumbered)
    if COUNTS in erasing.files:
        (building / CHANGED / COUNTS).unlink()
        left = np.load(changed.path(COUNTS), allow_pickle=False) - item_counts
        erasing.files |= _write_array(building / CHANGED / COUNTS, left)
    write_manifest_json(
        building / CHANGED / CORPUS_MANIFEST, erasing.manifest() | {"window_id": f"{window_id}/{CHANGED}"}
    )
    return sum(erasing.users)


def _read_rows(changed: Corpus, partition: int) -> NDArray[np.int64]:
    return np.load(changed.path(f"{partition_name(partition)}.{_ROWS}"), allow_pickle=False).astype(np.int64)


def _write_array(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    np.save(path, array, allow_pickle=False)
    sync_file(path)
    return {path.name: describe_file(path)}
