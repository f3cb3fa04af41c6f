"""Events in the layout that `tasks/ingest/ingest.py` writes, made from literal rows."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.ingest.sources import FORMAT_VERSION
from surf2vec.tasks.root.run import Root, open_root
from surf2vec.trainer.system.files import describe_file, write_json
from tests.data.corpora import RULES, user_hash

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("micro_partition", pa.int32()), ("user_hash", pa.uint64()), ("user_id", pa.string()), ("ts", pa.timestamp("us")),
        ("source", pa.uint64()), ("line", pa.int64()), ("url", pa.string()),
    ]
)  # fmt: skip


@cache
def digest_name(source: str) -> str:
    """What stands for the sha256 of a log."""
    return hashlib.sha256(source.encode()).hexdigest()


@dataclass(frozen=True)
class Event:
    """One event: `at` is a time, or an integer order where the log has no time; `line` is its place in the log."""

    user_id: str
    url: str
    at: datetime | int
    source: str = "log"
    line: int = 0

    @property
    def sha256(self) -> str:
        return digest_name(self.source)

    @property
    def ts(self) -> datetime:
        """In UTC without saying so, as in the files."""
        at = self.at if isinstance(self.at, datetime) else EPOCH + timedelta(microseconds=self.at)
        return at.replace(tzinfo=None)

    @property
    def day(self) -> str:
        return self.at.date().isoformat() if isinstance(self.at, datetime) else "undated"

    @property
    def order(self) -> tuple[datetime, int, int]:
        return self.ts, int(self.sha256[:16], 16), self.line


def moment(day: int, second: int = 0) -> datetime:
    """A time on a day of January 2026."""
    return datetime(2026, 1, day, tzinfo=UTC) + timedelta(seconds=second)


def write_events(path: Path, events: Sequence[Event], partitions: int = 4, **catalog: Any) -> Root:
    """A root whose sources.json and events files hold these events; `catalog` replaces top-level values."""
    root = open_root(path)
    files: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        files[event.source, event.day].append(event)
    sources: dict[str, dict[str, Any]] = {}
    described: dict[str, dict[str, Any]] = {}
    for (name, day), group in sorted(files.items()):
        sha256 = group[0].sha256
        entry = sources.setdefault(
            name,
            {
                "name": name, "sha256": sha256, "bytes": 0, "copies": [], "events": 0, "days": {}, "files": [], "read_by": {},
                "left_out": {},
            },
        )  # fmt: skip
        relative = f"events/day={day}/{sha256[:16]}.parquet"
        write_events_file(root.path / relative, group, partitions)
        entry["events"] += len(group)
        entry["days"][day] = len(group)
        entry["files"].append(relative)
        described[relative] = {"rows": len(group)} | describe_file(root.path / relative)
    base = {"format_version": FORMAT_VERSION, "partitions": partitions, "user_key_fingerprint": None, "rules": RULES}
    write_json(root.sources, base | {"sources": list(sources.values()), "files": described} | catalog)
    return root


def write_events_file(path: Path, events: Sequence[Event], partitions: int) -> None:
    """One file under events/, sorted as the contract says."""
    rows = sorted(
        (user_hash(event.user_id) % partitions, event.user_id.encode(), *event.order, event.url) for event in events
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(zip(*rows, strict=True))
    user_ids = [user_id.decode() for user_id in columns[1]]
    columns[1:2] = [[user_hash(user_id) for user_id in user_ids], user_ids]  # type: ignore[list-item]
    pq.write_table(pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA), path)
