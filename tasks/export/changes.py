"""What a release changed: the rows that differ from an older release's, and who is gone, beside the vectors themselves.

    changes/user_vectors/part-00012.parquet   as the release's own file, but only the rows that are new or differ
            item_vectors/part-00000.parquet   likewise: another vector or another count
            removed_users.parquet             user_id: in the older release, not in this one
            removed_items.parquet             url

Users are spread over all files by a hash, so the checksums of whole files tell nothing. A release of which most changed has
no changes: a reader takes the whole one.
"""

import shutil
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.export.vector_files import ITEM_ROW_GROUP_ROWS, USER_ROW_GROUP_ROWS, write_rows
from trainer.errors import DamageError
from trainer.system.files import describe_file, digest_file, read_json, replace_file, verify_once

CHANGES = "changes"
KEYS = {"users": "user_id", "items": "url"}
WORTH_SHARE = 0.5  # of the vectors' bytes: changes that are more are not worth having
SURE_BYTES = 16 << 20  # compared: what holds for them holds for the rest, as users are spread by a hash
_COUNTS = {
    "user_vectors": "num_users",
    "item_vectors": "num_items",
    "removed_users": "num_removed_users",
    "removed_items": "num_removed_items",
}


def write_changes(folder: Path, manifest: dict[str, Any], since_dir: Path) -> tuple[dict[str, Any] | None, str]:
    """Write `folder`/changes against the release in `since_dir`; returns the manifest's entry, and a line for the log.

    `folder` is an export whose files are written, `manifest` what its manifest will say. None, and nothing written, when the
    older release is not there, is stored otherwise, or when more than half of the bytes changed.
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
    told = f"changes since release {since['release']}: {counts['num_users']:,} users, {counts['num_items']:,} items"
    entry = {"since": since["release"], "since_manifest_sha256": digest_file(since_dir / "manifest.json")} | counts
    return entry | {"files": {f"{CHANGES}/{name}": about for name, about in files.items()}}, told


def explain_incomparable(since: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Why rows of two releases are not the same kind of rows; empty when they are."""
    names = [name for name in ("vector_size", "partitions", "storage") if since.get(name) != manifest.get(name)]
    if bool(since["item_files"]) != bool(manifest["item_files"]):
        names.append("item_files")
    told = [f"{name} {since.get(name)} before and {manifest.get(name)} now" for name in names]
    return f"release {since['release']} is stored otherwise ({'; '.join(told)})" if told else ""


def write_difference(
    old_dir: Path, old: dict[str, Any], new_dir: Path, new: dict[str, Any], folder: Path, max_share: float | None = None
) -> dict[str, Any] | None:
    """Write what differs between two releases, of the manifests `old` and `new`, to `folder`; returns the entries of its files.

    None when it is more than `max_share` of the new release's bytes. One micro-partition's users are in memory at a time.
    """
    total_bytes = sum(about["bytes"] for kind in ("user_files", "item_files") for about in new[kind].values())
    done_bytes = 0
    files: dict[str, Any] = {}
    gone = {kind: [pl.Series(key, [], pl.String)] for kind, key in KEYS.items()}
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
            gone[kind].append(before.filter(~before.is_in(now.implode())))
            pairs = zip_longest(_read_rows(old_path, kind), _read_rows(new_path, kind))
            files |= write_changed(folder, path, (_find_changed(*pair) for pair in pairs if pair[1] is not None))
            done_bytes += new_path.stat().st_size if new_path else 0
            changed_bytes = sum(about["bytes"] for about in files.values())
            if max_share and changed_bytes > max_share * max(done_bytes, min(total_bytes, SURE_BYTES)):
                return None
    return files | write_removed(folder, {kind: pl.concat(ids) for kind, ids in gone.items()})


def read_keys(path: Path | None, key: str) -> pl.Series:
    """The ids or urls of a file of vectors; none without a file."""
    return pl.read_parquet(path, columns=[key])[key] if path else pl.Series(key, [], pl.String)


def _read_rows(path: Path | None, kind: str) -> Iterator[pa.Table]:
    """All rows of a file of users; those of a file of items, which are in order, in batches. None without a file."""
    if path and kind == "users":
        yield pq.read_table(path)
    elif path:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(2 * ITEM_ROW_GROUP_ROWS):
                yield pa.Table.from_batches([batch])


def _find_changed(old: pa.Table | None, new: pa.Table) -> pa.Table:
    """The rows of `new` that are not in `old`, in order."""
    if old is None:
        return new
    rows, before = pl.DataFrame(new).with_row_index("row"), pl.DataFrame(old)
    return new.take(rows.join(before, on=new.column_names, how="anti")["row"].sort().to_arrow())


def write_changed(folder: Path, name: str, tables: Iterable[pa.Table]) -> dict[str, Any]:
    """Write rows as the file `name` of an export; returns {name: entry}, and writes no file, when there are no rows, {}."""
    some = (table for table in tables if len(table))
    first = next(some, None)
    if first is None:
        return {}
    group_rows = USER_ROW_GROUP_ROWS if name.startswith("user_vectors/") else ITEM_ROW_GROUP_ROWS
    write_rows(folder / name, chain([first], some), group_rows)
    return {name: {"rows": pq.read_metadata(folder / name).num_rows} | describe_file(folder / name)}


def write_removed(folder: Path, gone: dict[str, pl.Series]) -> dict[str, Any]:
    """Write the ids of users and urls of items that are gone; returns the entries of the files."""
    files = {}
    for kind, ids in gone.items():
        name = f"removed_{kind}.parquet"
        table = pa.table({KEYS[kind]: ids.unique().sort().to_arrow().cast(pa.string())})
        with replace_file(folder / name) as temporary:
            pq.write_table(table, temporary, compression="zstd")
        files[name] = {"rows": len(table)} | describe_file(folder / name)
    return files


def count_rows(files: dict[str, Any]) -> dict[str, int]:
    """How many users and items changed and went, by the names that manifests have for it."""
    return {
        count: sum(about["rows"] for name, about in files.items() if name.startswith(kind))
        for kind, count in _COUNTS.items()
    }
