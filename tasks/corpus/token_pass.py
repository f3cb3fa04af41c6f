"""The second pass: from the scratch files of `tasks/corpus/clean_pass.py` and the vocabulary to the files of the corpus.

Each micro-partition is written by itself, on any thread: what is written does not depend on the others. With a base its
users stay in their rows, and what is to be trained is written a second time, as a corpus of its own, into `changed/`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.config import IngestConfig
from tasks.corpus.cleaning import Tokens, find_held_out, keep_in_vocabulary, keep_newest
from tasks.corpus.continuation import USERS_SCHEMA, continue_rows, find_changed, find_known
from tasks.corpus.folder import partition_name, write_partition
from trainer.errors import DamageError
from trainer.store.tokens import CHANGED, Corpus, held_out_keys


@dataclass(frozen=True)
class BaseCorpus:
    """The corpus to continue; oldest_day: its users leave whose newest event was before it, in days since 1970.

    is_full: a full night, which takes over nothing of it but users who stay without events.
    """

    corpus: Corpus
    oldest_day: int
    is_full: bool = False

    def read(self, partition: int) -> tuple[pa.Table, Tokens]:
        """The users of a micro-partition, as USERS_SCHEMA, and their tokens. Raises DamageError when a file was altered."""
        for kind in ("users.parquet", "offsets.npy", "tokens.npy"):
            self.verify(f"{partition_name(partition)}.{kind}")
        histories = self.corpus.read(partition)
        return self.corpus.read_users(partition), Tokens(histories.offsets, histories.tokens)

    def verify(self, name: str) -> Path:
        """The path of a file of the corpus. Raises DamageError when it was altered."""
        try:
            return self.corpus.path(name)
        except DamageError as error:
            way_out = "set nightly.full_from_champion to false" if self.is_full else "run with --full"
            raise DamageError(f"{error}; or {way_out}, then nothing is built on it") from None


@dataclass
class Written:
    """What the second pass wrote: of one micro-partition, or of all so far.

    users, holes and tokens: how many of each micro-partition, in order, holes among users; num_of_kept_users: events of users
    who are kept, all of them; num_kept_users: how many these users are; num_left: users of the base who left a hole; keys
    uint64: of the users that can be held out; changed: what is in `changed/`.
    """

    users: list[int] = field(default_factory=list)
    holes: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    num_in_vocabulary: int = 0
    num_of_kept_users: int = 0
    num_kept_users: int = 0
    num_new_users: int = 0
    num_left: int = 0
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    files: dict[str, Any] = field(default_factory=dict)
    changed: "Written | None" = None

    def add(self, other: "Written", max_keys: int) -> None:
        """Take in the next micro-partition; only the `max_keys` smallest keys are kept, ascending."""
        self.users += other.users
        self.holes += other.holes
        self.tokens += other.tokens
        self.num_in_vocabulary += other.num_in_vocabulary
        self.num_of_kept_users += other.num_of_kept_users
        self.num_kept_users += other.num_kept_users
        self.num_new_users += other.num_new_users
        self.num_left += other.num_left
        self.keys = np.sort(np.concatenate([self.keys, other.keys]))[:max_keys]
        self.files |= other.files
        if other.changed:
            self.changed = self.changed or Written()
            self.changed.add(other.changed, max_keys)


@dataclass(frozen=True)
class Visitors:
    """The users of a micro-partition who are in the window, as USERS_SCHEMA, and the tokens of each.

    has_events bool[N]: not so for bots; is_kept bool[N]: with enough events; only these have tokens.
    """

    users: pa.Table
    has_events: NDArray[np.bool_]
    is_kept: NDArray[np.bool_]
    tokens: Tokens


def write_tokens(
    scratch: Path,
    building: Path,
    config: IngestConfig,
    item_ix: NDArray[np.int32],
    partition: int,
    base: BaseCorpus | None = None,
) -> Written:
    """Write the files of a micro-partition.

    item_ix int32[I]: of each item code of its group, -1 outside the vocabulary. Raises DamageError when the base's files are
    not as its manifest says.
    """
    users, lengths, codes = _read_scratch(scratch, partition)
    known = keep_in_vocabulary(lengths, item_ix[codes])
    num_left = np.diff(known.offsets)
    is_kept = num_left >= config.min_user_events
    histories = keep_newest(known, is_kept, config.max_user_events)
    if base is None or base.is_full:
        kept = users.filter(pa.array(is_kept))
        retained = _find_retained(base, partition, users.filter(pa.array(lengths > 0)), kept) if base else None
        written = _write_plain(building, partition, kept, histories, retained)
    else:
        tokens = _spread(histories, is_kept)
        written = _write_continued(building, partition, Visitors(users, lengths > 0, is_kept, tokens), base)
    written.num_in_vocabulary = len(known.tokens)
    written.num_of_kept_users = int(num_left[is_kept].sum())
    written.num_kept_users = int(is_kept.sum())
    return written


def _write_plain(
    building: Path, partition: int, users: pa.Table, histories: Tokens, retained: pa.Table | None
) -> Written:
    """Write a micro-partition of a corpus without a base: all who are kept, in the order of their ids; then who has no tokens."""
    held_out, offsets = find_held_out(histories), histories.offsets
    if retained:
        users = pa.concat_tables([users, retained])
        held_out = np.append(held_out, np.full(retained.num_rows, -1, held_out.dtype))
        offsets = np.append(offsets, np.full(retained.num_rows, offsets[-1]))
    hashes = users["hash"].to_numpy()
    arrays: dict[str, np.ndarray] = {"offsets": offsets, "tokens": histories.tokens, "held_out": held_out}
    return Written(
        users=[users.num_rows],
        holes=[0],
        tokens=[len(histories.tokens)],
        keys=held_out_keys(hashes[held_out >= 0]),
        files=write_partition(building, partition, users, arrays),
    )


def _write_continued(building: Path, partition: int, visitors: Visitors, base: BaseCorpus) -> Written:
    """Write a micro-partition of a corpus with a base, and of its changed rows.

    Held out are only items that the base had not among the tokens of their row, or its vectors would know them.
    """
    base_users, before = base.read(partition)
    users, now = _continue_users(base_users, visitors, base.oldest_day)
    rows = np.flatnonzero(find_changed(before, now))
    tonight = now.take(rows)
    held_out = find_held_out(tonight)
    held = np.flatnonzero(held_out >= 0)
    items = tonight.tokens[tonight.offsets[held] + held_out[held]]
    held_out[held[find_known(before, rows[held], items)]] = -1
    held_out_of_all = np.full(users.num_rows, -1, dtype=np.int32)
    held_out_of_all[rows] = held_out
    arrays: dict[str, np.ndarray] = {"offsets": now.offsets, "tokens": now.tokens, "held_out": held_out_of_all}
    of_rows: dict[str, np.ndarray] = {
        "offsets": tonight.offsets, "tokens": tonight.tokens, "held_out": held_out, "rows": rows.astype(np.uint32)
    }  # fmt: skip
    num_holes = users["user_id"].null_count
    return Written(
        users=[users.num_rows],
        holes=[num_holes],
        tokens=[len(now.tokens)],
        num_new_users=users.num_rows - base_users.num_rows,
        num_left=num_holes - base_users["user_id"].null_count,
        keys=held_out_keys(users["hash"].to_numpy()[held_out_of_all >= 0]),
        files=write_partition(building, partition, users, arrays),
        changed=Written(
            users=[len(rows)],
            holes=[0],
            tokens=[len(tonight.tokens)],
            files=write_partition(building / CHANGED, partition, users.take(pa.array(rows)), of_rows),
        ),
    )


def _find_retained(base: BaseCorpus, partition: int, visitors: pa.Table, kept: pa.Table) -> pa.Table:
    """The users of the base who are not kept in the window and not too long away, as USERS_SCHEMA, in their order."""
    before, _ = base.read(partition)
    rows = continue_rows(before, visitors, base.oldest_day).users.slice(0, before.num_rows)
    is_here = pc.is_in(rows["user_id"], kept["user_id"].combine_chunks())
    return rows.filter(pc.and_(pc.is_valid(rows["user_id"]), pc.invert(is_here)))


def _continue_users(base_users: pa.Table, visitors: Visitors, oldest_day: int) -> tuple[pa.Table, Tokens]:
    """The users of a micro-partition, in their rows, and their tokens. Of who is not kept only users of the base have a row."""
    is_known = pc.is_in(visitors.users["user_id"], base_users["user_id"].combine_chunks()).to_numpy()
    places = np.flatnonzero(visitors.is_kept | (visitors.has_events & is_known))
    continued = continue_rows(base_users, visitors.users.take(pa.array(places)), oldest_day)
    return continued.users, visitors.tokens.take(np.append(places, -1)[continued.source])


def _spread(histories: Tokens, is_kept: NDArray[np.bool_]) -> Tokens:
    """The histories of the users who are kept as tokens of all, of whom the others have none."""
    lengths = np.zeros(len(is_kept), dtype=np.int64)
    lengths[is_kept] = np.diff(histories.offsets)
    return Tokens(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64), histories.tokens)


def _read_scratch(scratch: Path, partition: int) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.int32]]:
    """Users, events of each int64[N], item codes int32[E]; a micro-partition without events in the window has no files."""
    name = partition_name(partition)
    path = scratch / f"{name}.users.arrow"
    if not path.exists():
        return USERS_SCHEMA.empty_table(), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        users = reader.read_all()
    lengths, codes = (np.load(scratch / f"{name}.{kind}.npy", allow_pickle=False) for kind in ("lengths", "items"))
    return users.cast(USERS_SCHEMA), lengths, codes
