"""What a person looks at first: the nearest users and next pages of a user.

Reads an export's folder directly, without MLflow; brute force over the items, the index over the users. Each file that is
read has its sha256 compared with the manifest's first.
"""

from itertools import accumulate
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.export.export import EXPORT_MANIFEST, path_of, unit_rows
from tasks.export.vector_files import decode_vectors
from tasks.root.run import Root
from tasks.users.placement import user_hash
from trainer.errors import InputError
from trainer.store.tokens import open_corpus
from trainer.system.files import read_json

NUM_SEEN = 10


def similar_users(root: Root, export_dir: Path, user_id: str, k: int) -> dict[str, Any]:
    """`{"user_id", "neighbours": [{"user_id", "score"}], "items": [{"url", "score"}], "seen": [url, ...]}`.

    neighbours: the k nearest by cosine; items: the k that rank first by dot product and that the user has not seen;
    seen: the newest pages of the user, newest first. Where the export's corpus is gone, nothing counts as seen. A release
    trained with a tree has no item vectors: items and seen are then empty.
    Raises InputError for a user without a vector.
    """
    if k < 1:
        raise InputError(f"k is {k}: ask for at least 1")
    manifest = _read_manifest(export_dir)
    name = f"part-{user_hash(user_id) % manifest['partitions']:05d}.parquet"
    if name not in manifest["user_files"]:
        raise _unknown_user(manifest)
    part = pq.read_table(path_of(export_dir, manifest, f"user_vectors/{name}"))
    row = pc.index(part["user_id"], user_id).as_py()
    if row < 0:
        raise _unknown_user(manifest)
    vector = decode_vectors(part)[row]
    urls, item_vectors = _read_items(export_dir, manifest)
    tokens = _read_tokens(root.corpus(manifest["created_from"]["window_id"]), user_id) if urls else []
    item_scores = item_vectors @ vector
    item_scores[tokens] = -np.inf
    best = _top(item_scores, min(k, len(urls) - len(set(tokens))))
    return {
        "user_id": user_id,
        "neighbours": _neighbours(export_dir, manifest, vector, user_id, k),
        "items": [{"url": urls[i], "score": float(item_scores[i])} for i in best],
        "seen": [urls[i] for i in dict.fromkeys(reversed(tokens))][:NUM_SEEN],
    }


def _neighbours(
    export_dir: Path, manifest: dict[str, Any], vector: np.ndarray, user_id: str, k: int
) -> list[dict[str, Any]]:
    """The k users nearest to float32 (D,) `vector`, without the user that it belongs to; of a quantised index fewer, at times."""
    path = path_of(export_dir, manifest, manifest["index"]["file"])
    index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    if "nprobe" in manifest["index"]:
        index.nprobe = manifest["index"]["nprobe"]
    scores, rows = index.search(unit_rows(vector[None]), min(k + 1, index.ntotal))
    names = list(manifest["user_files"])
    ends = list(accumulate(about["rows"] for about in manifest["user_files"].values()))
    found = []
    for score, row in zip(scores[0], rows[0], strict=True):
        if row < 0:  # fewer than k rows in the lists that a quantised index looks into
            break
        part = int(np.searchsorted(ends, row, side="right"))
        ids = pq.read_table(path_of(export_dir, manifest, f"user_vectors/{names[part]}"), columns=["user_id"])[
            "user_id"
        ]
        found.append({"user_id": ids[int(row) - ends[part]].as_py(), "score": min(float(score), 1.0)})
    return [one for one in found if one["user_id"] != user_id][:k]


def _read_items(export_dir: Path, manifest: dict[str, Any]) -> tuple[list[str], np.ndarray]:
    """The items' urls and float32 (V, D) vectors, by item_ix; none in a release that was trained with a tree."""
    if not manifest["item_files"]:
        return [], np.zeros((0, manifest["vector_size"]), dtype=np.float32)
    tables = [pq.read_table(path_of(export_dir, manifest, f"item_vectors/{name}")) for name in manifest["item_files"]]
    table = pa.concat_tables(tables)
    return table["url"].to_pylist(), decode_vectors(table)


def _read_tokens(corpus_dir: Path, user_id: str) -> list[int]:
    """The tokens of a user in time order; none when the corpus is gone."""
    if not (corpus_dir / EXPORT_MANIFEST).exists():
        return []
    corpus = open_corpus(corpus_dir)
    partition = user_hash(user_id) % corpus.num_partitions
    row = pc.index(corpus.read_ids(partition), user_id).as_py()
    if row < 0:
        return []
    histories = corpus.read(partition)
    return histories.tokens[histories.offsets[row] : histories.offsets[row + 1]].tolist()


def _top(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k greatest scores, greatest first; of equals the first."""
    return np.argsort(-scores, kind="stable")[: max(k, 0)]


def _read_manifest(export_dir: Path) -> dict[str, Any]:
    """The export's manifest. Raises InputError when there is no export."""
    if not (export_dir / EXPORT_MANIFEST).exists():
        raise InputError(f"there is no export in {export_dir}: run `surf2vec run` first")
    return read_json(export_dir / EXPORT_MANIFEST)


def _unknown_user(manifest: dict[str, Any]) -> InputError:
    return InputError(
        f"this user is not among the {manifest['num_users']:,} users of release {manifest['release']}: "
        "the id is mistyped, or the user has fewer than ingest.min_user_events events in the window"
    )
