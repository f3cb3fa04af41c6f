"""The one reader of a release: it checks files against the manifest before use, and reads vectors, neighbours and items.

MLflow copies this file beside the registered model (tasks/registry/user_vectors_model.py). So it imports nothing of surf2vec.
Its name is long because there it is a module of the reader's own process.

A lookup hashes the id to find its file, finds the row group by the least ids in the footer, and reads that group only. Row groups
and footers of users are compared with digests one by one; the index, the items and the inputs of the trail as complete files.
"""

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KEYS = {"users": "user_id", "items": "url"}
VECTOR_COLUMNS = ("vector", "scale")
DIGEST_DIGITS = 16
TOKEN = ("release", "space_id")
"""What makes vectors a pair: users rank items of the same release only. In the metadata of each Parquet file of vectors."""
MAX_OPEN_PARTS = 512  # a footer of 50,000 users takes about 850 kB of memory
MAX_KEPT_GROUPS = 8192  # row groups whose ids stay in memory, of a million users: about 25 MB
SCORES_AT_ONCE = 1 << 24
BATCH_ROWS = 16_384


class ReleaseError(RuntimeError):
    """The release's files are missing or altered. The message names the file and the way out."""


class ReleaseReader:
    """A release in a folder. Its files must be those of the manifest, and must not change while it is open."""

    def __init__(self, folder: Path, manifest: dict[str, Any], way_out: str) -> None:
        self.folder, self.manifest, self.way_out = folder, manifest, way_out
        self.files = list_files(manifest)
        self.stamps: dict[str, tuple[int, int, int]] = {}
        self.verified: set[str] = set()
        self.names = list(manifest["user_files"])
        # Row r of the index is row r - first[i] of part i: the index has the parts in order.
        self.first = list(accumulate((about["rows"] for about in manifest["user_files"].values()), initial=0))
        self.part: Callable[[int], UserFile] = lru_cache(MAX_OPEN_PARTS)(lambda at: UserFile(self, self.names[at]))
        self.ids: Callable[[int, int], pa.Array] = lru_cache(MAX_KEPT_GROUPS)(
            lambda number, group: self.part(number).read([group], ["user_id"])[group]["user_id"]
        )

    def stamp(self, name: str) -> tuple[int, int, int]:
        """Return (bytes, mtime, inode) of a file, which change when it is written to or replaced."""
        try:
            found = (self.folder / name).stat()
        except OSError as error:
            raise self.error(f"{name} there cannot be read ({error.strerror})") from None
        return found.st_size, found.st_mtime_ns, found.st_ino

    def check(self, name: str) -> None:
        """Raise unless the file is unchanged since its first use."""
        now = self.stamp(name)
        if now != self.stamps.setdefault(name, now):
            raise self.error(f"{name} there has changed since it was opened", "open it, or load the model, again")

    def error(self, problem: str, way_out: str = "") -> Exception:
        """Return the exception for a problem with the files."""
        place = f"release {self.manifest['release']} has its files in {self.folder}"
        return ReleaseError(f"{place}, but {problem}: {way_out or self.way_out}")

    @contextmanager
    def opened(self, name: str, is_whole: bool = True) -> Iterator[Path]:
        """Yield the path of a file. Raises if it cannot be read or changes meanwhile. is_whole: all of its bytes are verified."""
        try:
            if is_whole and name not in self.verified:
                self.verify(name)
                self.verified.add(name)
            self.check(name)
            yield self.folder / name
        except (OSError, ValueError, pa.ArrowException) as error:
            self.check(name)
            raise self.error(f"{name} there cannot be read ({error})") from None
        self.check(name)

    def path(self, name: str) -> Path:
        """Return the path of a file whose bytes are verified."""
        with self.opened(name) as path:
            return path

    def verify(self, name: str) -> None:
        """Raise unless all bytes of a file are those of the manifest."""
        self.check(name)
        with open(self.folder / name, "rb") as file:
            self.compare(name, hashlib.file_digest(file, "sha256").hexdigest(), self.files[name]["sha256"])

    def compare(self, name: str, found: str, registered: str) -> None:
        """Raise unless a digest is the registered one."""
        if found != registered:
            self.check(name)
            other = find_other(self.folder / name, self.manifest)
            raise self.error(f"{name} there {other or 'does not have the registered sha256: its bytes were altered'}")

    def read_batches(self, kind: str, num_rows: int = BATCH_ROWS) -> Iterator[tuple[pa.Array, np.ndarray]]:
        """Yield keys and vectors float32[n, D] of all `users` or `items`, in the order of the files' names."""
        prefix = f"{kind[:-1]}_vectors/"
        for name in sorted(one for one in self.files if one.startswith(prefix)):
            with self.opened(name) as path, pq.ParquetFile(path, pre_buffer=False) as file:
                columns = [one for one in (KEYS[kind], *VECTOR_COLUMNS) if one in file.schema_arrow.names]
                if (size := file.schema_arrow.field("vector").type.list_size) != self.manifest["vector_size"]:
                    raise self.error(f"{name} there has vectors of {size} dimensions, unlike its manifest")
                for batch in file.iter_batches(num_rows, columns=columns):
                    yield batch.column(KEYS[kind]), decode_vectors(batch)

    def find_users(self, user_ids: set[str]) -> dict[str, tuple[int, np.ndarray]]:
        """Return {user_id: (row in the index, vector)} of the users with a vector."""
        numbers = {name: number for number, name in enumerate(self.names)}
        wanted: dict[int, list[str]] = defaultdict(list)
        for user_id in user_ids:
            number = numbers.get(f"part-{user_hash(user_id) % self.manifest['partitions']:05d}.parquet")
            if number is not None:
                wanted[number].append(user_id)
        found = {}
        for number, ids in sorted(wanted.items()):
            part = self.part(number)
            groups = {bisect_right(part.least, as_bytes(user_id)) - 1 for user_id in ids} - {-1}
            for group, table in part.read(sorted(groups), ["user_id", *VECTOR_COLUMNS]).items():
                rows = {user_id: row for row, user_id in enumerate(table["user_id"].to_pylist())}
                vectors, first = decode_vectors(table), self.first[number] + part.starts[group]
                for user_id in rows.keys() & ids:
                    found[user_id] = (first + rows[user_id], vectors[rows[user_id]].copy())
        return found

    @cached_property
    def index(self) -> Any:
        """The index of unit user vectors, without activity."""
        import faiss

        name, expected = self.manifest["index"]["file"], (self.first[-1], compared_columns(self.manifest).stop)
        with self.opened(name) as path:
            try:
                # Flat and inverted-file kinds are read from the disk as they are searched; others come into memory.
                index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
            except RuntimeError:  # faiss has no other error
                index = None
        if index is None or (index.ntotal, index.d) != expected:
            raise self.error(f"{name} there is no index of its {expected[0]:,} users")
        if "nprobe" in self.manifest["index"]:  # a quantised index: the number of lists that a search reads
            index.nprobe = self.manifest["index"]["nprobe"]
        return index

    def find_neighbours(
        self, own_rows: np.ndarray, vectors: np.ndarray, k: int, columns: slice
    ) -> list[list[tuple[str, float]]]:
        """Return of each user the ids and cosines of the k nearest others, nearest first; a quantised index may find fewer.

        own_rows int64[n]: of the users in the index, -1 for strangers; vectors float32[n, D]; columns: those that are compared.
        Only `compared_columns` are in the index: for others all users are read.
        """
        if not len(vectors):
            return []
        units, num_found = unit_rows(vectors[:, columns]), min(k + 1, self.first[-1])
        if columns == compared_columns(self.manifest):
            scores, rows = self.index.search(units, num_found)
        else:
            scores, rows = find_nearest(units, num_found, (rows[:, columns] for _, rows in self.read_batches("users")))
        names, near = self.read_ids(set(rows.ravel().tolist()) - {-1}), []
        for own_row, found, cosines in zip(own_rows.tolist(), rows.tolist(), scores.tolist(), strict=True):
            others = [(row, cosine) for row, cosine in zip(found, cosines, strict=True) if row not in (own_row, -1)]
            near.append([(names[row], min(cosine, 1.0)) for row, cosine in others[:k]])
        return near

    def read_ids(self, rows: set[int]) -> dict[int, str]:
        """Return {row in the index: user_id}; reads only the row groups that contain them, and keeps their ids in memory."""
        names = {}
        for row in sorted(rows):
            number = bisect_right(self.first, row) - 1
            part, row_in_part = self.part(number), row - self.first[number]
            self.check(part.name)
            group = bisect_right(part.starts, row_in_part) - 1
            names[row] = self.ids(number, group)[row_in_part - part.starts[group]].as_py()
        return names

    @cached_property
    def items(self) -> tuple[pa.ChunkedArray, np.ndarray]:
        """(urls, float32 (V, D)) of the items, by item_ix, without activity; none if the release was trained with a tree."""
        columns, urls = compared_columns(self.manifest), list[pa.Array]()
        num_items = sum(file["rows"] for file in self.manifest["item_files"].values())
        items, end = np.empty((num_items, columns.stop), np.float32), 0
        for keys, vectors in self.read_batches("items"):
            urls.append(keys)
            items[end : (end := end + len(keys))] = vectors[:, columns]
        return pa.chunked_array(urls, pa.string()), items

    def rank_items(
        self, vectors: np.ndarray, num_items: int, columns: slice, seen: Sequence[Sequence[int]]
    ) -> Iterator[tuple[list[str], list[float]]]:
        """Yield of each user the urls and scores of the best items by dot product, highest first.

        vectors float32[n, D]; columns: those that rank, none of activity; seen: items to leave out, of each user.
        """
        urls, item_vectors = self.items[0], self.items[1][:, columns]
        num_items, vectors = min(num_items, len(urls)), np.ascontiguousarray(vectors[:, columns])
        at_once = max(1, SCORES_AT_ONCE // max(1, len(urls)))
        for start in range(0, len(vectors), at_once):
            scores = vectors[start : start + at_once] @ item_vectors.T
            for row, left_out in enumerate(seen[start : start + at_once]):
                scores[row, left_out] = -np.inf
            top = np.argpartition(-scores, num_items - 1, axis=1)[:, :num_items]
            for row, places in zip(scores, top, strict=True):
                places = places[np.lexsort((places, -row[places]))]
                places = places[row[places] > -np.inf]
                yield [urls[place].as_py() for place in places.tolist()], row[places].tolist()

    @property
    def urls(self) -> list[str]:
        """The items in their order; none if the release was trained with a tree and has no trail."""
        return self.trail_inputs[0] if "trail" in self.manifest else self.items[0].to_pylist()

    @cached_property
    def trail_inputs(self) -> tuple[list[str], np.ndarray]:
        """The urls and input vectors that trails are summed up from (trail_sums.py). Raises ValueError if there is no trail."""
        if "trail" not in self.manifest:
            raise ValueError(f"release {self.manifest['release']} cannot sum up pages: its vectors have no trail")
        with self.opened(self.manifest["trail"]["file"]) as path:
            table = pq.read_table(path)
        return table["url"].to_pylist(), decode_vectors(table)


class UserFile:
    """One Parquet file of user vectors: its footer, and which ids and rows each row group has."""

    def __init__(self, release: ReleaseReader, name: str) -> None:
        self.release, self.name = release, f"user_vectors/{name}"
        num_bytes, digits = (release.files[self.name][value] for value in ("bytes", "piece_sha256"))
        self.digests = [digits[at : at + DIGEST_DIGITS] for at in range(0, len(digits), DIGEST_DIGITS)]
        with release.opened(self.name, is_whole=False) as path, open(path, "rb") as file:
            file.seek(max(0, num_bytes - 8))
            footer_bytes = int.from_bytes(file.read(4), "little") + 8
        self.bounds = [max(0, num_bytes - footer_bytes), num_bytes]  # where each piece begins, and the last ends
        self.metadata = pq.read_metadata(self.load([-1]))
        groups = [self.metadata.row_group(group) for group in range(self.metadata.num_row_groups)]
        self.bounds = [*(group.column(0).data_page_offset for group in groups), *self.bounds]
        self.starts = list(accumulate((group.num_rows for group in groups), initial=0))
        self.least = [self.read_least(group) for group in range(len(groups))]

    def load(self, pieces: list[int]) -> pa.BufferReader:
        """Return the file with only these row groups filled in (-1: the footer). They are compared with their digests."""
        content: Any = np.zeros(self.bounds[-1], np.uint8)  # takes memory only where it is filled
        with self.release.opened(self.name, is_whole=False) as path, open(path, "rb", buffering=0) as file:
            for piece in pieces:
                start, end = self.bounds[-2:] if piece < 0 else self.bounds[piece : piece + 2]
                file.seek(start)
                file.readinto(content[start:end])
                found = hashlib.sha256(content[start:end]).hexdigest()[:DIGEST_DIGITS]
                self.release.compare(self.name, found, self.digests[piece])
        return pa.BufferReader(content)

    def read(self, groups: list[int], columns: list[str]) -> dict[int, pa.Table]:
        """Return {row group: table}. The file is closed afterwards: an open file would keep a deleted release on disk.

        No thread of Arrow's is used. One that frees Python's memory while the process ends aborts it.
        """
        with pq.ParquetFile(self.load(groups), metadata=self.metadata, pre_buffer=False) as file:
            return {group: file.read_row_group(group, columns=columns, use_threads=False) for group in groups}

    def read_least(self, group: int) -> bytes:
        """Return the least id of a row group as bytes (Parquet orders strings by their bytes)."""
        statistics = self.metadata.row_group(group).column(0).statistics
        if statistics is not None and statistics.has_min_max:
            return statistics.min.encode()
        # Ids above 4 kB get no statistics. Rows are sorted, so the first id is the least.
        return self.read([group], ["user_id"])[group]["user_id"][0].as_py().encode()


def compared_columns(manifest: dict[str, Any]) -> slice:
    """Return the columns of a vector that rank items and find nearest users by default: all but activity, which comes last."""
    return slice(0, manifest["parts"].get("activity", [manifest["vector_size"]])[0])


def columns_of_part(manifest: dict[str, Any], part: str) -> slice:
    """Return the columns of a part. Raises ValueError, with the names of all, if a release does not have it."""
    parts = manifest["parts"]
    if part not in parts:
        known = " or ".join(map(repr, parts)) or "none, as it was reduced"
        raise ValueError(f"part is {part!r}: this release has {known}")
    return slice(*parts[part])


def list_files(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return {path within the release: entry of the manifest} of all files but the manifest."""
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
    first, second = map(describe_token, (found, own))
    return f"is of {first}, and the manifest of {second}: vectors of two releases do not belong together"


def as_bytes(user_id: str) -> bytes:
    """Return the id as UTF-8. An id with a lone surrogate, which no log has, is unknown and must not raise."""
    return user_id.encode("utf-8", "surrogatepass")


def user_hash(user_id: str) -> int:
    """Return the hash that places a user: the low 64 bits of the id's md5, as DuckDB's md5_number_lower."""
    return int.from_bytes(hashlib.md5(as_bytes(user_id), usedforsecurity=False).digest()[8:], "little")


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Return the rows of float32 (N, D) scaled to length 1; a row of zeros stays zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def find_nearest(units: np.ndarray, num_found: int, batches: Iterator[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the greatest cosines of unit rows float32[n, D] with the rows of all batches, float32[n, k], and whose they are."""
    scores, rows, first = np.zeros((len(units), 0), np.float32), np.zeros((len(units), 0), np.int64), 0
    for vectors in batches:
        numbers = np.broadcast_to(np.arange(first, first + len(vectors)), (len(units), len(vectors)))
        every, all_rows = np.hstack([scores, units @ unit_rows(vectors).T]), np.hstack([rows, numbers])
        best = np.argsort(-every, axis=1, kind="stable")[:, :num_found]
        scores, rows = np.take_along_axis(every, best, axis=1), np.take_along_axis(all_rows, best, axis=1)
        first += len(vectors)
    return scores, rows


def decode_vectors(rows: pa.Table | pa.RecordBatch) -> np.ndarray:
    """Return the vectors of rows as float32 (N, D); `rows` has `vector`, and `scale` if vectors are stored as int8."""
    column = rows.column("vector")
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    numbers = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), lists.type.list_size)
    vectors = numbers.astype(np.float32, copy=False)
    return vectors * rows.column("scale").to_numpy()[:, None] if "scale" in rows.schema.names else vectors
