"""The form of a release that somebody else may have made: what its manifest has, where its files lie, what their tables are.

Checksums say that bytes are those that a manifest names; this says that readers can work with them. The numbers are not judged.
"""

from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.export.served_export import list_files as list_served
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.system.files import verify_size

FORMAT_VERSION = 1
_KEYS = {"user": "user_id", "item": "url"}
_NUMBERS = (pa.float32(), pa.float16(), pa.int8())


def list_files(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every file of an export but the manifest: path within the export → `{"bytes", "sha256", ...}`."""
    return list_served(manifest) | manifest.get("changes", {}).get("files", {})


def check_manifest(manifest: Any, what: str) -> dict[str, Any]:
    """Return the manifest of a release. Raises DamageError, which calls it `what`, unless it has what readers need, and its
    files are inside its folder.
    """
    try:
        files = list_files(manifest)
        sizes = [manifest[name] for name in ("vector_size", "num_users", "num_items", "partitions")]
        sizes += [about["bytes"] for about in files.values()]
        sizes += [about["rows"] for about in manifest["user_files"].values()]
        texts = [manifest["release"], manifest["space_id"], manifest["created_from"]["window_id"]]
        texts += [manifest["index"]["file"], *(about["sha256"] for about in files.values())]
        has_form = all(type(one) is int and one >= 0 for one in sizes) and all(isinstance(one, str) for one in texts)
        version = manifest["format_version"]
    except (KeyError, TypeError, AttributeError):
        has_form = False
    if not has_form:
        raise DamageError(f"{what} is not a release's: it was altered, or not made by surf2vec; pull the release again")
    if version != FORMAT_VERSION:
        raise DamageError(
            f"{what} has the format {version}, and this version of surf2vec reads {FORMAT_VERSION}: update it"
        )
    for name in files:
        if leads_outside(name):
            raise DamageError(f"{what} names {name!r}, which is outside the export")
    return dict(manifest)


def leads_outside(name: str) -> bool:
    """Return whether a file name in a manifest leaves the folder of the manifest, or could forge a line in a terminal."""
    path = PurePosixPath(name)
    return ".." in path.parts or path.is_absolute() or "//" in name or not name.isprintable()


def check_tables(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise DamageError unless each file of vectors has the columns, the size of vectors and the rows that its manifest says."""
    for kind, key in _KEYS.items():
        for name, about in manifest[f"{kind}_files"].items():
            path = folder / f"{kind}_vectors/{name}"
            try:
                verify_size(path, about)
                metadata = pq.read_metadata(path)
                schema = metadata.schema.to_arrow_schema()
                vector = schema.field("vector").type
                is_vector = vector.list_size == manifest["vector_size"] and vector.value_type in _NUMBERS
                is_key = schema.field(key).type in (pa.string(), pa.large_string())
                columns = schema.to_string(show_schema_metadata=False)
                fault = "" if is_vector and is_key else f"has the columns {columns!r}"
                if metadata.num_rows != about["rows"]:
                    fault = f"has {metadata.num_rows:,} rows where its manifest says {about['rows']:,}"
            except DamageError as error:
                fault = str(error).removeprefix(f"{path} ")
            except (OSError, pa.ArrowException, AttributeError, KeyError) as error:
                fault = f"is no table of vectors ({type(error).__name__})"
            if fault:
                raise DamageError(f"{path} {fault}: this is no release of surf2vec; pull another one")
