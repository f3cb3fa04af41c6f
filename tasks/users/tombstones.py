"""The forgotten users as keyed digests: they recognise a user in a late file but do not reveal who it is.

    ROOT/forgotten.key       32 random bytes, readable by the owner alone (mode 600)
    ROOT/forgotten.parquet   digest: HMAC-SHA256 of a user's id under that key; forgotten_on: the day. Sorted by digest

The digest is of the id that the root uses: the pseudonym if there are pseudonyms. Without the key, ids cannot be tested
against the digests. The cost: once a user was forgotten, each distinct user of a new log takes 1.4 µs.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.pseudonyms import fingerprint, keyed_digest
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.system.files import replace_file, write_secret

FORGOTTEN = "forgotten"
"""The reason under which ingest counts the left-out events of forgotten users."""
KEY_FILE, FILE = "forgotten.key", "forgotten.parquet"
KEY_BYTES = 32
SCHEMA = pa.schema([("digest", pa.binary(KEY_BYTES)), ("forgotten_on", pa.date32())])
_FINGERPRINT = b"key_fingerprint"


@dataclass(frozen=True)
class Tombstones:
    """Digest → day of forgetting, and the key of the digests. Without a key there are no digests."""

    key: bytes = b""
    days: dict[bytes, date] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.days)

    def is_forgotten(self, user_ids: Iterable[Any]) -> NDArray[np.bool_]:
        """Return which of these users were forgotten, bool[n]; ids as the root uses them, False for None."""
        ids = user_ids.to_pylist() if hasattr(user_ids, "to_pylist") else user_ids
        return np.array([user_id is not None and self.day_of(user_id) is not None for user_id in ids], dtype=bool)

    def day_of(self, user_id: str) -> date | None:
        """Return the day on which a user was forgotten, or None."""
        return self.days.get(keyed_digest(user_id, self.key)) if self.days else None


NOBODY = Tombstones()


def read_tombstones(root: Root) -> Tombstones:
    """Return the forgotten users of this root. Raises DamageError when their key is missing or a different one."""
    path, key_path = root.path / FILE, root.path / KEY_FILE
    if not path.exists():
        return Tombstones(key_path.read_bytes() if key_path.exists() else b"")
    if not key_path.exists():
        raise DamageError(f"{key_path} is missing: without it {path} cannot be checked; restore a copy of it")
    key = key_path.read_bytes()
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DamageError(f"{path} cannot be read ({error}): restore a copy of it") from None
    if (table.schema.metadata or {}).get(_FINGERPRINT) != fingerprint(key).encode():
        raise DamageError(f"{key_path} is not the key that {path} was made with: restore a copy of it")
    return Tombstones(key, dict(zip(table["digest"].to_pylist(), table["forgotten_on"].to_pylist(), strict=True)))


def add_tombstones(root: Root, user_ids: list[str]) -> int:
    """Record these users as forgotten; returns how many are new. The caller holds the writer lock."""
    known = read_tombstones(root)
    if not known.key:
        known = Tombstones(os.urandom(KEY_BYTES))
        write_secret(root.path / KEY_FILE, known.key)
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
    """Copy the forgotten users to another root: a temporary one of a call on the same machine."""
    for name in (KEY_FILE, FILE):
        if (root.path / name).exists():
            write_secret(other.path / name, (root.path / name).read_bytes())
