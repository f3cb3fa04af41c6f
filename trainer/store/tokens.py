"""Reads a corpus one micro-partition at a time, memory-mapped or into given pages, and never the whole of it.

Layout: `manifest.json` and for each micro-partition `p00012.users.parquet` (user_id, hash, last_day), `.offsets.npy` int64[n+1],
`.tokens.npy` int32[...], `.held_out.npy` int32[n]; others are not for training. A corpus that continues another may have holes
among its rows (user_id null, hash 0, no tokens). Its folder then has a second corpus, `changed/`, with the rows to train:
`p00012.rows.npy` uint32[k] has their row numbers in the full corpus, `counts.npy` int64[V] the training tokens of the full
corpus. `tasks/corpus/build.py` writes it.

Before a process reads a file for the first time, it compares its sha256 with the manifest's.
"""

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.store.images import read_pages
from surf2vec.trainer.system.files import read_json, verify_once
from surf2vec.trainer.system.memory import PAGE_BYTES, Bytes

CHANGED = "changed"
COUNTS = "counts.npy"
VOCABULARY = "vocabulary.parquet"


@dataclass(frozen=True)
class Histories:
    """The users of one micro-partition and their tokens.

    hashes uint64[n]; tokens int32[...]; offsets int64[n+1]: user i's tokens are tokens[offsets[i]:offsets[i+1]]; ends int64[n]:
    training uses them up to ends[i]; is_held_out bool[n]; chooses bool[n]: held-out users by whom settings are chosen, and who
    are not evaluated; None: nobody.
    """

    hashes: NDArray[np.uint64]
    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]
    is_held_out: NDArray[np.bool_]
    chooses: NDArray[np.bool_] | None = None

    @property
    def is_choosing(self) -> NDArray[np.bool_]:
        """Whether users are held out to choose settings, bool[n]."""
        return self.is_held_out & ~self.is_evaluated

    @property
    def is_evaluated(self) -> NDArray[np.bool_]:
        """Whether users are held out for evaluation, bool[n]."""
        return self.is_held_out if self.chooses is None else self.is_held_out & ~self.chooses

    @property
    def starts(self) -> NDArray[np.int64]:
        return self.offsets[:-1]

    @property
    def num_users(self) -> int:
        return len(self.hashes)

    def held_out_items(self) -> NDArray[np.int32]:
        """Return the held-out item of each evaluated user, in row order."""
        return self.tokens[self.ends[self.is_evaluated]]

    def withheld_items(self) -> NDArray[np.int32]:
        """Return the items that training does not use: those of held-out users from the held-out one on."""
        return gather_spans(self.tokens, self.ends, self.offsets[1:] - self.ends)[1]


def gather_spans(
    tokens: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Copy spans of tokens from `starts` int64[m] on, one after the other: returns offsets int64[m+1] and tokens int32[...]."""
    offsets = to_offsets(lengths)
    return offsets, tokens[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])]


def to_offsets(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return where each of n runs of these lengths begins, and the end of the last: int64[n+1]."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


@dataclass(frozen=True)
class Tokens:
    """Tokens of some users: tokens int32[E]; user i's are tokens[offsets[i]:offsets[i+1]], offsets int64[N+1]."""

    offsets: NDArray[np.int64]
    tokens: NDArray[np.int32]

    def take(self, rows: NDArray[np.int64]) -> "Tokens":
        """Return the tokens of the users in these rows, in this order; row -1 has none."""
        lengths = np.diff(self.offsets, append=self.offsets[-1])[rows]
        return Tokens(*gather_spans(self.tokens, self.offsets[rows], lengths))


def held_out_keys(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the users' keys for held-out sampling, uint64[n]: those up to the manifest's held_out_key_max are held out, and
    of them those up to evaluated_key_max are evaluated.
    """
    return ((hashes >> np.uint64(32)) ^ hashes) * np.uint64(0x9E3779B97F4A7C15)


def partition_name(partition: int) -> str:
    """Return the prefix of a micro-partition's file names."""
    return f"p{partition:05d}"


def matching_partitions(partition: int, num_partitions: int, num_others: int) -> range:
    """Return the micro-partitions of a corpus with `num_others` that have users of `partition` of one with `num_partitions`.

    Both numbers are powers of two, and a user's micro-partition is the hash modulo that number.
    """
    return range(partition % num_others, num_others, num_partitions)


@dataclass(frozen=True)
class Corpus:
    """A corpus folder and its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def num_partitions(self) -> int:
        return self.manifest["partitions"]

    @property
    def num_items(self) -> int:
        return self.manifest["num_items"]

    @property
    def num_evaluated(self) -> int:
        """Users held out for evaluation, without those by whom settings are chosen."""
        return self.manifest["num_held_out"] - self.manifest.get("num_choosing", 0)

    @property
    def has_order(self) -> bool:
        """Whether the events of a user have an order: times, or numbers in their place, that are not all equal."""
        return bool(self.manifest["has_order"])

    @property
    def num_users(self) -> int:
        """Users, without holes."""
        return self.manifest["num_users"]

    @cached_property
    def users(self) -> NDArray[np.int64]:
        """Rows of each micro-partition, holes included, int64[P]."""
        return np.array(self.manifest["users"], dtype=np.int64)

    @property
    def holes(self) -> list[int]:
        """Holes of each micro-partition: rows of users who left."""
        return self.manifest.get("holes") or [0] * self.num_partitions

    @cached_property
    def tokens(self) -> NDArray[np.int64]:
        """Raw tokens of each micro-partition, held-out ones included, int64[P]."""
        return np.array(self.manifest["tokens"], dtype=np.int64)

    def read(self, partition: int, pages: Bytes | None = None) -> Histories:
        """Read the histories of one micro-partition; tokens go past the page cache into `pages`, or are memory-mapped without.

        Raises DamageError when a file of it is missing or was altered.
        """
        name = partition_name(partition)
        hashes = self._column(f"{name}.users.parquet", "hash").to_numpy()
        offsets = self._array(f"{name}.offsets.npy")
        tokens_path = self.path(f"{name}.tokens.npy")
        tokens = np.load(tokens_path, mmap_mode="r") if pages is None else _read_array(tokens_path, pages)
        held_out = self._array(f"{name}.held_out.npy")
        if not len(hashes) == len(held_out) == len(offsets) - 1 or offsets[-1] != len(tokens):
            raise DamageError(f"{self.folder}: the files of micro-partition {partition} do not fit each other")
        is_held_out = held_out >= 0
        key_max, keys = self.manifest["held_out_key_max"], held_out_keys(hashes)
        is_held_out &= (keys <= np.uint64(key_max)) if key_max >= 0 else False
        ends = np.where(is_held_out, offsets[:-1] + held_out, offsets[1:])
        evaluated_max = self.manifest.get("evaluated_key_max", key_max)
        chooses = is_held_out & (keys > np.uint64(max(evaluated_max, 0)))
        return Histories(hashes, tokens, offsets, ends, is_held_out, chooses)

    def rows(self, partition: int) -> NDArray[np.uint32] | None:
        """Return the row numbers of a micro-partition in the full corpus, uint32[k], ascending; None in a full corpus."""
        name = f"{partition_name(partition)}.rows.npy"
        return self._array(name) if name in self.manifest["files"] else None

    def read_users(self, partition: int) -> pa.Table:
        """Read the users of one micro-partition, in row order: user_id (null in a hole), hash, last_day."""
        return pq.read_table(self.path(f"{partition_name(partition)}.users.parquet"))

    def read_ids(self, partition: int) -> pa.ChunkedArray:
        """Read the user ids of one micro-partition as an Arrow column, in row order; null in a hole."""
        return self._column(f"{partition_name(partition)}.users.parquet", "user_id")

    def count_training_tokens(self) -> NDArray[np.int64]:
        """Count how often training sees each item in an epoch, int64[V]; for changed rows, the counts of the full corpus."""
        if COUNTS in self.manifest["files"]:
            return self._array(COUNTS)
        counts = np.zeros(self.num_items, dtype=np.int64)
        for partition in range(self.num_partitions):
            histories = self.read(partition)
            counts += np.bincount(histories.tokens, minlength=self.num_items)
            counts -= np.bincount(histories.withheld_items(), minlength=self.num_items)
        return counts

    @property
    def vocabulary(self) -> Path:
        """The verified file of the items; for changed rows, that of the full corpus."""
        return (self if VOCABULARY in self.manifest["files"] else open_corpus(self.folder.parent)).path(VOCABULARY)

    def path(self, name: str) -> Path:
        """Return the path of a file of the corpus. Raises DamageError unless its bytes match the manifest."""
        way_out = f"remove {self.folder} and run the same `surf2vec run` again (--full if its night has ended)"
        if name not in self.manifest["files"]:
            raise DamageError(f"the manifest in {self.folder} does not name {name}; {way_out}")
        return verify_once(self.folder / name, self.manifest["files"][name], way_out)

    def _array(self, name: str) -> NDArray[Any]:
        return np.load(self.path(name), allow_pickle=False)

    def _column(self, name: str, column: str) -> Any:
        with pq.ParquetFile(self.path(name)) as file:  # a third of the time of `read_table`, for each micro-partition
            return file.read(columns=[column], use_threads=False).column(column)


def _read_array(path: Path, pages: Bytes) -> NDArray[Any]:
    """Read the array of a file into these pages."""
    num_bytes = path.stat().st_size
    data = read_pages(path, num_bytes, pages)[:num_bytes]
    header = io.BytesIO(data[:PAGE_BYTES].tobytes())
    np.lib.format.read_magic(header)
    _, _, dtype = np.lib.format.read_array_header_1_0(header)
    return data[header.tell() :].view(dtype)


def whole_window(window_id: str) -> str:
    """Return the window id of the full corpus, given it or that of its changed rows, `<window-id>/changed`."""
    return window_id.removesuffix(f"/{CHANGED}")


def open_corpus(folder: Path) -> Corpus:
    """Open the corpus in `folder`. Raises DamageError when it is missing or its manifest cannot be read."""
    return Corpus(folder, read_json(folder / "manifest.json"))
