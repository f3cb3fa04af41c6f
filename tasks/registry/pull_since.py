"""What changed between two releases, out of the registry: a few per cent of the bytes, where a night changed few rows.

    user_vectors/part-00012.parquet, item_vectors/part-00000.parquet   rows that are new or other, in the export's layout
    removed_users.parquet, removed_items.parquet                       user_id, url: who is gone
    manifest.json                                                      from which release to which; rows, bytes, checksums

Each release says what it changed. Where one of those between the two does not, whole releases are fetched and compared here.
"""

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.export.changes import Difference, explain_incomparable, write_difference, write_removed, write_rows
from tasks.export.export import EXPORT_MANIFEST, list_files
from tasks.registry.change_chain import KEYS, Link, find_links, fold_removed, fold_rows, join
from tasks.registry.pull import Fetcher, check_out, fill, find_version, tell
from tasks.registry.tracking import Version
from tasks.registry.whole_folder import hold_folder, put_in_place, take_over
from tasks.users.tombstones import NOBODY, Tombstones
from trainer.errors import InputError
from trainer.events import OnEvent, ignore_event
from trainer.system.files import read_json, write_manifest_json

FORMAT_VERSION = 1


def pull_since(
    uri: str,
    out: Path,
    since: int,
    tracking_uri: str,
    on_event: OnEvent = ignore_event,
    forgotten: Tombstones = NOBODY,
) -> dict[str, Any]:
    """Make `out` a folder of what changed from version `since` to the release of `uri`; earlier changes there are replaced.

    Users who were `forgotten` count as gone. Raises InputError when `out` holds anything else than changes, or a version is not
    in the registry.
    """
    _check_out(out)
    target = find_version(uri, tracking_uri)
    older = find_version(f"models:/{target.name}/{since}", tracking_uri)
    fetcher = Fetcher(tracking_uri, on_event)
    with (
        hold_folder(out, lambda line: on_event("log", {"message": line})) as gathered,
        tempfile.TemporaryDirectory() as scratch,
    ):
        manifest = fetcher.get_manifest(target, Path(scratch) / EXPORT_MANIFEST)
        links, reason = find_links(target, older.tags["manifest_sha256"], fetcher, gathered, Path(scratch))
        if reason:
            on_event("log", {"message": f"{reason}: both releases are fetched whole and compared"})
            difference = _compare_whole(older, target, fetcher, gathered, Path(scratch))
        else:
            difference = _join_changes(gathered, links, fetcher)
        difference = leave_out_changes(gathered, difference, forgotten)
        about: dict[str, Any] = {
            name: manifest[name] for name in ("release", "space_id", "vector_size", "storage") if name in manifest
        }
        about |= {"format_version": FORMAT_VERSION, "since": older.tags["release"], "since_version": older.number}
        about |= {"model_version": target.number, "files": difference.files} | difference.counts
        write_manifest_json(gathered / EXPORT_MANIFEST, about)
        put_in_place(gathered, out, {EXPORT_MANIFEST, *difference.files})
    way = reason or f"the changes of {len(links):,} releases"
    return tell(manifest, target, out, fetcher) | {"since": since, "way": way} | difference.changed


def _check_out(out: Path) -> None:
    """Raise InputError unless `out` is new, empty or has changes from an earlier call."""
    check_out(out)
    if (out / EXPORT_MANIFEST).exists() and "since" not in read_json(out / EXPORT_MANIFEST):
        raise InputError(
            f"{out} holds a whole release, and --since gives only what changed: give another --out and apply the changes, or "
            "leave out --since, which fetches all files that differ"
        )


def _join_changes(folder: Path, links: list[Link], fetcher: Fetcher) -> Difference:
    """Fetch what all links changed and write it as one difference."""
    for link in links:
        link.fetch(fetcher)
    names = sorted({name.partition("/")[2] for link in links for name in link.files if "_vectors/" in name})
    files = {}
    for name in names:
        rows = fold_rows(links, name)
        if rows is not None and (entry := write_rows(folder / name, iter([sort_users(rows)]))):
            files[name] = entry
    return write_removed(folder, files, fold_removed(links, "users"), fold_removed(links, "items"))


def sort_users(rows: pa.Table) -> pa.Table:
    """Users by their ids; items as they are."""
    return rows.take(pc.sort_indices(rows["user_id"])) if "user_id" in rows.column_names else rows


def leave_out_changes(folder: Path, difference: Difference, forgotten: Tombstones) -> Difference:
    """The difference in a folder, written anew without users who were forgotten: they are among those who are gone."""
    if not forgotten:
        return difference
    files = dict(difference.files)
    gone = [pq.read_table(folder / f"removed_{kind}.parquet").column(0) for kind in KEYS]
    for name in [name for name in files if name.startswith("user_vectors/")]:
        rows = pq.read_table(folder / name)
        is_forgotten = pa.array(forgotten.is_forgotten(rows["user_id"]))
        if pc.any(is_forgotten).as_py():
            gone[0] = join([gone[0], rows["user_id"].filter(is_forgotten)])
            (folder / name).unlink()
            entry = write_rows(folder / name, iter([rows.filter(pc.invert(is_forgotten))]))
            files = {other: about for other, about in files.items() if other != name} | ({name: entry} if entry else {})
    kept = {name: about for name, about in files.items() if not name.startswith("removed_")}
    return write_removed(folder, kept, *gone)


def _compare_whole(older: Version, target: Version, fetcher: Fetcher, gathered: Path, scratch: Path) -> Difference:
    """Fetch both releases and write what differs. Of releases that are stored otherwise every row is another one."""
    folders, manifests = (gathered / ".older", gathered / ".newer"), []
    for version, folder in zip((older, target), folders, strict=True):
        manifest_path = scratch / f"{folder.name}.json"
        manifests.append(fetcher.get_manifest(version, manifest_path))
        fill(folder, version, manifest_path, fetcher, None)
    (old_dir, new_dir), (old, new) = folders, manifests
    reason = explain_incomparable(old, new)
    if not reason:
        difference = write_difference(old_dir, old, new_dir, new, gathered, is_bounded=False)
        assert difference is not None
        return difference
    fetcher.on_event("log", {"message": f"{reason}: every row counts as changed"})
    files = {name: about for name, about in list_files(new).items() if name.startswith(("user_v", "item_v"))}
    for name, about in files.items():
        take_over(new_dir / name, about, gathered / name)
    before, now = ([_read_names(folder, kind) for kind in KEYS] for folder in (old_dir, new_dir))
    gone = [old.filter(pc.invert(pc.is_in(old, new))) for old, new in zip(before, now, strict=True)]
    return write_removed(gathered, files, *gone)


def _read_names(folder: Path, kind: str) -> pa.ChunkedArray:
    """All users' ids, or items' urls, of a release; a release that was trained with a tree has no items."""
    paths = sorted(folder.glob(f"{kind[:-1]}_vectors/*.parquet"))
    return join([pq.read_table(path, columns=[KEYS[kind]]).column(0) for path in paths])
