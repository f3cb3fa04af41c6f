"""The registered model: vectors, nearest users and next items for user ids. Needs mlflow, numpy, pandas, pyarrow, faiss.

MLflow copies this file into the model and runs it at load time. So it imports nothing of surf2vec, and surf2vec does not
import it. `predict` takes a column `user_id` and returns a row for each user id, in the same order:

    user_id, vector                 the vector as a list of floats; None for a user without one
    neighbours, scores              with params {"k": 10}: nearest users by cosine, nearest first, the user left out
    items, item_scores              with params {"items": 10}: items by dot product, highest first

With params {"part": "interest"} or "path" vectors and items are of that part alone; the manifest names its columns.

The vectors are in the model, or in the export's folder, whose URI is in the model's configuration. If the folder has another path
on this machine, use `mlflow.pyfunc.load_model(..., model_config={"export_uri": "file:///mnt/export/r1"})`.

Loading reads only the manifest and the sizes of the files. A lookup hashes the id to find its part, finds the row group by the
least ids in the part's footer, and reads that group only. The index is memory-mapped. The items are read at first use.

Bytes are compared with the digests of the manifest before use: row groups and footers of users one by one; the index, the items,
and parts of earlier versions, whose row groups have no digests, as complete files.
"""

import hashlib
import json
import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import faiss
import mlflow.pyfunc
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.models import set_model

MAX_OPEN_PARTS = 512  # a footer of 50,000 users takes about 850 kB of memory
SCORES_AT_ONCE = 1 << 24
DIGEST_DIGITS = 16


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
            raise self.error(f"{name} there does not have the sha256 that was registered: its bytes were altered")

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
        content = np.zeros(self.bounds[-1], np.uint8)  # takes memory only where it is filled
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


class UserVectors(mlflow.pyfunc.PythonModel):
    """Predicts from an export's folder: see the module docstring."""

    def load_context(self, context: Any) -> None:
        self.export = Export(context)
        self.manifest = self.export.manifest
        self.names = list(self.manifest["user_files"])
        # Row r of the index is row r - first[i] of part i: the index has the parts in order.
        counts = [about["rows"] for about in self.manifest["user_files"].values()]
        self.first = list(accumulate(counts, initial=0))
        self.part = lru_cache(maxsize=MAX_OPEN_PARTS)(
            lambda number: Part(self.export, f"user_vectors/{self.names[number]}")
        )

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        k, num_items = (read_count(params, name) for name in ("k", "items"))
        columns_of_part = read_part(params, self.manifest, k)
        given = model_input["user_id"]
        if len(given) == 1 and isinstance(given.iloc[0], (list, np.ndarray)):
            # {"inputs": {"user_id": [...]}} over HTTP arrives as one row with a list in it.
            given = pd.Series(list(given.iloc[0]), dtype=object)
        ids = [as_id(value) for value in given]
        found = {
            user_id: (row, vector[columns_of_part])
            for user_id, (row, vector) in self.find_users(set(ids) - {None}).items()
        }
        columns = {"vector": {user_id: vector.tolist() for user_id, (_, vector) in found.items()}}
        if k:
            columns |= self.find_neighbours(found, k)
        if num_items:
            columns |= self.find_items(found, num_items, columns_of_part)
        series = {
            name: pd.Series([values.get(user_id) for user_id in ids], given.index, dtype=object)
            for name, values in columns.items()
        }
        return pd.DataFrame({"user_id": pd.Series(list(given), given.index, dtype=object)} | series)

    @cached_property
    def index(self) -> Any:
        # Flat and inverted-file kinds are read from the disk as they are searched; others come into memory.
        with self.export.reading_verified(self.manifest["index"]["file"]) as path:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        if "nprobe" in self.manifest["index"]:  # a quantised index: the number of lists that a search reads
            index.nprobe = self.manifest["index"]["nprobe"]
        return index

    @cached_property
    def item_table(self) -> tuple[np.ndarray, np.ndarray]:
        """(urls, float32 (V, D)) of the items, by item_ix."""
        if not self.manifest["item_files"]:
            raise ValueError(
                "this release was trained with hierarchical softmax and has no item vectors: leave out `items`"
            )
        tables = []
        for name in self.manifest["item_files"]:
            with self.export.reading_verified(f"item_vectors/{name}") as path:
                tables.append(pq.read_table(path, columns=["url", "vector"]))
        urls = np.concatenate([table["url"].to_numpy() for table in tables])
        return urls, np.concatenate([as_matrix(table) for table in tables])

    def find_users(self, user_ids: set[str]) -> dict[str, tuple[int, np.ndarray]]:
        """Return {user_id: (row in the index, vector)} of the users with a vector."""
        numbers = {name: number for number, name in enumerate(self.names)}
        wanted: dict[int, list[str]] = defaultdict(list)
        for user_id in user_ids:
            number = numbers.get(f"part-{partition_of(user_id, self.manifest['partitions']):05d}.parquet")
            if number is not None:
                wanted[number].append(user_id)
        found = {}
        for number, ids in sorted(wanted.items()):
            part = self.part(number)
            groups = {part.group_of_id(user_id) for user_id in ids} - {-1}
            for group, table in part.read(sorted(groups), ["user_id", "vector", "scale"]).items():
                rows = {user_id: row for row, user_id in enumerate(table["user_id"].to_pylist())}
                vectors, first = as_matrix(table), self.first[number] + part.starts[group]
                for user_id in rows.keys() & ids:
                    found[user_id] = (first + rows[user_id], vectors[rows[user_id]].copy())
        return found

    def find_neighbours(self, found: dict[str, tuple[int, np.ndarray]], k: int) -> dict[str, dict[str, Any]]:
        """Return the k nearest other users, nearest first: {"neighbours": {user_id: ids}, "scores": {user_id: cosines}}."""
        near: dict[str, dict[str, Any]] = {"neighbours": {}, "scores": {}}
        if not found:
            return near
        vectors = np.stack([vector for _, vector in found.values()])
        units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        scores, rows = self.index.search(units, min(k + 1, self.index.ntotal))
        names = self.read_ids(set(rows.ravel().tolist()) - {-1})
        for number, (user_id, (own_row, _)) in enumerate(found.items()):
            pairs = zip(rows[number].tolist(), scores[number].tolist(), strict=True)
            others = [(names[row], min(score, 1.0)) for row, score in pairs if row not in (own_row, -1)][:k]
            near["neighbours"][user_id] = [name for name, _ in others]
            near["scores"][user_id] = [score for _, score in others]
        return near

    def read_ids(self, rows: set[int]) -> dict[int, str]:
        """Return {row in the index: user_id}; reads only the row groups that contain them."""
        wanted: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            number = bisect_right(self.first, row) - 1
            group = bisect_right(self.part(number).starts, row - self.first[number]) - 1
            wanted[number][group].append(row)
        names = {}
        for number, groups in sorted(wanted.items()):
            part = self.part(number)
            for group, table in part.read(sorted(groups), ["user_id"]).items():
                first = self.first[number] + part.starts[group]
                names |= {row: table["user_id"][row - first].as_py() for row in groups[group]}
        return names

    def find_items(
        self, found: dict[str, tuple[int, np.ndarray]], num_items: int, columns: slice
    ) -> dict[str, dict[str, Any]]:
        """Return the best items, highest score first: {"items": {user_id: urls}, "item_scores": {user_id: scores}}.

        columns: of the items' vectors, as many as the users' have.
        """
        urls, item_vectors = self.item_table
        item_vectors = item_vectors[:, columns]
        num_items = min(num_items, len(urls))
        user_ids, at_once = list(found), max(1, SCORES_AT_ONCE // max(1, len(urls)))
        best: dict[str, dict[str, Any]] = {"items": {}, "item_scores": {}}
        for start in range(0, len(user_ids), at_once):
            some = user_ids[start : start + at_once]
            scores = np.stack([found[user_id][1] for user_id in some]) @ item_vectors.T
            top = np.argpartition(-scores, num_items - 1, axis=1)[:, :num_items]
            for user_id, row, columns in zip(some, scores, top, strict=True):
                columns = columns[np.lexsort((columns, -row[columns]))]
                best["items"][user_id] = urls[columns].tolist()
                best["item_scores"][user_id] = row[columns].tolist()
        return best


def read_count(params: dict[str, Any] | None, name: str) -> int:
    """Return an integer of the params, 0 by default. Raises ValueError if it is negative."""
    value = int((params or {}).get(name) or 0)
    if value < 0:
        raise ValueError(f"params[{name!r}] is {value}: give 0 or more")
    return value


def read_part(params: dict[str, Any] | None, manifest: dict[str, Any], k: int) -> slice:
    """Return the columns of the wanted part, or all. Raises ValueError for an unknown part, or for neighbours by a part."""
    part = (params or {}).get("part") or ""
    if not part:
        return slice(None)
    parts = manifest.get("parts", {})
    if part not in parts:
        known = " or ".join(repr(name) for name in parts) or "nothing, as its vectors have one part"
        raise ValueError(f"params['part'] is {part!r}: this release has {known}")
    if k:
        raise ValueError("params['k'] finds neighbours by whole vectors: leave out `part`")
    return slice(*parts[part])


def as_id(value: Any) -> str | None:
    """Return a user id as text, None for a missing one. Removes the .0 of integers that pandas converted to floats."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    return str(int(value)) if isinstance(value, (float, np.floating)) and value.is_integer() else str(value)


def as_bytes(user_id: str) -> bytes:
    """Return the id as UTF-8. An id with a lone surrogate, which no log has, is unknown and must not raise."""
    return user_id.encode("utf-8", "surrogatepass")


def partition_of(user_id: str, partitions: int) -> int:
    """Return the micro-partition of a user: the low 64 bits of the id's md5, modulo `partitions`."""
    digest = hashlib.md5(as_bytes(user_id), usedforsecurity=False).digest()
    return int.from_bytes(digest[8:], "little") % partitions


def as_matrix(table: pa.Table) -> np.ndarray:
    """Return the column `vector` as float32 (N, D). It may be stored as float16, or as int8 with a column `scale`."""
    lists = table["vector"].combine_chunks()
    numbers = lists.flatten().to_numpy().reshape(len(lists), -1).astype(np.float32, copy=False)
    return numbers * table["scale"].to_numpy()[:, None] if "scale" in table.column_names else numbers


set_model(UserVectors())
