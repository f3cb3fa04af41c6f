"""Who was forgotten, as keyed digests: enough to know a person who comes back in a late file, too little to name anybody.

    ROOT/forgotten.key       32 random bytes, readable by the owner alone (mode 600)
    ROOT/forgotten.parquet   digest: HMAC-SHA256 of a user's id under that key; forgotten_on: the day. Sorted by digest

The digest is of the name that the root has for a user: the pseudonym where there are pseudonyms. Without the key nobody can
try names against the digests. The price: where anybody was ever forgotten, each distinct user of a new log costs 1.4 µs.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.root.run import Root
from tasks.users.pseudonyms import fingerprint, keyed_digest
from trainer.errors import DamageError
from trainer.system.files import replace_file

FORGOTTEN = "forgotten"
"""The reason under which ingest counts the events of the forgotten that it leaves out."""
KEY_FILE, FILE = "forgotten.key", "forgotten.parquet"
KEY_BYTES = 32
SCHEMA = pa.schema([("digest", pa.binary(KEY_BYTES)), ("forgotten_on", pa.date32())])
_FINGERPRINT = b"key_fingerprint"


@dataclass(frozen=True)
class Tombstones:
    """The digests of the forgotten, with the day of each, and the key that they are made with; none without a key."""

    key: bytes = b""
    days: dict[bytes, date] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.days)

    def is_forgotten(self, user_ids: Iterable[Any]) -> NDArray[np.bool_]:
        """Which of these users were forgotten, bool[n]; ids as the root has them, None is nobody."""
        ids = user_ids.to_pylist() if hasattr(user_ids, "to_pylist") else user_ids
        return np.array([user_id is not None and self.day_of(user_id) is not None for user_id in ids], dtype=bool)

    def day_of(self, user_id: str) -> date | None:
        """The day on which a user was forgotten."""
        return self.days.get(keyed_digest(user_id, self.key)) if self.days else None


NOBODY = Tombstones()


def read_tombstones(root: Root) -> Tombstones:
    """Who was forgotten in this root. Raises DamageError when the key is missing or another: nobody could be told then."""
    path, key_path = root.path / FILE, root.path / KEY_FILE
    if not path.exists():
        return Tombstones(key_path.read_bytes() if key_path.exists() else b"")
    if not key_path.exists():
        raise DamageError(f"{key_path} is missing: without it nobody can be told from {path}; bring back a copy of it")
    key = key_path.read_bytes()
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DamageError(f"{path} cannot be read ({error}): bring back a copy of it") from None
    if (table.schema.metadata or {}).get(_FINGERPRINT) != fingerprint(key).encode():
        raise DamageError(f"{key_path} is not the key that {path} was made with: bring back a copy of it")
    return Tombstones(key, dict(zip(table["digest"].to_pylist(), table["forgotten_on"].to_pylist(), strict=True)))


def add_tombstones(root: Root, user_ids: list[str]) -> int:
    """Write down that these users are forgotten; returns how many were not before. The caller holds the lock of writers."""
    known = read_tombstones(root)
    if not known.key:
        known = Tombstones(os.urandom(KEY_BYTES))
        _write_secret(root.path / KEY_FILE, known.key)
    today = datetime.now(UTC).date()
    digests = (keyed_digest(user_id, known.key) for user_id in user_ids)
    new = {digest: today for digest in digests if digest not in known.days}
    if new:
        days = dict(sorted((known.days | new).items()))
        rows = pa.table({"digest": list(days), "forgotten_on": list(days.values())}, schema=SCHEMA)
        rows = rows.replace_schema_metadata({_FINGERPRINT: fingerprint(known.key).encode()})
        with replace_file(root.path / FILE) as temporary:
            pq.write_table(rows, temporary, compression="none")
            temporary.chmod(0o600)
    return len(new)


def copy_tombstones(root: Root, other: Root) -> None:
    """Let another root, a folder of a call on the same machine, honour who was forgotten in this one."""
    for name in (KEY_FILE, FILE):
        if (root.path / name).exists():
            _write_secret(other.path / name, (root.path / name).read_bytes())


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, at no moment anybody else."""
    with (
        replace_file(path) as temporary,
        open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
    ):
        file.write(content)
