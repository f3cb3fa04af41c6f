"""Pulls what changed between two releases from the registry: a few per cent of the bytes if few rows changed.

    user_vectors/part-00012.parquet, item_vectors/part-00000.parquet   new and changed rows, in the export's layout
    removed_users.parquet, removed_items.parquet                       user_id, url: removed rows
    trail_inputs.parquet                                                the release's own, if it has a trail: every
    night changes it manifest.json                                                      both releases; rows, bytes, checksums

A release contains its changes since the release that it builds on, and the checksum of that release's manifest
(tasks/export/changes.py). The changes of all releases in between are joined. If one of them has no changes, both releases
are fetched completely and compared.
"""

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from surf2vec.tasks.export.changes import (
    CHANGES,
    KEYS,
    count_rows,
    explain_incomparable,
    read_keys,
    write_changed,
    write_difference,
    write_removed,
)
from surf2vec.tasks.export.export import EXPORT_MANIFEST
from surf2vec.tasks.export.form import list_files
from surf2vec.tasks.export.served_export import token_of
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.pull import Fetcher, check_out, describe_pull, find_version, hold_folder, put_in_place
from surf2vec.tasks.registry.tracking import Version
from surf2vec.tasks.users.tombstones import NOBODY, Tombstones
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent, ignore_event
from surf2vec.trainer.system.files import read_json, write_manifest_json
from surf2vec.trainer.system.units import size

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Link:
    """The changes of one release: its version, the entries of its files, and the folder that they are fetched to."""

    version: Version
    files: dict[str, dict[str, Any]]
    folder: Path

    def read(self, name: str) -> list[pl.DataFrame]:
        """Return the changed rows of a file such as `user_vectors/part-00003.parquet`; empty if there are none."""
        return [pl.read_parquet(self.folder / CHANGES / name)] if f"{CHANGES}/{name}" in self.files else []

    @cached_property
    def removed(self) -> dict[str, pl.DataFrame]:
        """The ids of removed users and the urls of removed items."""
        return {kind: pl.read_parquet(self.folder / CHANGES / f"removed_{kind}.parquet") for kind in KEYS}


def pull_since(
    uri: str,
    out: Path,
    since: int,
    tracking_uri: str,
    on_event: OnEvent = ignore_event,
    forgotten: Tombstones = NOBODY,
) -> dict[str, Any]:
    """Write the changes from version `since` to the release of `uri` into the folder `out`; replace earlier changes in it.

    Users who were `forgotten` are listed as removed. Raises InputError if `out` holds anything but changes, or if a version is
    not in the registry.
    """
    check_out(out)
    if (out / EXPORT_MANIFEST).exists() and "since" not in read_json(out / EXPORT_MANIFEST):
        raise InputError(
            f"{out} holds a whole release, and --since gives only what changed: give another --out and apply the changes, or "
            "leave out --since, which fetches all files that differ"
        )
    target = find_version(uri, tracking_uri)
    older = find_version(f"models:/{target.name}/{since}", tracking_uri)
    fetcher = Fetcher(tracking_uri, on_event)
    with hold_folder(out, on_event) as gathered, tempfile.TemporaryDirectory(dir=gathered) as scratch:
        manifest = fetcher.get_manifest(target, Path(scratch) / EXPORT_MANIFEST)
        trail = _fetch_trail(target, manifest, fetcher, gathered)
        links, reason = _find_links(target, older.tags["manifest_sha256"], manifest, fetcher, gathered, Path(scratch))
        way = reason or f"the changes of {len(links):,} releases"
        if reason:
            on_event("log", {"message": f"{reason}: both releases are fetched whole and compared"})
            links = [_compare_whole(older, target, fetcher, gathered, Path(scratch))]
        else:
            for link in links:
                for name, about in link.files.items():
                    fetcher.get(link.version, name, about, link.folder / name)
        files = join_changes(gathered, links, forgotten, token_of(manifest))
        counts = count_rows(files)
        kept = ("release", "space_id", "vector_size", "storage", "parts", "trail")
        about = {name: manifest[name] for name in kept if name in manifest}
        about |= {"format_version": FORMAT_VERSION, "since": older.tags["release"], "since_version": older.number}
        about |= {"model_version": target.number, "files": files | trail} | counts
        write_manifest_json(gathered / EXPORT_MANIFEST, about)
        put_in_place(gathered, out, {EXPORT_MANIFEST, *files, *trail})
    changed = {
        "changed_users": counts["num_users"],
        "changed_items": counts["num_items"],
        "removed_users": counts["num_removed_users"],
        "removed_items": counts["num_removed_items"],
    }
    return describe_pull(manifest, target, out, fetcher) | {"since": since, "way": way} | changed


def _fetch_trail(target: Version, manifest: dict[str, Any], fetcher: Fetcher, folder: Path) -> dict[str, Any]:
    """Fetch the file that trails are summed up from; return its entry, or none without a trail."""
    trail = {manifest["trail"]["file"]: manifest["trail"]} if "trail" in manifest else {}
    for name, entry in trail.items():
        fetcher.get(target, name, entry, folder / name)
    return trail


def _find_links(
    target: Version, since_digest: str, manifest: dict[str, Any], fetcher: Fetcher, folder: Path, scratch: Path
) -> tuple[list[Link], str]:
    """Return the links from the release whose manifest has `since_digest` to `target`, oldest first; or why there are none.

    `manifest` is that of `target`; others are written to `scratch`. The files of links go to `folder`/.links/VERSION.
    """
    versions = tracking.get_registered(fetcher.tracking_uri, target.name).versions
    by_digest = {version.tags.get("manifest_sha256"): version for version in versions}
    worth_bytes = sum(about["bytes"] for name, about in list_files(manifest).items() if not name.startswith(CHANGES))
    links: list[Link] = []
    version, digest, link_bytes = target, target.tags["manifest_sha256"], 0
    while digest != since_digest:
        if links:
            if digest not in by_digest:
                gone = f"release {manifest['changes']['since']}, which version {version.number} builds on"
                return [], f"{gone}, is not in the registry any more"
            version = by_digest[digest]
            manifest = fetcher.get_manifest(version, scratch / f"{version.number}.json")
        if "changes" not in manifest:
            return [], f"version {version.number} does not say what it changed"
        changes = manifest["changes"]
        links.insert(0, Link(version, changes["files"], folder / ".links" / str(version.number)))
        link_bytes += sum(about["bytes"] for about in changes["files"].values())
        if link_bytes >= worth_bytes:
            return [], f"the changes of {len(links):,} releases are as large as the whole one, {size(worth_bytes)}"
        digest = changes["since_manifest_sha256"]
    return links, ""


def join_changes(folder: Path, links: list[Link], forgotten: Tombstones, token: dict[str, str]) -> dict[str, Any]:
    """Join the changes of consecutive releases; return the entries of the files. Forgotten users are listed as removed.

    token: the pairing token of the newest release.
    """
    files: dict[str, Any] = {}
    gone: dict[str, pl.Series] = {}
    for kind, key in KEYS.items():
        changed = [pl.Series(key, [], pl.String)]
        removed = [changed[0].to_frame(), *(link.removed[kind] for link in links)]
        prefix = f"{CHANGES}/{kind[:-1]}_vectors/"
        for name in sorted(
            {name.removeprefix(f"{CHANGES}/") for link in links for name in link.files if name.startswith(prefix)}
        ):
            steps = [rows for link in links for rows in (link.removed[kind], *link.read(name))]
            # The newest change of a row counts: a removal has no vector.
            rows = pl.concat(steps, how="diagonal").unique(key, keep="last").filter(pl.col("vector").is_not_null())
            if kind == "users" and forgotten:
                is_forgotten = pl.Series(forgotten.is_forgotten(rows[key]))
                removed.append(rows.filter(is_forgotten).select(key))
                rows = rows.filter(~is_forgotten)
            changed.append(rows[key])
            files |= write_changed(folder, name, [rows.sort(key).to_arrow()], token)
        gone[kind] = pl.concat(removed)[key]
        gone[kind] = gone[kind].filter(~gone[kind].is_in(pl.concat(changed).implode()))
    return files | write_removed(folder, gone)


def _compare_whole(older: Version, target: Version, fetcher: Fetcher, gathered: Path, scratch: Path) -> Link:
    """Fetch both releases and write the changed rows: all rows if the releases are stored differently."""
    folders, manifests = (gathered / ".older", gathered / ".newer"), []
    for version, folder in zip((older, target), folders, strict=True):
        manifests.append(fetcher.get_manifest(version, scratch / f"{folder.name}.json"))
        fetcher.get_all(version, manifests[-1], folder, gathered)
    (old_dir, new_dir), (old, new) = folders, manifests
    link = Link(target, {}, gathered / ".compared")
    if reason := explain_incomparable(old, new):
        fetcher.on_event("log", {"message": f"{reason}: every row counts as changed"})
        old = {"user_files": {}, "item_files": {}}
    files = write_difference(old_dir, old, new_dir, new, link.folder / CHANGES) or {}
    if reason:  # remove all old rows, add all new ones
        gone = {}
        for kind, key in KEYS.items():
            paths = old_dir.glob(f"{kind[:-1]}_vectors/*.parquet")  # no item files if a tree was trained
            gone[kind] = pl.concat([pl.Series(key, [], pl.String), *(read_keys(path, key) for path in paths)])
        files |= write_removed(link.folder / CHANGES, gone)
    link.files.update({f"{CHANGES}/{name}": about for name, about in files.items()})
    return link
