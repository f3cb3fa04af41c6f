"""`surf2vec similar`: the nearest users and the next pages of a user.

Reads an export's folder directly, without MLflow. Items are ranked by brute force, users by the index. The sha256 of each file
is compared with the manifest before the file is read.
"""

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST
from surf2vec.tasks.export.export import path_of, read_export
from surf2vec.tasks.export.index import unit_rows
from surf2vec.tasks.export.served_export import decode_vectors
from surf2vec.tasks.export.vector_files import VECTOR_COLUMNS, part_name
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.placement import user_hash
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.store.tokens import Corpus, Histories, open_corpus

NUM_SEEN = 10


def similar_users(root: Root, export_dir: Path, user_id: str, k: int) -> dict[str, Any]:
    """Returns `{"user_id", "neighbours": [{"user_id", "score"}], "items": [{"url", "score"}], "seen": [url, ...]}`.

    neighbours: the k nearest by cosine. items: the k items with the highest dot product that the user has not seen.
    seen: the newest pages of the user, newest first. If the export's corpus was removed, no page counts as seen. A release
    trained with a tree has no item vectors: items and seen are then empty.
    Raises InputError for a user without a vector.
    """
    if k < 1:
        raise InputError(f"k is {k}: ask for at least 1")
    manifest = read_export(export_dir)
    vector = find_vector(export_dir, manifest, user_id)
    if vector is None:
        raise InputError(
            f"this user is not among the {manifest['num_users']:,} users of release {manifest['release']}: "
            "the id is mistyped, or the user has fewer than ingest.min_user_events events in the window"
        )
    urls, item_vectors = _read_items(export_dir, manifest)
    tokens = _read_tokens(root.corpus(manifest["created_from"]["window_id"]), user_id) if urls else []
    item_scores = item_vectors @ vector
    item_scores[tokens] = -np.inf
    best = np.argsort(-item_scores, kind="stable")[: min(k, len(urls) - len(set(tokens)))]
    return {
        "user_id": user_id,
        "neighbours": _neighbours(export_dir, manifest, vector, user_id, k),
        "items": [{"url": urls[i], "score": float(item_scores[i])} for i in best],
        "seen": [urls[i] for i in dict.fromkeys(reversed(tokens))][:NUM_SEEN],
    }


def _neighbours(
    export_dir: Path, manifest: dict[str, Any], vector: np.ndarray, user_id: str, k: int
) -> list[dict[str, Any]]:
    """Returns the k users nearest to float32 (D,) `vector`, without `user_id`; a quantised index sometimes finds fewer."""
    path = path_of(export_dir, manifest, manifest["index"]["file"])
    names = list(manifest["user_files"])
    ends = list(accumulate(about["rows"] for about in manifest["user_files"].values()))
    try:
        index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError:  # faiss has no other error
        index = None
    if index is None or (index.ntotal, index.d) != (ends[-1], len(vector)):
        raise DamageError(
            f"{path} is no index of the {ends[-1]:,} users of release {manifest['release']}: pull it again"
        )
    if "nprobe" in manifest["index"]:
        index.nprobe = manifest["index"]["nprobe"]
    scores, rows = index.search(unit_rows(vector[None]), min(k + 1, index.ntotal))
    found = []
    for score, row in zip(scores[0].tolist(), rows[0].tolist(), strict=True):
        if row < 0:  # the lists searched in a quantised index have fewer than k rows
            break
        part = bisect_right(ends, row)
        ids = pq.read_table(path_of(export_dir, manifest, f"user_vectors/{names[part]}"), columns=["user_id"])
        found.append({"user_id": ids["user_id"][row - ends[part]].as_py(), "score": min(score, 1.0)})
    return [one for one in found if one["user_id"] != user_id][:k]


def _read_items(export_dir: Path, manifest: dict[str, Any]) -> tuple[list[str], np.ndarray]:
    """Returns the items' urls and float32 (V, D) vectors, by item_ix; none if the release was trained with a tree."""
    if not manifest["item_files"]:
        return [], np.zeros((0, manifest["vector_size"]), dtype=np.float32)
    tables = [pq.read_table(path_of(export_dir, manifest, f"item_vectors/{name}")) for name in manifest["item_files"]]
    table = pa.concat_tables(tables)
    return table["url"].to_pylist(), decode_vectors(table)


def _read_tokens(corpus_dir: Path, user_id: str) -> list[int]:
    """Returns the tokens of a user in time order; none if the corpus was removed."""
    found = find_history(open_corpus(corpus_dir), user_id) if (corpus_dir / CORPUS_MANIFEST).exists() else None
    if found is None:
        return []
    _, row, histories = found
    return histories.tokens[histories.offsets[row] : histories.offsets[row + 1]].tolist()


def find_vector(export_dir: Path, manifest: dict[str, Any], user_id: str) -> NDArray[np.float32] | None:
    """Returns the vector of a user, float32[D], or None if the export lacks the user. Only one row group is decoded."""
    name = part_name(user_hash(user_id) % manifest["partitions"])
    if name not in manifest["user_files"]:
        return None
    path = path_of(export_dir, manifest, f"user_vectors/{name}")
    rows = read_rows_of(path, {"user_id": user_id}, [*VECTOR_COLUMNS])
    return decode_vectors(rows)[0] if rows.num_rows else None


def read_rows_of(path: Path, where: dict[str, Any], columns: list[str]) -> pa.Table:
    """Return the rows of a user in a Parquet file in which they are consecutive. where: `user_id`, and what else they all have.

    Reads only row groups that can have them. Arrow's filters do the same, but take a fifth of a second to import.
    """
    with pq.ParquetFile(path) as file:
        groups = []
        for group in range(file.num_row_groups):
            found = [file.metadata.row_group(group).column(file.schema.names.index(name)).statistics for name in where]
            bounds = zip(found, where.values(), strict=True)
            if all(one is None or not one.has_min_max or one.min <= value <= one.max for one, value in bounds):
                groups.append(group)
        names = [name for name in ("user_id", *columns) if name in file.schema_arrow.names]
        table = file.read_row_groups(groups, columns=names)
    rows = [row for row, name in enumerate(table["user_id"].to_pylist()) if name == where["user_id"]]
    return table.slice(rows[0], len(rows)) if rows else table.slice(0, 0)


def find_history(corpus: Corpus, user_id: str) -> tuple[int, int, Histories] | None:
    """Returns a user's micro-partition, the row in it, and the histories of all its users; None if the user has no history."""
    partition = user_hash(user_id) % corpus.num_partitions
    ids = corpus.read_ids(partition).to_pylist()
    return (partition, ids.index(user_id), corpus.read(partition)) if user_id in ids else None
