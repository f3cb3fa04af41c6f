"""A release in a folder of this machine: opens it, and checks the form of one that somebody else may have made.

Checksums say that bytes are those that a manifest names; the form says that readers can work with them.
"""

from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.release.release_reader import (
    KEYS,
    VECTOR_COLUMNS,
    ReleaseReader,
    columns_of_part,
    find_other,
    list_files,
)
from surf2vec.tasks.release.trail_sums import TrailSums
from surf2vec.tasks.release.url_rules import KnownItems, UrlRules
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.system.files import read_json, verify_once, verify_size

EXPORT_MANIFEST = "manifest.json"
README = "README.md"  # the card, for who opens the folder; the manifest does not name it, and nothing reads it
FORMAT_VERSION = 2
_NUMBERS = (pa.float32(), pa.float16(), pa.int8())


class ReleaseFolder(ReleaseReader):
    """A release whose faults are DamageErrors. A process verifies a file only once, however often the release is opened."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        pull = f"`surf2vec pull models:/NAME/VERSION --out {folder}`"
        super().__init__(folder, manifest, f"bring release {manifest['release']} back with {pull}, or serve another")

    def error(self, problem: str, way_out: str = "") -> DamageError:
        return DamageError(str(super().error(problem, way_out)))

    def verify(self, name: str) -> None:
        try:
            verify_once(self.folder / name, self.files[name], self.way_out)
        except DamageError:
            if other := find_other(self.folder / name, self.manifest):
                raise DamageError(f"{self.folder / name} {other}; {self.way_out}") from None
            raise

    def read_partition(self, partition: int) -> pa.Table | None:
        """Return the users of a micro-partition with their vectors as stored; None if it has no users."""
        if part_name(partition) not in self.manifest["user_files"]:
            return None
        with self.opened(f"user_vectors/{part_name(partition)}") as path, pq.ParquetFile(path) as file:
            return file.read(columns=["user_id", *VECTOR_COLUMNS])

    def find_columns(self, part: str) -> slice:
        """Return the columns of a part. Raises InputError if the release does not have it."""
        try:
            return columns_of_part(self.manifest, part)
        except ValueError as error:
            raise InputError(str(error)) from None

    @cached_property
    def trail_sums(self) -> TrailSums:
        """What sums up trails in the release's vectors. Raises InputError if they have no trail."""
        if "trail" not in self.manifest:
            raise InputError(f"release {self.manifest['release']} cannot sum up pages: its vectors have no trail")
        return TrailSums.of_release(self.manifest, self.trail_inputs[1])

    @cached_property
    def known_items(self) -> KnownItems:
        return KnownItems.of_release(self.manifest, self.urls)


def open_folder(folder: Path) -> ReleaseFolder:
    """Return the release in a folder. Raises InputError for none, or for changes alone, DamageError for an invalid manifest."""
    path = folder / EXPORT_MANIFEST
    if not path.exists():
        raise InputError(f"there is no export in {folder}: run `surf2vec run` first")
    manifest = read_json(path)
    if isinstance(manifest, dict) and "since" in manifest:
        raise InputError(
            f"{folder} has only what changed from release {manifest['since']} to {manifest['release']}: these vectors "
            f"belong together with those of release {manifest['since']}; pull the whole release without --since"
        )
    return ReleaseFolder(folder, check_manifest(manifest, str(path)))


def part_name(partition: int) -> str:
    """Return the name of a micro-partition's file of user vectors."""
    return f"part-{partition:05d}.parquet"


def check_manifest(manifest: Any, what: str) -> dict[str, Any]:
    """Return a release's manifest. Raises DamageError, which calls it `what`, if readers lack something, or a file is outside."""
    try:
        files = list_files(manifest)
        sizes = [manifest[name] for name in ("vector_size", "num_users", "num_items", "partitions")]
        sizes += [about["bytes"] for about in files.values()]
        sizes += [about["rows"] for about in manifest["user_files"].values()]
        sizes += [column for part in manifest["parts"].values() for column in part]
        texts = [manifest["release"], manifest["space_id"], manifest["created_from"]["window_id"]]
        texts += [manifest["index"]["file"], *(about["sha256"] for about in files.values())]
        rules = UrlRules.of_record(manifest["rules"])
        texts, sizes = [*texts, *rules.keep_query], [*sizes, rules.prefix_depth]
        has_form = all(type(one) is int and one >= 0 for one in sizes) and all(isinstance(one, str) for one in texts)
        has_form &= rules.granularity in ("page", "prefix", "host") and isinstance(rules.mask_secrets, bool)
        version = manifest["format_version"]
    except (KeyError, TypeError, AttributeError):
        has_form = False
    if not has_form:
        raise DamageError(f"{what} is not a release's: it was altered, or not made by surf2vec; pull the release again")
    if version != FORMAT_VERSION:
        raise DamageError(f"{what} has the format {version}, and this surf2vec reads {FORMAT_VERSION}: update it")
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
    for kind, key in KEYS.items():
        for name, about in manifest[f"{kind[:-1]}_files"].items():
            path = folder / f"{kind[:-1]}_vectors/{name}"
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
                fault = f"is not a table of vectors ({type(error).__name__})"
            if fault:
                raise DamageError(f"{path} {fault}: this is not a release of surf2vec; pull another one")
