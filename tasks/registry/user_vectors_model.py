"""The registered model: vectors, nearest users and next items for user ids. Needs mlflow (with pandas), numpy and pyarrow.

Nearest users are found by faiss. Where it is not installed every user is compared, which takes longer and finds the same.

MLflow copies this file and the modules that it imports from surf2vec, served_export.py and trail_sums.py, into the model, and
runs it at load time. So they import nothing else of surf2vec, and surf2vec does not import this file. `predict` takes a column
`user_id` and returns a row for each user id, in the same order:

    user_id, vector                 the vector as a list of floats; None for a user without one
    neighbours, scores              with params {"k": 10}: nearest users by cosine, nearest first, the user left out
    items, item_scores              with params {"items": 10}: items by dot product, highest first

With a column `pages`, a list of canonical URLs a row, oldest first, a vector's trail is summed up anew from the last of them. A
user who is unknown, or has no id, then has no interest: zeros. So has everybody if the release was reduced: its numbers mix both
parts. Pages that the release does not know are left out. A user without any other keeps last night's vector, or None.

With params {"items": 10, "seen": "leave out"} `items` leaves out those in a column `seen`, a list of canonical URLs a row.
Without it `items` may have pages that the user has seen.

With params {"part": "interest"} or "trail" vectors and items are of that part alone; the manifest names its columns.

The vectors are in the model, or in the export's folder, whose URI is in the model's configuration. If the folder has another path
on this machine, use `mlflow.pyfunc.load_model(..., model_config={"export_uri": "file:///mnt/export/r1"})`.

Loading reads only the manifest and the sizes of the files. A lookup hashes the id to find its part, finds the row group by the
least ids in the part's footer, and reads that group only. The index is memory-mapped. The items, and the input vectors of the
trail, are read at first use.

Bytes are compared with the digests of the manifest before use: row groups and footers of users one by one; the index, the items,
and parts of earlier versions, whose row groups have no digests, as complete files.
"""

import hashlib
import sys
from bisect import bisect_right
from collections import defaultdict
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from mlflow.models import set_model

for name in ("trail_sums", "served_export"):
    sys.modules.pop(name, None)  # the modules of another release that this process has loaded
from served_export import TOKEN, Export, Part, as_bytes, decode_vectors  # noqa: E402
from trail_sums import TrailSums, check_pages, trail_of_release  # noqa: E402 (see above)

MAX_OPEN_PARTS = 512  # a footer of 50,000 users takes about 850 kB of memory
MAX_KEPT_GROUPS = 8192  # row groups whose ids stay in memory, of a million users: about 25 MB
SCORES_AT_ONCE = 1 << 24


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
        self.ids = lru_cache(maxsize=MAX_KEPT_GROUPS)(
            lambda number, group: self.part(number).read([group], ["user_id"])[group]["user_id"]
        )

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        k, num_items = (read_count(params, name) for name in ("k", "items"))
        columns_of_part = read_part(params, self.manifest, k)
        given = read_columns(model_input)
        seen = read_seen(params, given)
        index = next(iter(given.values())).index
        ids = [as_id(value) for value in given["user_id"]] if "user_id" in given else [None] * len(index)
        own_rows, vectors = self.gather_users(ids)
        is_found = own_rows >= 0
        if "pages" in given:
            trail_of_release(self.manifest)
            vectors, is_known = self.trail_sums.renew(vectors, list(given["pages"]))
            is_found |= is_known
        own_rows, vectors = own_rows[is_found], vectors[is_found, columns_of_part]
        columns = {"vector": vectors.tolist()}
        if k:
            columns |= self.find_neighbours(own_rows, vectors, k)
        if num_items:
            columns |= self.find_items(
                vectors, num_items, columns_of_part, [seen[row] for row in np.flatnonzero(is_found)]
            )
        told = {"user_id": given["user_id"].tolist()} if "user_id" in given else {}
        for name, values in columns.items():
            found = iter(values)
            told[name] = [next(found) if one else None for one in is_found]
        told = pd.DataFrame(told, index, dtype=object)
        told.attrs |= {key: self.manifest[key] for key in TOKEN}  # what the vectors are a pair with
        return told

    def gather_users(self, ids: list[str | None]) -> tuple[np.ndarray, np.ndarray]:
        """Return rows in the index int64[n], -1 for who has no vector, and vectors float32[n, D], zeros for them."""
        rows = np.full(len(ids), -1, np.int64)
        vectors = np.zeros((len(ids), self.manifest["vector_size"]), np.float32)
        users = self.find_users(set(ids) - {None})
        for place, user_id in enumerate(ids) if users else ():
            if user_id in users:
                rows[place], vectors[place] = users[user_id]
        return rows, vectors

    @cached_property
    def trail_sums(self) -> TrailSums:
        with self.export.reading_verified(self.manifest["trail"]["file"]) as path:
            table = pq.read_table(path)
        return TrailSums.of_release(self.manifest, table["url"].to_pylist(), decode_vectors(table))

    @cached_property
    def index(self) -> Any:
        try:
            import faiss
        except ModuleNotFoundError:
            return EveryUser(self)
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
        return urls, np.concatenate([decode_vectors(table) for table in tables])

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
                vectors, first = decode_vectors(table), self.first[number] + part.starts[group]
                for user_id in rows.keys() & ids:
                    found[user_id] = (first + rows[user_id], vectors[rows[user_id]].copy())
        return found

    def find_neighbours(self, own_rows: np.ndarray, vectors: np.ndarray, k: int) -> dict[str, list[Any]]:
        """Return of each user the k nearest others, nearest first: {"neighbours": lists of ids, "scores": of cosines}.

        own_rows int64[n]: of the users in the index, -1 for strangers; vectors float32[n, D].
        """
        near: dict[str, list[Any]] = {"neighbours": [], "scores": []}
        if not len(vectors):
            return near
        scores, rows = self.index.search(unit_rows(vectors), min(k + 1, self.index.ntotal))
        names = self.read_ids(set(rows.ravel().tolist()) - {-1})
        for own_row, *found in zip(own_rows.tolist(), rows.tolist(), scores.tolist(), strict=True):
            pairs = zip(*found, strict=True)
            others = [(names[row], min(score, 1.0)) for row, score in pairs if row not in (own_row, -1)][:k]
            near["neighbours"].append([name for name, _ in others])
            near["scores"].append([score for _, score in others])
        return near

    def read_ids(self, rows: set[int]) -> dict[int, str]:
        """Return {row in the index: user_id}; reads only the row groups that contain them, and keeps their ids in memory."""
        wanted: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            number = bisect_right(self.first, row) - 1
            group = bisect_right(self.part(number).starts, row - self.first[number]) - 1
            wanted[number][group].append(row)
        names = {}
        for number, groups in sorted(wanted.items()):
            part = self.part(number)
            self.export.check(part.name)
            for group, found in sorted(groups.items()):
                ids, first = self.ids(number, group), self.first[number] + part.starts[group]
                names |= {row: ids[row - first].as_py() for row in found}
        return names

    @cached_property
    def item_places(self) -> dict[str, int]:
        return {url: place for place, url in enumerate(self.item_table[0].tolist())}

    def find_items(
        self, vectors: np.ndarray, num_items: int, columns: slice, seen: list[list[str]]
    ) -> dict[str, list[Any]]:
        """Return of each user the best items, highest score first: {"items": lists of urls, "item_scores": of scores}.

        vectors float32[n, D]; columns: of the items' vectors, as many as the users' have; seen: items to leave out, of each user.
        """
        urls, item_vectors = self.item_table
        item_vectors = item_vectors[:, columns]
        num_items = min(num_items, len(urls))
        at_once = max(1, SCORES_AT_ONCE // max(1, len(urls)))
        best: dict[str, list[Any]] = {"items": [], "item_scores": []}
        for start in range(0, len(vectors), at_once):
            scores = vectors[start : start + at_once] @ item_vectors.T
            for row, urls_seen in enumerate(seen[start : start + at_once]):
                scores[row, [self.item_places[url] for url in urls_seen if url in self.item_places]] = -np.inf
            top = np.argpartition(-scores, num_items - 1, axis=1)[:, :num_items]
            for row, places in zip(scores, top, strict=True):
                places = places[np.lexsort((places, -row[places]))]
                places = places[row[places] > -np.inf]
                best["items"].append(urls[places].tolist())
                best["item_scores"].append(row[places].tolist())
        return best


class EveryUser:
    """Finds nearest users without an index: compares all, one part of the release after the other."""

    def __init__(self, model: UserVectors) -> None:
        self.model, self.ntotal = model, model.first[-1]

    def search(self, units: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the cosines float32[n, k], highest first, and rows int64[n, k] of the users nearest to unit vectors [n, D]."""
        best = np.full((len(units), k), -np.inf, np.float32), np.full((len(units), k), -1, np.int64)
        for number, first in enumerate(self.model.first[:-1]):
            part = self.model.part(number)
            for group, table in part.read(list(range(part.metadata.num_row_groups)), ["vector", "scale"]).items():
                vectors = unit_rows(decode_vectors(table))
                rows = np.broadcast_to(first + part.starts[group] + np.arange(len(vectors)), (len(units), len(vectors)))
                found = np.hstack((best[0], units @ vectors.T)), np.hstack((best[1], rows))
                order = np.argsort(-found[0], axis=1, kind="stable")[:, :k]
                best = tuple(np.take_along_axis(one, order, axis=1) for one in found)
        return best


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Return vectors float32[n, D] with the length 1; zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def read_columns(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the columns `user_id`, `pages` and `seen`, those that are there. Raises ValueError without user_id and pages."""
    given = {name: frame[name] for name in ("user_id", "pages", "seen") if name in frame}
    if not given.keys() - {"seen"}:
        raise ValueError("give a column user_id, a column pages with lists of URLs, or both")
    cells = [column.iloc[0] for column in given.values()] if len(frame) == 1 else [None]
    if all(map(is_list, cells)) and ("user_id" in given or (len(cells[0]) and all(map(is_list, cells[0])))):
        # {"inputs": {"user_id": [...], "pages": [[...]]}} over HTTP arrives as one row with a list in each column.
        if len({len(cell) for cell in cells}) > 1:
            raise ValueError("the columns have different lengths: give a list of pages for each user")
        return {name: pd.Series(list(cell), dtype=object) for name, cell in zip(given, cells, strict=True)}
    return {name: column.astype(object) for name, column in given.items()}


def read_seen(params: dict[str, Any] | None, given: dict[str, pd.Series]) -> list[list[str]]:
    """Return the items to leave out, of each row: those of the column `seen`, if params say so. Raises ValueError otherwise."""
    told = (params or {}).get("seen") or ""
    if told not in ("", "leave out"):
        raise ValueError(f"params['seen'] is {told!r}: take 'leave out', with a column `seen`")
    if not told:
        return [[]] * len(next(iter(given.values())))
    if "seen" not in given:
        raise ValueError(
            "params['seen'] is 'leave out', but there is no column `seen`: give one with a list of URLs a row"
        )
    check_pages(list(given["seen"]), "seen")
    return list(given["seen"])


def is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray))


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


def partition_of(user_id: str, partitions: int) -> int:
    """Return the micro-partition of a user: the low 64 bits of the id's md5, modulo `partitions`."""
    digest = hashlib.md5(as_bytes(user_id), usedforsecurity=False).digest()
    return int.from_bytes(digest[8:], "little") % partitions


set_model(UserVectors())
