"""A delivery: the files that globs name, which of them are new, changed or known, and whether the settings still fit the root."""

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.config import IngestConfig
from tasks.ingest.remote_logs import RemoteLogs
from tasks.ingest.sources import Catalog, SourceFile, Stamp, events_files, expand, is_remote, read_stamp
from tasks.root.run import Root
from tasks.root.wording import several
from trainer.errors import ConfigError, DamageError, InputError
from trainer.events import OnEvent, ignore_event
from trainer.system.files import digest_file, verify_all
from trainer.system.units import size

RULES_VERSION = 2  # of tasks/ingest/urls.py: one more when a URL may come to another item than before
DIGESTED_AT_ONCE = 2
_NAMED = 5


@dataclass(frozen=True)
class Delivery:
    """The files of a call, compared with sources.json.

    to_ingest  one file for each content that is to be read, the first by name
    names      name → sha256 of all sources as they are after it
    stamps     name → stamp of the files of this call
    changes    in words, how the settings differ from those of before: all is read again
    """

    to_ingest: list[SourceFile]
    names: dict[str, str]
    stamps: dict[str, Stamp]
    rules: dict[str, Any]
    num_new: int
    num_replaced: int
    num_known: int
    changes: list[str]

    def without(self, empty: Collection[SourceFile]) -> "Delivery":
        """The same without files that have no lines: it is as if they had not been delivered."""
        digests = {source.sha256 for source in empty}
        gone = {name for name in self.stamps if self.names[name] in digests}
        return replace(
            self,
            to_ingest=[source for source in self.to_ingest if source.sha256 not in digests],
            names={name: digest for name, digest in self.names.items() if name not in gone},
            stamps={name: stamp for name, stamp in self.stamps.items() if name not in gone},
            num_new=self.num_new - len(empty),
        )


def find_sources(
    patterns: Sequence[str],
    known: Mapping[str, tuple[Stamp, str]] | None = None,
    on_event: OnEvent = ignore_event,
    remote: RemoteLogs | None = None,
) -> list[SourceFile]:
    """The files that the globs name, each once, sorted by name. A file that `known` has with this stamp is not read again.

    Raises InputError when a glob matches nothing, or something that is no file or cannot be read.
    """
    paths: dict[str, str] = {}
    stamps: dict[str, Stamp] = {}
    for pattern in patterns:
        if remote and is_remote(pattern):
            stamps |= remote.list(pattern)
            continue
        for path in expand(pattern):
            paths.setdefault(os.path.realpath(path), path)
    known = known or {}
    stamps |= {path: read_stamp(path) for path in paths.values()}
    stamps = {name: stamps[name] for name in sorted(stamps)}
    unread = [path for path in stamps if path not in known or known[path][0] != stamps[path]]
    if unread:
        total_bytes = sum(stamps[path][0] for path in unread)
        on_event("log", {"message": f"reading {several(len(unread), 'new log file')}, {size(total_bytes)}"})
    digests = {path: digest for path, (_, digest) in known.items()}

    def digest(name: str) -> str:
        return remote.digest(name, stamps[name]) if remote and is_remote(name) else _digest(name)

    with ThreadPoolExecutor(DIGESTED_AT_ONCE) as pool:
        digests |= zip(unread, pool.map(digest, unread), strict=True)
    return [SourceFile(path, digests[path], stamps[path]) for path in stamps]


def _digest(path: str) -> str:
    try:
        return digest_file(Path(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; permit it, or leave it out of --logs") from None


def rules_of(config: IngestConfig) -> dict[str, Any]:
    """The settings that shape events: all events of a root are made by the same."""
    return {
        "version": RULES_VERSION,
        "timezone": config.timezone,
        "granularity": config.item_kind,
        "prefix_depth": config.prefix_depth if config.item_kind == "prefix" else None,
        "keep_query": sorted(set(config.keep_query)),
        "mask_secrets": config.mask_secrets,
    }


def read_by(config: IngestConfig) -> dict[str, Any]:
    """The settings that say how the lines of a source are read, but for those that are as they always were: a source whose lines
    were read by others is no known one.
    """
    return config.model_dump(mode="json", include={"columns", "access_pattern", "time_format"}, exclude_defaults=True)


def list_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """How rules differ from those that a root was made by, in words; a setting that the old ones lack came with a version."""
    versions = [rules.get("version") for rules in (old, new)]
    told = ["the rules from URL to item (docs/urls.md) are of version {1}, but were of {0}".format(*versions)]
    old_settings, new_settings = _as_set(old), _as_set(new)
    changes = [
        f"ingest.{name} is {value!r}, but was {old_settings[name]!r}"
        for name, value in new_settings.items()
        if name in old_settings and value != old_settings[name]
    ]
    return (told if old and versions[0] != versions[1] else []) + changes


def _as_set(rules: dict[str, Any]) -> dict[str, Any]:
    """Rules by the names and values of the settings that make them."""
    settings = {name: value for name, value in rules.items() if name not in ("version", "prefix_depth")}
    if rules.get("prefix_depth"):
        settings["granularity"] = f"prefix:{rules['prefix_depth']}"
    return settings


def plan_delivery(root: Root, catalog: Catalog, sources: list[SourceFile], config: IngestConfig) -> Delivery:
    """Compare a delivery with what is known. Content is read when it is new, made by other rules or settings, or its files are
    damaged.

    Raises ConfigError when the rules changed and sources made by the old ones would stay.
    """
    rules = rules_of(config)
    delivered = {source.name: source.sha256 for source in sources}
    known_names = catalog.names
    if catalog.entries and catalog.rules != rules:
        digests = set(delivered.values())
        staying = sorted(n for n, digest in known_names.items() if n not in delivered and digest not in digests)
        if staying:
            raise _refuse_rules(root, catalog.rules or {}, rules, staying)
        intact = set()
        changes = list_changes(catalog.rules or {}, rules)
    else:
        changes = []
        settings = read_by(config)
        known = {digest: catalog.entries[digest] for digest in catalog.entries.keys() & delivered.values()}
        intact = {
            digest
            for digest, entry in known.items()
            if entry.get("read_by", settings) == settings and _is_whole(root, entry)
        }
    to_ingest = {source.sha256: source for source in reversed(sources) if source.sha256 not in intact}
    num_replaced = sum(source.name in known_names for source in to_ingest.values())
    return Delivery(
        to_ingest=sorted(to_ingest.values(), key=lambda source: source.name),
        names=known_names | delivered,
        stamps={source.name: source.stamp for source in sources},
        rules=rules,
        num_new=len(to_ingest) - num_replaced,
        num_replaced=num_replaced,
        num_known=len(sources) - len(to_ingest),
        changes=changes,
    )


def _is_whole(root: Root, entry: dict[str, Any]) -> bool:
    """Whether the files of a source are there, every byte of them."""
    try:
        verify_all(events_files(root, entry))
    except DamageError:
        return False
    return True


def _refuse_rules(root: Root, old: dict[str, Any], new: dict[str, Any], staying: list[str]) -> ConfigError:
    """The settings changed, and some sources would keep what the old ones made of them."""
    changes = "; ".join(list_changes(old, new))
    way_back = "" if old.get("version") != new["version"] else "set it back, or "
    shown = ", ".join(staying[:_NAMED]) + (", ..." if len(staying) > _NAMED else "")
    return ConfigError(
        f"{changes} when {root.path} was made: {way_back}give all logs again in one call "
        f"({len(staying):,} are missing: {shown}), or begin a new --root"
    )
