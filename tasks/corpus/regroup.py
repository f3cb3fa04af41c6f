"""Changes the number of micro-partitions: moves the users of a corpus and their vectors in the store.

A user's micro-partition is the hash modulo the number of micro-partitions, a power of two. So old and new ones fall into
classes, each as large as one micro-partition of the coarser side. One class at a time is in memory.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.corpus.cleaning import to_offsets
from surf2vec.tasks.corpus.folder import BASE_KEYS, write_partition
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.model.rows import Rows, join_rows
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.layout import image_of_rows, read_rows
from surf2vec.trainer.store.tokens import COUNTS, VOCABULARY, Corpus, gather_spans, partition_name
from surf2vec.trainer.store.writer import Writer
from surf2vec.trainer.system.files import sync_file

BYTES_PER_USER = 200  # at the peak: ids and hashes twice, rows and offsets
BYTES_PER_TOKEN = 40  # at the peak: tokens twice, and the places they come from
COPIES_OF_ROWS = 3  # at the peak: as read, regrouped, and as written


@dataclass(frozen=True)
class Regrouping:
    """From `before` to `after` micro-partitions."""

    before: int
    after: int

    @property
    def num_classes(self) -> int:
        return min(self.before, self.after)

    def sources(self, number: int) -> range:
        """Return the old micro-partitions of a class."""
        return range(number, self.before, self.num_classes)

    def targets(self, number: int) -> range:
        """Return the new micro-partitions of a class."""
        return range(number, self.after, self.num_classes)

    def peak_bytes(self, corpus: Corpus, row_bytes: int) -> int:
        """Return the memory that the largest class takes."""
        users, tokens = (n.reshape(-1, self.num_classes).sum(axis=0) for n in (corpus.users, corpus.tokens))
        return int((users * (COPIES_OF_ROWS * row_bytes + BYTES_PER_USER) + tokens * BYTES_PER_TOKEN).max())


@dataclass(frozen=True)
class Part:
    """Users of a corpus and their histories, as in its files.

    users (user_id, hash, ...), holes among them; offsets int64[n+1]; tokens int32[...]; held_out int32[n].
    """

    users: pa.Table
    offsets: NDArray[np.int64]
    tokens: NDArray[np.int32]
    held_out: NDArray[np.int32]

    def take(self, rows: NDArray[np.int64]) -> "Part":
        """Return the users in these rows, in this order."""
        offsets, tokens = gather_spans(self.tokens, self.offsets[:-1][rows], np.diff(self.offsets)[rows])
        return Part(self.users.take(pa.array(rows)), offsets, tokens, self.held_out[rows])


def read_part(corpus: Corpus, partition: int) -> Part:
    """Return one micro-partition of a corpus. Raises DamageError when a file differs from the manifest."""
    name = partition_name(partition)
    kinds = ("users.parquet", "offsets.npy", "tokens.npy", "held_out.npy")
    paths = [corpus.path(f"{name}.{kind}") for kind in kinds]
    offsets, tokens, held_out = (np.load(path, allow_pickle=False) for path in paths[1:])
    return Part(pq.read_table(paths[0]), offsets, tokens, held_out)


def join_parts(parts: list[Part]) -> Part:
    """Return several micro-partitions as one, with their users in sequence."""
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Part(
        pa.concat_tables([part.users for part in parts]),
        to_offsets(lengths),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.held_out for part in parts]),
    )


def arrange(users: pa.Table, partitions: int, targets: range) -> list[NDArray[np.int64]]:
    """Return the rows of `users` (user_id, hash) that belong to each micro-partition in `targets`, sorted by user_id.

    Holes are left out.
    """
    num_users = len(users) - users["user_id"].null_count
    by_id = pc.sort_indices(users["user_id"])[:num_users].to_numpy().astype(np.int64)  # nulls come last
    places = (users["hash"].to_numpy() % np.uint64(partitions))[by_id]
    return [by_id[places == target] for target in targets]


class Regrouper:
    """Moves the users of a corpus, and their rows of a generation, class by class into other micro-partitions."""

    def __init__(self, regrouping: Regrouping, corpus: Corpus, generation: Generation, writer: Writer) -> None:
        """`writer`: of the store's next generation."""
        self.regrouping, self.corpus, self.generation, self.writer = regrouping, corpus, generation, writer
        self.num_users: NDArray[np.int64] = np.zeros(regrouping.after, dtype=np.int64)
        self.num_tokens: NDArray[np.int64] = np.zeros(regrouping.after, dtype=np.int64)
        self.files: dict[str, Any] = {}

    def move_all(self, building: Path | None) -> None:
        """Write the vectors of every class and, unless `building` is None as they exist already, the corpus's files."""
        for number in range(self.regrouping.num_classes):
            self._move_class(number, building)
        if building:
            for name in {VOCABULARY, COUNTS} & self.corpus.manifest["files"].keys():
                shutil.copyfile(self.corpus.path(name), building / name)
                sync_file(building / name)
                self.files[name] = self.corpus.manifest["files"][name]

    def corpus_manifest(self) -> dict[str, Any]:
        """Return the manifest of the written corpus, without its name."""
        kept = {name: value for name, value in self.corpus.manifest.items() if name not in BASE_KEYS}
        return kept | {
            "partitions": self.regrouping.after,
            "users": self.num_users.tolist(),
            "holes": [0] * self.regrouping.after,
            "tokens": self.num_tokens.tolist(),
            "base": None,
            "files": self.files,
        }

    def _move_class(self, number: int, building: Path | None) -> None:
        sources, targets = self.regrouping.sources(number), self.regrouping.targets(number)
        part = join_parts([read_part(self.corpus, partition) for partition in sources])
        places = arrange(part.users, self.regrouping.after, targets)
        if sum(map(len, places)) != len(part.users) - part.users["user_id"].null_count:
            raise DamageError(f"{self.corpus.folder} has users in the wrong micro-partition: run `surf2vec doctor`")
        for target, rows in zip(targets, places, strict=True):
            self.num_users[target] = len(rows)
            if building:
                taken = part.take(rows)
                self.num_tokens[target] = len(taken.tokens)
                self.files |= write_partition(
                    building, target, taken.users, offsets=taken.offsets, tokens=taken.tokens, held_out=taken.held_out
                )
        num_rows = len(part.users)
        del part
        self._move_rows(sources, targets, places, num_rows)

    def _move_rows(self, sources: range, targets: range, places: list[NDArray[np.int64]], num_rows: int) -> None:
        """Write the vectors and optimizer state of a class, bit for bit the same per user."""
        entries = self.generation.manifest["users"]
        parts = [read_rows(self.generation.folder, entries[str(p)]) for p in sources if str(p) in entries]
        if not parts:
            return
        moved = join_rows(parts)
        del parts
        if len(moved.vectors) != num_rows:
            raise DamageError(
                f"{self.generation.folder} has {len(moved.vectors):,} vectors for {num_rows:,} rows of {self.corpus.folder}: "
                "they do not belong together; train again with `surf2vec run`"
            )
        for target, rows in zip(targets, places, strict=True):
            if len(rows):  # a training writes no file for a micro-partition without users
                self.writer.write_users(target, image_of_rows(Rows(moved.vectors[rows], moved.squares[rows])))
