"""Makes an export without some users: removes their vectors and rebuilds the index. All other vectors keep their bits.

It is made from the files of the existing export, so it needs neither store nor corpus. Files that contain none of the users
are linked.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.export.export import write_index
from surf2vec.tasks.export.index import plan_index
from surf2vec.tasks.export.vector_files import USER_ROW_GROUP_ROWS, describe_users, write_rows
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, ReleaseFolder, open_folder, part_name
from surf2vec.tasks.release.release_reader import compared_columns, token_of
from surf2vec.tasks.users.user_set import UserSet
from surf2vec.trainer.system.files import link_file, replace_folder, write_manifest_json
from surf2vec.trainer.system.memory import private_bytes


def count_users(folder: Path, wanted: UserSet) -> int:
    """Return how many of these users have a vector in an export. Raises DamageError when a file cannot be read."""
    release = open_folder(folder)
    return sum(int(wanted.find(_read_ids(release, name)).sum()) for name in list_named(release.manifest, wanted))


def erase_from_export(
    folder: Path, wanted: UserSet, memory_bytes: int, values: dict[str, Any], out: Path
) -> dict[str, Any]:
    """Write an export without these users to `out`, which may be `folder`. Return its manifest, which includes `values`.

    One file of vectors is in memory at a time, then the index. Raises DamageError if a file does not match the manifest,
    ResourceError if disk or memory do not suffice.
    """
    release = open_folder(folder)
    manifest = dict(release.manifest)
    user_files, remade = dict(manifest["user_files"]), {manifest["index"]["file"]}
    with replace_folder(out) as new:
        for path in list_named(manifest, wanted):
            is_gone = np.asarray(wanted.find(_read_ids(release, path)))
            if not is_gone.any():
                continue
            remade.add(path)
            del user_files[name := Path(path).name]
            if not is_gone.all():
                table = pq.read_table(folder / path).filter(pa.array(~is_gone)).combine_chunks()
                write_rows(new / path, [table], USER_ROW_GROUP_ROWS, token_of(manifest))
                user_files[name] = {"rows": len(table)} | describe_users(new / path)
        for name in release.files:
            if name not in remade:
                link_file(release.path(name), new / name)
        user_files = {name: user_files[name] for name in manifest["user_files"] if name in user_files}  # in order
        num_users = sum(about["rows"] for about in user_files.values())
        erased = manifest | {"user_files": user_files, "num_users": num_users} | values
        quantise_above = 0 if "nprobe" in manifest["index"] else num_users  # the kind of index stays the same
        plan = plan_index(num_users, compared_columns(erased).stop, memory_bytes - private_bytes(), quantise_above)
        erased["index"] = write_index(new, erased, plan)
        write_manifest_json(new / EXPORT_MANIFEST, erased)
    return erased


def list_named(manifest: dict[str, Any], wanted: UserSet) -> list[str]:
    """Return the files of an export that can name any of these users."""
    names = {part_name(partition) for partition in wanted.partitions(manifest["partitions"])}
    return [f"user_vectors/{name}" for name in manifest["user_files"] if name in names]


def _read_ids(release: ReleaseFolder, name: str) -> pa.ChunkedArray:
    return pq.read_table(release.path(name), columns=["user_id"])["user_id"]
