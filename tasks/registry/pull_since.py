"""Pulls what changed between two releases from the registry: a few per cent of the bytes if few rows changed.

    user_vectors/part-00012.parquet, item_vectors/part-00000.parquet   new and changed rows, in the export's layout
    removed_users.parquet, removed_items.parquet                       user_id, url: removed rows
    trail_inputs.parquet                                               the release's own, if it has a trail
    manifest.json                                                      both releases; rows, bytes, checksums

A release has its changes since the release that it builds on, with the checksum of that release's manifest
(tasks/export/changes.py). Over more than one release both are fetched whole and compared.
"""

import tempfile
from pathlib import Path
from typing import Any

import polars as pl

from surf2vec.tasks.export.changes import (
    CHANGES,
    count_rows,
    explain_incomparable,
    read_keys,
    write_changed,
    write_difference,
    write_removed,
)
from surf2vec.tasks.registry.pull import Fetcher, check_out, describe_pull, find_version, hold_folder, put_in_place
from surf2vec.tasks.registry.releases import Version
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, FORMAT_VERSION
from surf2vec.tasks.release.release_reader import KEYS, token_of
from surf2vec.tasks.users.tombstones import NOBODY, Tombstones
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent, ignore_event
from surf2vec.trainer.system.files import read_json, write_manifest_json


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
        way, found, names = _fetch_difference(older, target, manifest, fetcher, gathered, Path(scratch))
        files = write_changes(found, names, gathered, forgotten, token_of(manifest))
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


def _fetch_difference(
    older: Version, target: Version, manifest: dict[str, Any], fetcher: Fetcher, gathered: Path, scratch: Path
) -> tuple[str, Path, set[str]]:
    """Fetch the difference of two versions: return how, the folder with its files, and their names. manifest: of `target`."""
    changes = manifest.get("changes", {"files": {}})
    if target.tags["manifest_sha256"] == older.tags["manifest_sha256"]:
        return "it is the same release", gathered, set()
    if changes.get("since_manifest_sha256") == older.tags["manifest_sha256"]:
        for name, about in changes["files"].items():
            fetcher.get(target, name, about, gathered / name)
        names = {name.removeprefix(f"{CHANGES}/") for name in changes["files"]}
        return "the changes that the release has", gathered / CHANGES, names
    between = f"version {target.number} has no changes since version {older.number}"
    fetcher.on_event("log", {"message": f"{between}: both releases are fetched whole and compared"})
    names = _compare_whole(older, target, fetcher, gathered, scratch)
    return "both releases, compared", gathered / ".compared", names


def _compare_whole(older: Version, target: Version, fetcher: Fetcher, gathered: Path, scratch: Path) -> set[str]:
    """Fetch the vectors of both releases and write their difference to `gathered`/.compared. Returns the names of its files."""
    folders, manifests = (gathered / ".older", gathered / ".newer"), []
    for version, folder in zip((older, target), folders, strict=True):
        manifest = fetcher.get_manifest(version, scratch / f"{folder.name}.json")
        manifests.append(manifest)
        vectors = {name: manifest[name] for name in ("user_files", "item_files")}
        fetcher.get_all(version, vectors, folder, gathered)
    if reason := explain_incomparable(*manifests):
        fetcher.on_event("log", {"message": f"{reason}: every row counts as changed"})
    (old_dir, new_dir), (old, new) = folders, manifests
    return set(write_difference(old_dir, old, new_dir, new, gathered / ".compared", is_comparable=not reason) or ())


def write_changes(
    found: Path, names: set[str], folder: Path, forgotten: Tombstones, token: dict[str, str]
) -> dict[str, Any]:
    """Write the difference with these files in `found` into `folder`, with users who were forgotten listed as removed.

    token: the pairing token of the newer release. Returns the entries of the files.
    """
    files: dict[str, Any] = {}
    gone: dict[str, pl.Series] = {}
    for kind, key in KEYS.items():
        gone_name = f"removed_{kind}.parquet"
        changed = [pl.Series(key, [], pl.String)]
        removed = [read_keys(found / gone_name if gone_name in names else None, key)]
        for name in sorted(name for name in names if name.startswith(f"{kind[:-1]}_vectors/")):
            rows = pl.read_parquet(found / name)
            if kind == "users" and forgotten:
                is_forgotten = pl.Series(forgotten.is_forgotten(rows[key]))
                removed.append(rows.filter(is_forgotten)[key])
                rows = rows.filter(~is_forgotten)
            changed.append(rows[key])
            files |= write_changed(folder, name, [rows.sort(key).to_arrow()], token)
        ids = pl.concat(removed)
        gone[kind] = ids.filter(~ids.is_in(pl.concat(changed).implode()))  # some have only moved to another file
    return files | write_removed(folder, gone)
