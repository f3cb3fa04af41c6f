"""The second pass: from the scratch files of `tasks/group_events.py` and the vocabulary to the files of the corpus.

Each micro-partition is written by itself, on any thread: what is written does not depend on the others.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.cleaning import find_held_out, keep_in_vocabulary, keep_newest
from tasks.config import IngestConfig
from tasks.corpus_folder import partition_name, write_partition
from trainer.corpus import held_out_keys

_USERS = pa.schema([("user_id", pa.string()), ("hash", pa.uint64())])


@dataclass
class Tokens:
    """What the second pass wrote: of one micro-partition, or of all so far.

    users and tokens: how many of each micro-partition, in order; keys uint64: of the users that can be held out.
    """

    users: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    num_in_vocabulary: int = 0
    num_of_kept_users: int = 0
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    files: dict[str, Any] = field(default_factory=dict)

    def add(self, other: "Tokens", max_keys: int) -> None:
        """Take in the next micro-partition; only the `max_keys` smallest keys are kept, ascending."""
        self.users += other.users
        self.tokens += other.tokens
        self.num_in_vocabulary += other.num_in_vocabulary
        self.num_of_kept_users += other.num_of_kept_users
        self.keys = np.sort(np.concatenate([self.keys, other.keys]))[:max_keys]
        self.files |= other.files


def write_tokens(
    scratch: Path, building: Path, config: IngestConfig, item_ix: NDArray[np.int32], partition: int
) -> Tokens:
    """Write the files of a micro-partition.

    item_ix int32[I]: of each item code of its group, -1 outside the vocabulary.
    """
    users, lengths, codes = _read_scratch(scratch, partition)
    known = keep_in_vocabulary(lengths, item_ix[codes])
    num_left = np.diff(known.offsets)
    is_kept = num_left >= config.min_user_events
    histories = keep_newest(known, is_kept, config.max_user_events)
    users = users.filter(pa.array(is_kept))
    held_out = find_held_out(histories)
    hashes = users["hash"].to_numpy()
    arrays: dict[str, np.ndarray] = {"offsets": histories.offsets, "tokens": histories.tokens, "held_out": held_out}
    return Tokens(
        users=[users.num_rows],
        tokens=[len(histories.tokens)],
        num_in_vocabulary=len(known.tokens),
        num_of_kept_users=int(num_left[is_kept].sum()),
        keys=held_out_keys(hashes[held_out >= 0]),
        files=write_partition(building, partition, users, arrays),
    )


def _read_scratch(scratch: Path, partition: int) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.int32]]:
    """Users, events of each int64[N], item codes int32[E]; a micro-partition without events in the window has no files."""
    name = partition_name(partition)
    path = scratch / f"{name}.users.arrow"
    if not path.exists():
        return _USERS.empty_table(), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        users = reader.read_all()
    lengths, codes = (np.load(scratch / f"{name}.{kind}.npy", allow_pickle=False) for kind in ("lengths", "items"))
    return users.cast(_USERS), lengths, codes
