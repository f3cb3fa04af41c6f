"""Writes the changes of a release: the rows that differ from an older release, and the removed users and items.

    changes/user_vectors/part-00012.parquet   like the release's own file, but only new and changed rows
            item_vectors/part-00000.parquet   likewise: another vector or another count
            removed_users.parquet             user_id: in the older release, not in this one
            removed_items.parquet             url

Users are spread over all files by a hash, so nearly every file changes and checksums of files do not help. If most bytes of a
release changed, it gets no changes folder: a reader takes the complete release.
"""

import shutil
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.export.vector_files import ITEM_ROW_GROUP_ROWS, USER_ROW_GROUP_ROWS, write_rows
from surf2vec.tasks.release.release_reader import KEYS, token_of
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.system.files import describe_file, digest_file, read_json, replace_file, verify_once

CHANGES = "changes"
WORTH_SHARE = 0.5  # changes with a larger share of the vectors' bytes are not written
SURE_BYTES = 16 << 20  # compared before giving up: users are spread by a hash, so these are a sample
_COUNTS = {
    "user_vectors": "num_users",
    "item_vectors": "num_items",
    "removed_users": "num_removed_users",
    "removed_items": "num_removed_items",
}


def write_changes(folder: Path, manifest: dict[str, Any], since_dir: Path) -> tuple[dict[str, Any] | None, str]:
    """Write `folder`/changes against the release in `since_dir`; return the manifest's entry and a message for the log.

    `folder` is an export whose files are written, `manifest` the content of its manifest. The entry is None and nothing written
    if the older release is missing or stored differently, or if more than half of the bytes changed.
    """
    files = None
    try:
        since = read_json(since_dir / "manifest.json")
        reason = explain_incomparable(since, manifest)
        if not reason:
            files = write_difference(since_dir, since, folder, manifest, folder / CHANGES, WORTH_SHARE)
    except (DamageError, OSError, pa.ArrowException) as error:
        reason = f"{since_dir} cannot be read ({error})"
    if files is None:
        shutil.rmtree(folder / CHANGES, ignore_errors=True)
        return None, f"changes are not written: {reason or 'most rows changed'}"
    counts = count_rows(files)
    message = f"changes since release {since['release']}: {counts['num_users']:,} users, {counts['num_items']:,} items"
    entry = {"since": since["release"], "since_manifest_sha256": digest_file(since_dir / "manifest.json")} | counts
    return entry | {"files": {f"{CHANGES}/{name}": about for name, about in files.items()}}, message


def explain_incomparable(since: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Return why the rows of two releases cannot be compared; empty if they can."""
    names = [
        name for name in ("vector_size", "parts", "partitions", "storage") if since.get(name) != manifest.get(name)
    ]
    if bool(since["item_files"]) != bool(manifest["item_files"]):
        names.append("item_files")
    differences = [f"{name} {since.get(name)} before and {manifest.get(name)} now" for name in names]
    return f"release {since['release']} is stored otherwise ({'; '.join(differences)})" if differences else ""


def write_difference(
    old_dir: Path,
    old: dict[str, Any],
    new_dir: Path,
    new: dict[str, Any],
    folder: Path,
    max_share: float | None = None,
    is_comparable: bool = True,
) -> dict[str, Any] | None:
    """Write the difference of two releases with the manifests `old` and `new` to `folder`; return the entries of its files.

    If they are not comparable, all rows count as changed. Returns None if the files exceed `max_share` of the new bytes.
    One micro-partition's users are in memory at a time.
    """
    total_bytes = sum(about["bytes"] for kind in ("user_files", "item_files") for about in new[kind].values())
    done_bytes = 0
    files: dict[str, Any] = {}
    removed = {kind: [pl.Series(key, [], pl.String)] for kind, key in KEYS.items()}
    for kind, key in reversed(KEYS.items()):
        names = f"{kind[:-1]}_files"
        for name in sorted({*old[names], *new[names]}):
            path = f"{kind[:-1]}_vectors/{name}"
            old_path, new_path = (
                verify_once(at / path, manifest[names][name], "pull the release again")
                if name in manifest[names]
                else None
                for at, manifest in ((old_dir, old), (new_dir, new))
            )
            before, now = read_keys(old_path, key), read_keys(new_path, key)
            removed[kind].append(before.filter(~before.is_in(now.implode())))
            pairs = zip_longest(_read_rows(old_path if is_comparable else None, kind), _read_rows(new_path, kind))
            changed = (_find_changed(*pair) for pair in pairs if pair[1] is not None)
            files |= write_changed(folder, path, changed, token_of(new))
            done_bytes += new_path.stat().st_size if new_path else 0
            changed_bytes = sum(about["bytes"] for about in files.values())
            if max_share and changed_bytes > max_share * max(done_bytes, min(total_bytes, SURE_BYTES)):
                return None
    return files | write_removed(folder, {kind: pl.concat(ids) for kind, ids in removed.items()})


def read_keys(path: Path | None, key: str) -> pl.Series:
    """Return the ids or urls of a file of vectors; empty without a file."""
    return pl.read_parquet(path, columns=[key])[key] if path else pl.Series(key, [], pl.String)


def _read_rows(path: Path | None, kind: str) -> Iterator[pa.Table]:
    """Yield all rows of a file of users at once, or those of a file of items in ordered batches; nothing without a file."""
    if path and kind == "users":
        yield pq.read_table(path)
    elif path:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(2 * ITEM_ROW_GROUP_ROWS):
                yield pa.Table.from_batches([batch])


def _find_changed(old: pa.Table | None, new: pa.Table) -> pa.Table:
    """Return the rows of `new` that are not in `old`, in order."""
    if old is None:
        return new
    rows, before = pl.DataFrame(new).with_row_index("row"), pl.DataFrame(old)
    return new.take(rows.join(before, on=new.column_names, how="anti")["row"].sort().to_arrow())


def write_changed(folder: Path, name: str, tables: Iterable[pa.Table], token: dict[str, str]) -> dict[str, Any]:
    """Write rows as the file `name` of an export; return {name: entry}. Without rows it writes no file and returns {}."""
    some = (table for table in tables if len(table))
    first = next(some, None)
    if first is None:
        return {}
    group_rows = USER_ROW_GROUP_ROWS if name.startswith("user_vectors/") else ITEM_ROW_GROUP_ROWS
    write_rows(folder / name, chain([first], some), group_rows, token)
    return {name: {"rows": pq.read_metadata(folder / name).num_rows} | describe_file(folder / name)}


def write_removed(folder: Path, removed: dict[str, pl.Series]) -> dict[str, Any]:
    """Write the ids of removed users and the urls of removed items; return the entries of the files."""
    files = {}
    for kind, ids in removed.items():
        name = f"removed_{kind}.parquet"
        table = pa.table({KEYS[kind]: ids.unique().sort().to_arrow().cast(pa.string())})
        with replace_file(folder / name) as temporary:
            pq.write_table(table, temporary, compression="zstd")
        files[name] = {"rows": len(table)} | describe_file(folder / name)
    return files


def count_rows(files: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of changed and removed users and items, under their names in manifests."""
    return {
        count: sum(about["rows"] for name, about in files.items() if name.startswith(kind))
        for kind, count in _COUNTS.items()
    }
