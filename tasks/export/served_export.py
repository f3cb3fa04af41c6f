"""The files of a release as the registered model reads them: checked against the manifest before use.

MLflow copies this file beside the model (tasks/registry/user_vectors_model.py). So it imports nothing of surf2vec.
"""

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DIGEST_DIGITS = 16
TOKEN = ("release", "space_id")
"""What makes vectors a pair: users rank items of the same release only. In the metadata of each Parquet file of vectors."""


class ExportError(RuntimeError):
    """The release's files are missing or altered. The message names the file and the way out."""


class Export:
    """The release's folder. Its files must be the registered ones, and must not change while the model is loaded.

    If the model holds a copy, `context` has the artifact "export". If it refers to a folder, `context` has the artifact
    "manifest", a copy of the folder's manifest, and the configuration "export_uri".
    """

    def __init__(self, context: Any) -> None:
        if "manifest" in context.artifacts:
            registered = Path(context.artifacts["manifest"]).read_bytes()
            self.folder = folder_of(context.model_config["export_uri"])
            self.way_out = (
                "put the folder back as it was, load another version, or say where the folder is now with "
                'mlflow.pyfunc.load_model(..., model_config={"export_uri": "file:///the/folder"})'
            )
        else:
            self.folder = Path(context.artifacts["export"])
            registered = (self.folder / "manifest.json").read_bytes()
            self.way_out = (
                "load another version, or repeat the `surf2vec run` that registered this one: it mends the copy"
            )
        self.manifest = self.read_manifest(registered)
        self.files = list_files(self.manifest)
        self.verified: set[str] = set()
        if not self.folder.is_dir():
            raise self.error("it is not on this machine: moved, deleted, or its disk is not mounted")
        self.stamps = {name: self.stamp(name) for name in [*self.files, "manifest.json"]}
        for name, about in self.files.items():
            if self.stamps[name][0] != about["bytes"]:
                self.refuse_other(name)
                raise self.error(f"{name} there has {self.stamps[name][0]:,} bytes, registered were {about['bytes']:,}")
        # The manifest is checked last, so that a folder that is replaced meanwhile is noticed.
        with self.reading("manifest.json") as path:
            found, expected = (hashlib.sha256(content).hexdigest() for content in (path.read_bytes(), registered))
        if found != expected:
            raise self.error(f"it holds another export: sha256 of manifest.json {found}, registered was {expected}")

    def read_manifest(self, content: bytes) -> dict[str, Any]:
        """Parse the manifest. Raises ExportError unless its digest is right; manifests of earlier versions have no digest."""
        try:
            manifest = json.loads(content)
            digest = manifest.pop("digest", None)
            text = json.dumps(manifest, sort_keys=True, ensure_ascii=False, allow_nan=False)
            is_intact = digest in (None, hashlib.sha256(text.encode()).hexdigest())
            list_files(manifest)
        except (ValueError, KeyError, TypeError, AttributeError):
            is_intact = False
        if not is_intact:
            raise ExportError(f"manifest.json in {self.folder} was altered: {self.way_out}")
        return manifest

    def stamp(self, name: str) -> tuple[int, int, int]:
        """Return (bytes, mtime, inode) of a file, which change when it is written to or replaced."""
        try:
            found = (self.folder / name).stat()
        except OSError as error:
            raise self.error(f"{name} there cannot be read ({error.strerror})") from None
        return found.st_size, found.st_mtime_ns, found.st_ino

    @contextmanager
    def reading(self, name: str) -> Iterator[Path]:
        """Yield the path of a file. Raises ExportError if it cannot be read or has changed since loading."""
        self.check(name)
        try:
            yield self.folder / name
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self.error(f"{name} there cannot be read ({error})") from None
        finally:
            self.check(name)

    @contextmanager
    def reading_verified(self, name: str) -> Iterator[Path]:
        """Do as `reading`, and at the first use of a file compare all of its bytes with its digest."""
        with self.reading(name) as path:
            if name not in self.verified:
                with open(path, "rb") as file:
                    self.compare(name, hashlib.file_digest(file, "sha256").hexdigest(), self.files[name]["sha256"])
                self.verified.add(name)
            yield path

    def compare(self, name: str, found: str, registered: str) -> None:
        """Raise ExportError unless a digest is the registered one."""
        if found != registered:
            self.refuse_other(name)
            raise self.error(f"{name} there does not have the sha256 that was registered: its bytes were altered")

    def refuse_other(self, name: str) -> None:
        """Raise ExportError if a file is of another release."""
        if other := find_other(self.folder / name, self.manifest):
            raise self.error(f"{name} there {other}")

    def check(self, name: str) -> None:
        if self.stamp(name) != self.stamps[name]:
            raise self.error(f"{name} there has changed since the model was loaded", "load the model again")

    def error(self, problem: str, way_out: str = "") -> ExportError:
        release = self.manifest["release"]
        return ExportError(
            f"release {release} has its files in {self.folder}, but {problem}: {way_out or self.way_out}"
        )


def folder_of(uri: str) -> Path:
    """Return the folder that a file:// URI or a plain path names."""
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    if not os.path.isabs(uri):
        raise ExportError(f"export_uri is {uri!r}: give a folder of this machine, for instance file:///mnt/export/r1")
    return Path(uri)


def list_files(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return {path within the export: entry of the manifest} of all files but the manifest."""
    users = {f"user_vectors/{name}": about for name, about in manifest["user_files"].items()}
    items = {f"item_vectors/{name}": about for name, about in manifest["item_files"].items()}
    others = [about for about in manifest.values() if isinstance(about, dict) and "file" in about]
    return users | items | {about["file"]: about for about in others}


def token_of(manifest: dict[str, Any]) -> dict[str, str]:
    """Return the pairing token of a release, as the metadata of its Parquet files has it."""
    return {f"surf2vec.{key}": manifest[key] for key in TOKEN}


def read_token(path: Path) -> dict[str, str]:
    """Return the pairing token of a file; empty if it is no Parquet file, or has no whole one."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException):
        return {}
    names = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in metadata.items()}
    token = {name: names.get(name, "") for name in (f"surf2vec.{key}" for key in TOKEN)}
    return token if all(token.values()) else {}


def describe_token(token: dict[str, str]) -> str:
    """Return a pairing token in words."""
    return "release {} (space {})".format(*token.values())


def find_other(path: Path, manifest: dict[str, Any]) -> str:
    """Return in words that a file is of another release than the manifest; empty if it is not, or has no token."""
    own, found = token_of(manifest), read_token(path)
    if found in ({}, own):
        return ""
    return (
        f"is of {describe_token(found)}, and the manifest of {describe_token(own)}: vectors of two releases do not belong "
        "together"
    )


class Part:
    """One Parquet file of user vectors: its footer, and which ids and rows each row group has."""

    def __init__(self, export: Export, name: str) -> None:
        self.export, self.name = export, name
        num_bytes, digits = export.files[name]["bytes"], export.files[name].get("piece_sha256", "")
        self.digests = [digits[at : at + DIGEST_DIGITS] for at in range(0, len(digits), DIGEST_DIGITS)]
        with (export.reading if self.digests else export.reading_verified)(name) as path:
            with open(path, "rb") as file:
                file.seek(num_bytes - 8)
                footer_bytes = int.from_bytes(file.read(4), "little") + 8
            self.bounds = [max(0, num_bytes - footer_bytes), num_bytes]  # where each piece begins, and the last ends
            self.metadata = pq.read_metadata(self.load([-1]))
        groups = [self.metadata.row_group(group) for group in range(self.metadata.num_row_groups)]
        self.bounds = [*(group.column(0).data_page_offset for group in groups), *self.bounds]
        self.starts = list(accumulate((group.num_rows for group in groups), initial=0))
        self.least = [self.read_least(group) for group in range(len(groups))]

    def group_of_id(self, user_id: str) -> int:
        """Return the only row group that can contain this id, or -1."""
        return bisect_right(self.least, as_bytes(user_id)) - 1

    def load(self, pieces: list[int]) -> pa.BufferReader:
        """Return the file with only these row groups filled in (-1: the footer). They are compared with their digests."""
        content: Any = np.zeros(self.bounds[-1], np.uint8)  # takes memory only where it is filled
        with self.export.reading(self.name) as path, open(path, "rb", buffering=0) as file:
            for piece in pieces:
                start, end = self.bounds[-2:] if piece < 0 else self.bounds[piece : piece + 2]
                file.seek(start)
                file.readinto(content[start:end])
                if self.digests:
                    found = hashlib.sha256(content[start:end]).hexdigest()[:DIGEST_DIGITS]
                    self.export.compare(self.name, found, self.digests[piece])
        return pa.BufferReader(content)

    def read(self, groups: list[int], columns: list[str]) -> dict[int, pa.Table]:
        """Return {row group: table}. The file is closed afterwards: an open file would keep a deleted release on disk."""
        with self.export.reading(self.name), pq.ParquetFile(self.load(groups), metadata=self.metadata) as file:
            return {group: file.read_row_group(group, columns=columns) for group in groups}

    def read_least(self, group: int) -> bytes:
        """Return the least id of a row group as bytes (Parquet orders strings by their bytes)."""
        statistics = self.metadata.row_group(group).column(0).statistics
        if statistics is not None and statistics.has_min_max:
            return statistics.min.encode()
        # Ids above 4 kB get no statistics. Rows are sorted, so the first id is the least.
        return self.read([group], ["user_id"])[group]["user_id"][0].as_py().encode()


def as_bytes(user_id: str) -> bytes:
    """Return the id as UTF-8. An id with a lone surrogate, which no log has, is unknown and must not raise."""
    return user_id.encode("utf-8", "surrogatepass")


def decode_vectors(rows: pa.Table | pa.RecordBatch) -> np.ndarray:
    """Return the vectors of rows as float32 (N, D); `rows` has `vector`, and `scale` if vectors are stored as int8."""
    column = rows.column("vector")
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    numbers = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), lists.type.list_size)
    vectors = numbers.astype(np.float32, copy=False)
    return vectors * rows.column("scale").to_numpy()[:, None] if "scale" in rows.schema.names else vectors
