"""What a release changed: the rows that differ from an older release's, and who is gone, beside the vectors themselves.

    changes/user_vectors/part-00012.parquet   as the release's own file of that micro-partition, but only the rows that are new
                                              or differ
            item_vectors/part-00000.parquet   likewise: another vector or another count
            removed_users.parquet             user_id: in the older release, not in this one
            removed_items.parquet             url

Rows are compared as they are stored, bit by bit. Users are spread over all files by a hash, so the checksums of whole files
tell nothing. A release of which most changed has no changes: whoever needs them reads it whole.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.export.vector_files import ITEM_ROW_GROUP_ROWS, USER_ROW_GROUP_ROWS, write_encoded
from trainer.errors import DamageError
from trainer.system.files import describe_file, digest_file, read_json, replace_file, verify_once

CHANGES = "changes"
WORTH_SHARE = 0.5  # of the vectors' bytes: changes that are more are not worth having
SURE_BYTES = 16 << 20  # compared: what holds for them holds for the rest, as users are spread by a hash
_ITEM_BATCH_ROWS = 2 * ITEM_ROW_GROUP_ROWS
_SAME = ("vector_size", "partitions", "storage")
_KINDS = ("user_vectors", "item_vectors", "removed_users", "removed_items")


@dataclass(frozen=True)
class Difference:
    """What was written of changes: manifest entries by path within their folder, and what they add up to."""

    files: dict[str, dict[str, Any]]
    num_users: int
    num_items: int
    num_removed_users: int
    num_removed_items: int

    @property
    def counts(self) -> dict[str, int]:
        return {name: number for name, number in vars(self).items() if name != "files"}

    @property
    def changed(self) -> dict[str, int]:
        """The counts under names that can stand beside those of a whole release."""
        names = {"num_users": "changed_users", "num_items": "changed_items"}
        return {names.get(name, name.removeprefix("num_")): number for name, number in self.counts.items()}


def write_changes(folder: Path, manifest: dict[str, Any], since_dir: Path) -> tuple[dict[str, Any] | None, str]:
    """Write `folder`/changes against the release in `since_dir`; returns the manifest's entry, and a line that says why.

    `folder` is an export whose files are written, `manifest` what its manifest will say. None, and nothing written, when the
    older release is not there, is stored otherwise, or when more than half of the bytes changed.
    """
    try:
        since = read_json(since_dir / "manifest.json")
        reason = explain_incomparable(since, manifest)
        difference = (
            None if reason else write_difference(since_dir, since, folder, manifest, folder / CHANGES, is_bounded=True)
        )
    except (DamageError, OSError, pa.ArrowException) as error:
        reason, difference = f"{since_dir} cannot be read ({error})", None
    if difference is None:
        shutil.rmtree(folder / CHANGES, ignore_errors=True)
        return None, f"changes are not written: {reason or 'most rows changed'}"
    files = {f"{CHANGES}/{name}": about for name, about in difference.files.items()}
    entry = {"since": since["release"], "since_manifest_sha256": digest_file(since_dir / "manifest.json")}
    told = f"changes since release {since['release']}: {difference.num_users:,} users, {difference.num_items:,} items"
    return entry | difference.counts | {"files": files}, told


def explain_incomparable(since: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Why rows of two releases are not the same kind of rows; empty when they are."""
    names = [name for name in _SAME if since.get(name) != manifest.get(name)]
    if bool(since["item_files"]) != bool(manifest["item_files"]):
        names.append("item_files")
    told = [f"{name} {since.get(name)} before and {manifest.get(name)} now" for name in names]
    return f"release {since['release']} is stored otherwise ({'; '.join(told)})" if told else ""


def write_difference(
    old_dir: Path, old: dict[str, Any], new_dir: Path, new: dict[str, Any], folder: Path, is_bounded: bool
) -> Difference | None:
    """Write what differs between two releases, of the manifests `old` and `new`, to `folder`; None when `is_bounded` and it
    is more than WORTH_SHARE of the new one's bytes. One micro-partition's users are in memory at a time.
    """
    total_bytes = sum(about["bytes"] for kind in ("user_files", "item_files") for about in new[kind].values())
    done_bytes = 0
    files: dict[str, dict[str, Any]] = {}
    removed: dict[str, list[pa.Array]] = {"user_vectors": [], "item_vectors": []}
    for name in sorted({*_vector_files(old), *_vector_files(new)}, key=lambda name: (name.startswith("user"), name)):
        kind, paths = name.partition("/")[0], [_path_of(old_dir, old, name), _path_of(new_dir, new, name)]
        compare = compare_users if kind == "user_vectors" else compare_items
        tables, gone = compare(*paths)
        removed[kind].append(gone)
        if entry := write_rows(folder / name, tables):
            files[name] = entry
        done_bytes += paths[1].stat().st_size if paths[1] else 0
        worth_bytes = WORTH_SHARE * max(done_bytes, min(total_bytes, SURE_BYTES))
        if is_bounded and sum(about["bytes"] for about in files.values()) > worth_bytes:
            return None
    gone_users, gone_items = (pa.chunked_array([*arrays, pa.array([], pa.string())]) for arrays in removed.values())
    return write_removed(folder, files, gone_users, gone_items)


def _path_of(folder: Path, manifest: dict[str, Any], name: str) -> Path | None:
    """The path of a file of vectors, None where the release has none of that name. Raises DamageError when it was altered."""
    kind, file_name = name.split("/")
    about = manifest[kind.replace("vectors", "files")].get(file_name)
    return verify_once(folder / name, about, "pull the release again") if about else None


def compare_users(old_path: Path | None, new_path: Path | None) -> tuple[Iterator[pa.Table], pa.Array]:
    """The rows of a file of users that are new or differ from those in the older file, and the ids that are gone."""
    old, new = (pq.read_table(path) if path else None for path in (old_path, new_path))
    if old is None or new is None:
        gone = old["user_id"].combine_chunks() if old is not None else pa.array([], pa.string())
        return iter([new] if new is not None else []), gone
    places = pc.index_in(new["user_id"], old["user_id"]).combine_chunks()
    is_other = np.ones(len(new), bool)
    known = np.flatnonzero(places.is_valid())
    at = places.drop_null().to_numpy(zero_copy_only=False)
    is_other[known] = (_bits(new)[known] != _bits(old)[at]).any(axis=1)
    gone = pc.filter(old["user_id"], pc.invert(pc.is_in(old["user_id"], new["user_id"])))
    return iter([new.filter(pa.array(is_other))]), gone.combine_chunks()


def compare_items(old_path: Path | None, new_path: Path | None) -> tuple[Iterator[pa.Table], pa.Array]:
    """The items that differ from the older file's item at the same place, and the urls that are gone. A batch at a time."""
    if old_path is None or new_path is None:
        raise DamageError(f"{old_path or new_path} has no counterpart in the other release")
    old_urls, new_urls = (pq.read_table(path, columns=["url"])["url"] for path in (old_path, new_path))
    gone = pc.filter(old_urls, pc.invert(pc.is_in(old_urls, new_urls)))

    def read_others() -> Iterator[pa.Table]:
        with pq.ParquetFile(old_path) as old_file, pq.ParquetFile(new_path) as new_file:
            batches = (file.iter_batches(_ITEM_BATCH_ROWS) for file in (old_file, new_file))
            for old, new in zip_longest(*batches):
                if new is not None:
                    is_other = np.ones(len(new), bool)
                    if old is not None:
                        num = min(len(old), len(new))
                        same_url = pc.equal(old["url"][:num], new["url"][:num]).to_numpy(zero_copy_only=False)
                        is_other[:num] = ~same_url | (_bits(new)[:num] != _bits(old)[:num]).any(axis=1)
                    yield pa.Table.from_batches([new]).filter(pa.array(is_other))

    return read_others(), gone.combine_chunks()


def write_rows(path: Path, tables: Iterator[pa.Table]) -> dict[str, Any] | None:
    """Write rows as a file of an export; returns its manifest entry, None, and no file, when there are no rows."""
    num_rows = 0

    def count() -> Iterator[pa.Table]:
        nonlocal num_rows
        for table in tables:
            num_rows += len(table)
            yield table

    counted = count()
    first = next((table for table in counted if len(table)), None)
    if first is None:
        return None
    group_rows = USER_ROW_GROUP_ROWS if "user_id" in first.column_names else ITEM_ROW_GROUP_ROWS
    write_encoded(path, chain([first], counted), group_rows)
    return {"rows": num_rows} | describe_file(path)


def write_removed(
    folder: Path, files: dict[str, dict[str, Any]], users: pa.ChunkedArray, items: pa.ChunkedArray
) -> Difference:
    """Write the tombstones; returns all that was written, `files` being what was before."""
    files = dict(files)
    for name, key, gone in (("removed_users", "user_id", users), ("removed_items", "url", items)):
        ids = pc.unique(gone.cast(pa.string()))
        table = pa.table({key: ids.take(pc.sort_indices(ids))})
        with replace_file(folder / f"{name}.parquet") as temporary:
            pq.write_table(table, temporary, compression="zstd")
        files[f"{name}.parquet"] = {"rows": len(table)} | describe_file(folder / f"{name}.parquet")
    rows = {kind: sum(f["rows"] for name, f in files.items() if name.startswith(kind)) for kind in _KINDS}
    return Difference(files, *rows.values())


def _bits(rows: pa.Table | pa.RecordBatch) -> NDArray[np.uint8]:
    """What is stored of each row but its name, as bytes (N, W)."""
    parts = []
    for name in rows.schema.names[1:]:
        column = rows.column(name)
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        numbers = (column.flatten() if name == "vector" else column).to_numpy(zero_copy_only=False)
        parts.append(np.ascontiguousarray(numbers).view(np.uint8).reshape(len(rows), -1))
    return np.concatenate(parts, axis=1)


def _vector_files(manifest: dict[str, Any]) -> list[str]:
    return [f"{kind}_vectors/{name}" for kind in ("user", "item") for name in manifest[f"{kind}_files"]]
