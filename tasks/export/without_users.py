"""An export without some of its users: their vectors go, and the index is built anew; every other vector is the same bits.

It is made of the files of the export there is, not of the store, so it needs neither store nor corpus. Files without any of
the users get a second name.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.export.export import EXPORT_MANIFEST, list_files, path_of, replace_folder, write_index
from tasks.export.index import plan_index
from tasks.export.vector_files import USER_ROW_GROUP_ROWS, describe_users, write_rows
from tasks.users.user_set import UserSet
from trainer.system.files import link_file, read_json, write_manifest_json
from trainer.system.memory import private_bytes

_USERS = "user_vectors"
_CHANGES = "changes/"


def count_in_export(folder: Path, manifest: dict[str, Any], wanted: UserSet) -> int:
    """How often these users are named in an export, also as rows that changed or left. Raises DamageError as `count_users`."""
    return sum(int(wanted.find(_read_ids(folder, manifest, name)).sum()) for name in list_named(manifest, wanted))


def count_users(folder: Path, manifest: dict[str, Any], wanted: UserSet) -> int:
    """How many of these users have a vector in an export. Raises DamageError when a file cannot be read."""
    names = _files_of(manifest, wanted)
    return sum(int(wanted.find(_read_ids(folder, manifest, f"{_USERS}/{name}")).sum()) for name in names)


def erase_from_export(
    folder: Path, wanted: UserSet, memory_bytes: int, values: dict[str, Any], out: Path
) -> dict[str, Any]:
    """Make `out`, an export without these users that says `values` of itself; returns its manifest.

    What it says of changes since an earlier release is left out: that would name who left. `out` may be `folder` itself. One file
    of vectors is in memory at a time, then the index. Raises DamageError when a file is not as the manifest says, ResourceError
    when disk or memory do not suffice.
    """
    manifest = read_json(folder / EXPORT_MANIFEST)
    with replace_folder(out) as new:
        changed = _write_users(folder, manifest, wanted, new)
        for name in list_files(manifest):
            if name not in changed and name != manifest["index"]["file"] and not name.startswith(_CHANGES):
                link_file(path_of(folder, manifest, name), new / name)
        user_files = {name: changed.get(f"{_USERS}/{name}", about) for name, about in manifest["user_files"].items()}
        user_files = {name: about for name, about in user_files.items() if about["rows"]}
        num_users = sum(about["rows"] for about in user_files.values())
        manifest.pop("changes", None)
        erased = manifest | {"user_files": user_files, "num_users": num_users} | values
        quantise_above = 0 if "nprobe" in manifest["index"] else num_users  # the index stays of its kind
        plan = plan_index(num_users, erased["vector_size"], memory_bytes - private_bytes(), quantise_above)
        erased["index"] = write_index(new, erased, plan)
        write_manifest_json(new / EXPORT_MANIFEST, erased)
    return erased


def list_named(manifest: dict[str, Any], wanted: UserSet) -> list[str]:
    """The files of an export that may name any of these users: vectors, and what changed since an earlier release."""
    changed = [name for name in list_files(manifest) if name.startswith(_CHANGES) and name.endswith(".parquet")]
    return [
        *(f"{_USERS}/{name}" for name in _files_of(manifest, wanted)),
        *(one for one in changed if "item" not in one),
    ]


def _files_of(manifest: dict[str, Any], wanted: UserSet) -> list[str]:
    """The files of vectors that can have any of these users."""
    names = {f"part-{partition:05d}.parquet" for partition in wanted.partitions(manifest["partitions"])}
    return [name for name in manifest["user_files"] if name in names]


def _write_users(folder: Path, manifest: dict[str, Any], wanted: UserSet, new: Path) -> dict[str, dict[str, Any]]:
    """Write the files that have any of these users without them; returns the entries, by path, of none where nobody is left."""
    changed: dict[str, dict[str, Any]] = {}
    for name in _files_of(manifest, wanted):
        path = folder / _USERS / name
        is_gone = np.asarray(wanted.find(_read_ids(folder, manifest, f"{_USERS}/{name}")))
        if not is_gone.any():
            continue
        num_left = int((~is_gone).sum())
        changed[f"{_USERS}/{name}"] = {"rows": num_left}
        if num_left:
            table = pq.read_table(path).filter(pa.array(~is_gone)).combine_chunks()
            write_rows(new / _USERS / name, [table], USER_ROW_GROUP_ROWS)
            changed[f"{_USERS}/{name}"] |= describe_users(new / _USERS / name)
    return changed


def _read_ids(folder: Path, manifest: dict[str, Any], name: str) -> pa.ChunkedArray:
    return pq.read_table(path_of(folder, manifest, name), columns=["user_id"])["user_id"]
