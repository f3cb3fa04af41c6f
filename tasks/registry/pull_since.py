"""Pulls what changed between two releases. Both are fetched whole and compared; files that they share, only once.

user_vectors/part-00012.parquet, item_vectors/part-00000.parquet   new and changed rows, in the export's layout
removed_users.parquet, removed_items.parquet                       user_id, url: removed rows
trail_inputs.parquet                                               the release's own, if it has a trail
manifest.json                                                      both releases; rows, bytes, checksums
"""

import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.export.vector_files import ITEM_BATCH_ROWS, ITEM_ROW_GROUP_ROWS, USER_ROW_GROUP_ROWS, write_rows
from surf2vec.tasks.registry.pull import Fetcher, check_out, describe_pull, find_version, hold_folder, put_in_place
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, FORMAT_VERSION, check_manifest
from surf2vec.tasks.release.release_reader import KEYS, list_files, token_of
from surf2vec.tasks.users.tombstones import NOBODY, Tombstones
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent, ignore_event
from surf2vec.trainer.system.files import describe_file, read_json, replace_file, write_manifest_json

GROUP_ROWS = {"users": USER_ROW_GROUP_ROWS, "items": ITEM_ROW_GROUP_ROWS}


def pull_since(
    uri: str, out: Path, since: int, tracking_uri: str, on_event: OnEvent = ignore_event, forgotten: Tombstones = NOBODY
) -> dict[str, Any]:
    """Write the changes from version `since` to the release of `uri` into the folder `out`; replace earlier changes in it.

    Users who were `forgotten` count as removed. Raises InputError if `out` holds more than changes, or for an unknown version.
    """
    check_out(out)
    if (out / EXPORT_MANIFEST).exists() and "since" not in read_json(out / EXPORT_MANIFEST):
        raise InputError(
            f"{out} holds a whole release, and --since gives only what changed: use another --out and apply the changes, or "
            "leave out --since, which fetches all files that differ"
        )
    target = find_version(uri, tracking_uri)
    older = find_version(f"models:/{target.name}/{since}", tracking_uri)
    fetcher = Fetcher(tracking_uri, on_event)
    with hold_folder(out, on_event) as gathered, tempfile.TemporaryDirectory(dir=gathered) as scratch:
        sides: list[tuple[Path, dict[str, Any]]] = []
        for version, folder in ((older, gathered / ".older"), (target, gathered / ".newer")):
            found = fetcher.get_manifest(version, Path(scratch) / f"{folder.name}.json")
            manifest = check_manifest(found, f"{EXPORT_MANIFEST} of {version.place}")
            vectors = list_files({name: manifest[name] for name in ("user_files", "item_files")})
            fetcher.get_all(version, vectors, folder, sides[0][0] if sides else None)
            sides.append((folder, manifest))
        trail = {manifest["trail"]["file"]: manifest["trail"]} if "trail" in manifest else {}
        for name, entry in trail.items():
            fetcher.get(target, name, entry, gathered / name)
        files = write_difference(sides, gathered, forgotten)
        kept = ("release", "space_id", "vector_size", "storage", "parts", "bias_columns", "activity", "trail", "rules")
        about = {name: manifest[name] for name in kept if name in manifest}
        about |= {"format_version": FORMAT_VERSION, "since": older.tags["release"], "since_version": older.number}
        counts = {
            f"{what}_{kind}": sum(about["rows"] for name, about in files.items() if name.startswith(start))
            for kind in KEYS
            for what, start in (("changed", f"{kind[:-1]}_vectors/"), ("removed", f"removed_{kind}."))
        }
        about |= {"model_version": target.number, "files": files | trail} | counts
        write_manifest_json(gathered / EXPORT_MANIFEST, about)
        put_in_place(gathered, out, {EXPORT_MANIFEST, *files, *trail})
    return describe_pull(manifest, target, out, fetcher) | {"since": since} | counts


def write_difference(
    sides: list[tuple[Path, dict[str, Any]]], out: Path, forgotten: Tombstones
) -> dict[str, dict[str, Any]]:
    """Write the difference of two releases, each a folder and its manifest, to `out`. Returns the entries of its files.

    Users who were `forgotten` count as removed. A micro-partition's users, or a batch of items, are compared at a time.
    """
    files: dict[str, dict[str, Any]] = {}
    for kind, key in KEYS.items():
        none = pl.Series(key, [], pl.String)
        removed, changed = [none], [none]
        for name in sorted({name for _, manifest in sides for name in manifest[f"{kind[:-1]}_files"]}):
            path = f"{kind[:-1]}_vectors/{name}"
            paths = [folder / path if name in manifest[f"{kind[:-1]}_files"] else None for folder, manifest in sides]
            before, now = (pl.read_parquet(one, columns=[key])[key] if one else none for one in paths)
            removed.append(before.filter(~before.is_in(now.implode())))
            rows = _find_changed(paths[0], paths[1], kind)
            if kind == "users" and forgotten:
                gone = now.filter(pl.Series(forgotten.is_forgotten(now.to_list()), dtype=pl.Boolean))
                removed.append(gone)
                rows = rows.filter(~rows[key].is_in(gone.implode())) if len(rows) else rows
            if len(rows):
                write_rows(out / path, [rows.sort(key).to_arrow()], GROUP_ROWS[kind], token_of(sides[1][1]))
                files[path] = {"rows": len(rows)} | describe_file(out / path)
                changed.append(rows[key])
        ids, name = pl.concat(removed), f"removed_{kind}.parquet"
        ids = ids.filter(~ids.is_in(pl.concat(changed).implode())).unique().sort()  # some only moved to another file
        with replace_file(out / name) as temporary:
            pq.write_table(pa.table({key: ids.to_arrow().cast(pa.string())}), temporary, compression="zstd")
        files[name] = {"rows": len(ids)} | describe_file(out / name)
    return files


def _find_changed(old_path: Path | None, new_path: Path | None, kind: str) -> pl.DataFrame:
    """Return the rows of a file of vectors that the older file does not have: all if it is stored otherwise."""
    found = [pl.DataFrame()]
    for old, new in zip_longest(_read_rows(old_path, kind), _read_rows(new_path, kind)):
        if new is not None:
            is_alike = old is not None and old.schema == new.schema
            found.append(new.join(old, on=new.columns, how="anti") if is_alike else new)
    return pl.concat(found[1:] or found)


def _read_rows(path: Path | None, kind: str) -> Iterator[pl.DataFrame]:
    """Yield all rows of a file of users at once, those of a file of items in batches; nothing without a file."""
    if path:
        with pq.ParquetFile(path, pre_buffer=False) as file:  # else pyarrow keeps all of it
            for batch in file.iter_batches(ITEM_BATCH_ROWS if kind == "items" else max(1, file.metadata.num_rows)):
                yield pl.DataFrame(pa.Table.from_batches([batch]))
