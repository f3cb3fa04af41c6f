"""The delivered log files, and the catalog of all that a root has ingested: `sources.json`.

A source is identified by name and sha256. The same bytes under another name are a copy: recorded, but counted once. The
same name with other bytes replaces only the events of that source.
"""

import glob
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.system.files import read_json, write_manifest_json

FORMAT_VERSION = 4
_LOGS_SHOWN = 5
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class SourceFile:
    """A delivered log file. stamp: (bytes, mtime_ns, ctime_ns); while it is the same, the content is taken as unchanged."""

    name: str
    sha256: str
    stamp: Stamp

    @property
    def bytes(self) -> int:
        return self.stamp[0]

    @property
    def source_id(self) -> str:
        return self.sha256[:16]


def number_source(sha256: str) -> int:
    """Return the column "source" of the events of a source."""
    return int(sha256[:16], 16)


def is_remote(name: str) -> bool:
    """Return whether a log, or a glob of logs, is a URL and not a local path."""
    return "://" in name


def is_query(name: str) -> bool:
    """Return whether a log, or a source, is the result of a query: `shop.sql`, `shop.sql day 2026-11-02`."""
    return re.fullmatch(r".*\.sql( day \d{4}-\d\d-\d\d)?", name, re.DOTALL) is not None


def expand(pattern: str) -> list[str]:
    """Return the absolute paths of the files that match a glob or plain path. Raises InputError when there are none."""
    matches = [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern, recursive=True))
    files = [os.path.abspath(path) for path in matches if not os.path.isdir(path)]
    if not matches:
        raise InputError(f"no file matches {pattern!r} (in {os.getcwd()}): check the path")
    if not files:
        folder = pattern.rstrip("/")
        raise InputError(f"{pattern!r} is a folder, not a file: name the files in it, for instance --logs '{folder}/*'")
    return files


def read_stamp(path: str) -> Stamp:
    """Return the stamp that shows, without reading, whether a file changed. Raises InputError when it is no readable file."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is no regular file: give the logs as files")
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass
class Catalog:
    """The content of sources.json. entries: sha256 → the record of a source (see the contract of sources.json); files: name
    under the root → rows, bytes and sha256 of an events file.

    An entry's "name" is the source, "copies" are other names with the same bytes, "stamps" has the stamp of each name, "files"
    are those with its events, one for each of its "days". Small sources share files.
    """

    partitions: int | None = None
    user_key_fingerprint: str | None = None
    rules: dict[str, Any] | None = None
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def names(self) -> dict[str, str]:
        """Name → sha256, including copies."""
        return {name: digest for digest, entry in self.entries.items() for name in (entry["name"], *entry["copies"])}

    @property
    def stamps(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name → (stamp, sha256)."""
        return {
            name: (tuple(stamp), digest)
            for digest, entry in self.entries.items()
            for name, stamp in entry.get("stamps", {}).items()
        }

    @property
    def sharers(self) -> dict[str, list[dict[str, Any]]]:
        """File → the entries of the sources with events in it."""
        found: dict[str, list[dict[str, Any]]] = {}
        for entry in self.entries.values():
            for name in entry["files"]:
                found.setdefault(name, []).append(entry)
        return found

    def rename(self, names: Mapping[str, str], stamps: Mapping[str, Stamp]) -> None:
        """Set the names of entries to `names` (name → sha256): removes entries without one, others keep their first name."""
        by_digest: dict[str, list[str]] = {}
        for name in sorted(names):
            by_digest.setdefault(names[name], []).append(name)
        self.entries = {digest: entry for digest, entry in self.entries.items() if digest in by_digest}
        for digest, entry in self.entries.items():
            own = by_digest[digest]
            first = entry["name"] if entry["name"] in own else own[0]
            known = entry.get("stamps", {})
            known = {name: list(stamp) for name in own if (stamp := stamps.get(name) or known.get(name))}
            copies = [name for name in own if name != first]
            self.entries[digest] = entry | {"name": first, "copies": copies, "stamps": known}

    def write(self, root: Root) -> None:
        """Replace sources.json if it would change: this commits the ingest. Files that no source names are forgotten."""
        self.files = {name: self.files[name] for name in sorted(self.sharers)}
        value = {
            "format_version": FORMAT_VERSION,
            "partitions": self.partitions,
            "user_key_fingerprint": self.user_key_fingerprint,
            "rules": self.rules,
            "sources": sorted(self.entries.values(), key=lambda entry: entry["name"]),
            "files": self.files,
        }
        if not root.sources.exists() or read_json(root.sources) != value:
            write_manifest_json(root.sources, value)


class EventsFile(NamedTuple):
    """One file under events/, as `verify_all` takes it. about: its record in sources.json; way_out: how to repair it."""

    path: Path
    about: dict[str, Any]
    way_out: str = ""

    @property
    def day(self) -> date | None:
        """The day of its events; None if undated."""
        day = day_of(self.path)
        return None if day == "undated" else date.fromisoformat(day)


def events_files(root: Root, catalog: Catalog) -> Iterator[EventsFile]:
    """Yield each events file."""
    for name, entries in sorted(catalog.sharers.items()):
        way_out = f"pass {name_logs(entries)} to `surf2vec run --logs` again, which repairs it"
        yield EventsFile(root.path / name, catalog.files[name], way_out)


def name_logs(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return the logs of sources in words: all, or the first and the last if they are many."""
    logs = sorted({re.sub(r"(\.sql) day [-\d]+$", r"\1", entry["name"]) for entry in entries})
    if len(logs) > _LOGS_SHOWN:
        return f"the {len(logs):,} logs from {logs[0]} to {logs[-1]}"
    return f"the log{'s' if len(logs) > 1 else ''} {' '.join(logs)}"


def day_of(name: str | Path) -> str:
    """Return the day of an events file, or "undated"."""
    return Path(name).parent.name.removeprefix("day=")


def read_catalog(root: Root) -> Catalog:
    """Return the root's catalog, empty for a new root. Raises DamageError when sources.json cannot be read."""
    if not root.sources.exists():
        return Catalog()
    value = read_json(root.sources)
    if not isinstance(value, dict) or value.get("format_version") != FORMAT_VERSION:
        raise DamageError(f"{root.sources} is not of format {FORMAT_VERSION}: it was altered or is of another version")
    entries = {entry["sha256"]: entry for entry in value["sources"]}
    return Catalog(value["partitions"], value["user_key_fingerprint"], value["rules"], entries, value["files"])


def find_orphans(root: Root, catalog: Catalog) -> list[Path]:
    """Return the files under events/ that the catalog does not list."""
    named = {root.path / name for name in catalog.files}
    return sorted(path for path in root.events.glob("day=*/*.parquet") if path not in named)


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of counts by reason, the largest first."""
    total = Counter[str]()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
