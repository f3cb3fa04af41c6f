"""A delivery: the files of the globs, which are new, changed or known, and whether they, and the settings, can be used."""

import glob
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.batches import Log
from surf2vec.tasks.ingest.formats import EmptyLogError, recognise
from surf2vec.tasks.ingest.remote_logs import RemoteLogs
from surf2vec.tasks.ingest.sources import (
    Catalog,
    SourceFile,
    Stamp,
    expand,
    is_query,
    is_remote,
    read_catalog,
    read_stamp,
)
from surf2vec.tasks.ingest.sql_logs import check_query
from surf2vec.tasks.ingest.user_key import read_user_key
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.root.wording import format_counted
from surf2vec.trainer.errors import ConfigError, DamageError, InputError
from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.system.files import digest_file, verify_all, verify_once
from surf2vec.trainer.system.units import size

RULES_VERSION = 2  # of tasks/release/url_rules.py: increase it when a URL may give another item than before
DIGESTED_AT_ONCE = 2
_NAMES_SHOWN = 5
_FILES_AT_ONCE = 8
_FAULTS_SHOWN = 5
_SIGNS = {"Delta": "_delta_log/*.json", "Iceberg": "metadata/*.metadata.json"}
_NAMES = {"user": "user_id", "url": "url", "time": "ts"}
_MOST_REMOTE = 8  # folders that are looked at


@dataclass(frozen=True)
class Delivery:
    """The files of a call, compared with sources.json.

    to_ingest  the files to read, one for each content, the first by name
    names      name → sha256 of all sources after this delivery
    stamps     name → stamp of the files of this call
    changes    how the settings changed, in words; if they did, everything is read again
    """

    to_ingest: list[SourceFile]
    names: dict[str, str]
    stamps: dict[str, Stamp]
    num_new: int
    num_replaced: int
    num_known: int
    changes: list[str]


def list_stamps(patterns: Sequence[str], remote: RemoteLogs) -> dict[str, Stamp]:
    """Return the stamps of the files of the globs by name, each once, unread. Raises InputError if a glob has no such file."""
    paths: dict[str, str] = {}
    stamps: dict[str, Stamp] = {}
    for pattern in patterns:
        if is_remote(pattern):
            stamps |= remote.list(pattern)
        else:
            for path in expand(pattern):
                paths.setdefault(os.path.realpath(path), path)
    return stamps | {path: read_stamp(path) for path in paths.values()}


def find_sources(
    patterns: Sequence[str], known: Mapping[str, tuple[tuple[int, ...], str]], remote: RemoteLogs, on_event: OnEvent
) -> list[SourceFile]:
    """Return the files of the globs, each once, by name. A file with a stamp in `known` is not read again; queries always run."""
    stamps = list_stamps(patterns, remote)
    queries = [name for name in stamps if is_query(name)]
    results = [one for path in queries for one in remote.run(path, known)]
    stamps = {name: stamp for name, stamp in stamps.items() if name not in queries}
    unread = [name for name in stamps if name not in known or known[name][0] != stamps[name]]
    if unread:
        num_bytes = sum(stamps[name][0] for name in unread)
        log(on_event, f"reading {format_counted(len(unread), 'new log file')}, {size(num_bytes)}")

    def digest(name: str) -> str:
        if is_remote(name):
            return remote.digest(name, stamps[name])
        try:
            return digest_file(Path(name))
        except OSError as error:
            raise InputError(f"cannot read {name}: {error.strerror}; permit it, or leave it out of --logs") from None

    with ThreadPoolExecutor(DIGESTED_AT_ONCE) as pool:
        digests = {name: known[name][1] for name in known} | dict(zip(unread, pool.map(digest, unread), strict=True))
    return [*(SourceFile(name, digests[name], stamps[name]) for name in sorted(stamps)), *results]


def find_known(root: Root, patterns: Sequence[str], config: IngestConfig, partitions: int | None) -> bool:
    """Return, without reading a log, whether an ingest would change nothing: all was read like this, and the events are whole."""
    catalog = read_catalog(root)
    read_user_key(root, config)
    stamps, known = list_stamps(patterns, RemoteLogs(root.temporary, config)), catalog.stamps
    if not catalog.entries or (partitions and partitions != catalog.partitions):
        return False
    if any(is_query(name) or name not in known or known[name][0] != stamp for name, stamp in stamps.items()):
        return False
    sources = [SourceFile(name, known[name][1], stamp) for name, stamp in stamps.items()]
    return not plan_delivery(root, catalog, sources, config).to_ingest


def rules_of(config: IngestConfig) -> dict[str, Any]:
    """Return the settings that determine events; they are the same for all events of a root."""
    return {
        "version": RULES_VERSION,
        "timezone": config.timezone,
        "granularity": config.item_kind,
        "prefix_depth": config.prefix_depth if config.item_kind == "prefix" else None,
        "keep_query": sorted(set(config.keep_query)),
        "mask_secrets": config.mask_secrets,
    }


def read_by(config: IngestConfig) -> dict[str, Any]:
    """Return the settings for reading lines that are not the defaults. A source that was read with others counts as unknown."""
    names = {"columns", "layout", "layouts", "time_format", "time_unit"}
    return config.model_dump(mode="json", include=names, exclude_defaults=True)


def list_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return in words how the rules of a root changed. A later version of the rules may have settings that `old` lacks."""
    changes = []
    if old and old.get("version") != new["version"]:
        changes.append(
            f"the rules from URL to item (docs/urls.md) are of version {new['version']}, but were of {old.get('version')}"
        )
    before, now = (
        rules | ({"granularity": f"prefix:{rules['prefix_depth']}"} if rules.get("prefix_depth") else {})
        for rules in (old, new)
    )
    names = [name for name in now if name in before and name not in ("version", "prefix_depth")]
    return changes + [
        f"ingest.{name} is {now[name]!r}, but was {before[name]!r}" for name in names if now[name] != before[name]
    ]


def plan_delivery(root: Root, catalog: Catalog, sources: list[SourceFile], config: IngestConfig) -> Delivery:
    """Compare a delivery with the catalog. Content is read if it is new, was read by other settings, or its events are damaged.

    Raises ConfigError when the rules changed and sources made by the old rules would stay.
    """
    rules, old_rules = rules_of(config), catalog.rules or {}
    delivered = {source.name: source.sha256 for source in sources}
    known_names = catalog.names
    intact, changes = set[str](), list[str]()
    if catalog.entries and old_rules != rules:
        changes = list_changes(old_rules, rules)
        digests = set(delivered.values())
        staying = sorted(n for n, digest in known_names.items() if n not in delivered and digest not in digests)
        if staying:
            way_back = "" if old_rules.get("version") != rules["version"] else "set it back, or "
            shown = ", ".join(staying[:_NAMES_SHOWN]) + (", ..." if len(staying) > _NAMES_SHOWN else "")
            raise ConfigError(
                f"{'; '.join(changes)} when {root.path} was made: {way_back}pass all logs again in one call "
                f"({len(staying):,} are missing: {shown}), or begin a new --root: all events of a root follow the same rules"
            )
    else:
        settings = read_by(config)
        known = {digest: catalog.entries[digest] for digest in catalog.entries.keys() & delivered.values()}
        same = {digest: set(entry["files"]) for digest, entry in known.items() if entry["read_by"] == settings}
        damaged = _find_damaged(root, catalog, set[str]().union(*same.values()))
        intact = {digest for digest, files in same.items() if damaged.isdisjoint(files)}
    to_ingest = {source.sha256: source for source in reversed(sources) if source.sha256 not in intact}
    num_replaced = sum(source.name in known_names for source in to_ingest.values())
    return Delivery(
        to_ingest=sorted(to_ingest.values(), key=lambda source: source.name),
        names=known_names | delivered,
        stamps={source.name: source.stamp for source in sources},
        num_new=len(to_ingest) - num_replaced,
        num_replaced=num_replaced,
        num_known=len(sources) - len(to_ingest),
        changes=changes,
    )


def _find_damaged(root: Root, catalog: Catalog, names: set[str]) -> set[str]:
    """Return which of these events files are missing or were altered."""
    files = {name: (root.path / name, catalog.files[name], "") for name in sorted(names)}
    damaged = set[str]()
    with suppress(DamageError):
        verify_all(files.values())
        return damaged
    for name, file in files.items():
        try:
            verify_once(*file)
        except DamageError:
            damaged.add(name)
    return damaged


def check_shapes(patterns: Sequence[str], config: IngestConfig) -> None:
    """Look at all local logs before anything is started. Raise one InputError for all unreadable files of the globs, and for
    globs without files. Remote logs are checked when they are fetched.
    """

    def find_fault(path: str) -> str | None:
        try:
            check_query(path, config) if is_query(path) else recognise(Path(path), config)
        except EmptyLogError:  # ingest decides whether to leave it out until it has lines
            return None
        except InputError as error:
            return str(error)
        except OSError as error:
            return f"cannot read {path}: {error.strerror}"
        return None

    paths = dict.fromkeys(path for pattern in patterns if not is_remote(pattern) for path in expand(pattern))
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        faults = [fault for fault in pool.map(find_fault, paths) if fault]
    if faults:
        more = [f"and {len(faults) - _FAULTS_SHOWN:,} more files"] if len(faults) > _FAULTS_SHOWN else []
        raise InputError("\n".join([*faults[:_FAULTS_SHOWN], *more]))


def describe_table(logs: Sequence[Log], remote: RemoteLogs) -> str | None:
    """Return a warning if Parquet logs are of a Delta or Iceberg table, which keep deleted rows, with the SQL to read it."""
    parts = [(source.name, log) for log, source in logs if log.format == "parquet"]
    folders = {name[:at]: log for name, log in parts for at, letter in enumerate(name) if letter == "/" and at}
    away = sorted((folder for folder in folders if is_remote(folder)), key=len)[:_MOST_REMOTE]
    for folder in [folder for folder in folders if not is_remote(f"{folder}/")] + away:
        for kind, signs in _SIGNS.items():
            if found := remote.glob(f"{glob.escape(folder)}/{signs}"):
                place = folder if kind == "Delta" else max(found, key=lambda name: (len(name), name))
                columns = folders[folder].columns
                chosen = [f'"{columns[role]}" as {name}' for role, name in _NAMES.items() if columns[role]]
                number = sum(name.startswith(f"{folder}/") for name, _ in parts)
                return (
                    f"the {kind} table {folder} is read as plain Parquet ({format_counted(number, 'file')}): what it deleted "
                    f"or replaced counts, too; to read it right, with DuckDB's extension {kind.lower()}, give --logs table.sql, "
                    f"a file with: select {', '.join(chosen)} from {kind.lower()}_scan('{place}')"
                )
    return None
