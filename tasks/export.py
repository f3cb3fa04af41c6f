"""From a generation to a release on disk: Parquet files of vectors, an index of neighbours, a manifest.

    export/<release>/user_vectors/part-00012.parquet   one a micro-partition with users, sorted by user_id
                     item_vectors/part-00000.parquet   by item_ix; not there when a tree was trained
                     index/users.faiss                 unit user vectors; row order: partitions in order, rows in order
                     manifest.json                     rows, bytes, checksums; written last

Streamed: one micro-partition is in memory at a time, and the index (two bytes a number). The same vectors give the
same bytes. The price of lookups by row group: 0.7 % more bytes than with large row groups.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.errors import DamageError, ResourceError, TrainingError
from trainer.events import OnEvent, ignore_event
from trainer.files import describe_file, read_json, replace_file, sync_folder, write_json

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
INDEX_FILE = "index/users.faiss"
# A lookup reads one row group a user: 10,000 random users of 20 million then read 6 % of the vectors.
USER_ROW_GROUP_ROWS = 128
ITEM_ROW_GROUP_ROWS = 8192


class Generation(Protocol):
    """What is read of a committed generation (trainer/store.py)."""

    @property
    def generation(self) -> int: ...
    @property
    def num_partitions(self) -> int: ...
    @property
    def num_items(self) -> int: ...
    @property
    def vector_size(self) -> int: ...
    def read_users(self, partition: int, /) -> np.ndarray: ...
    @property
    def has_item_vectors(self) -> bool: ...
    def read_items(self) -> np.ndarray: ...


def export_vectors(
    corpus_dir: Path,
    generation: Generation,
    export_dir: Path,
    release: str,
    run_id: str,
    space_id: str,
    on_event: OnEvent = ignore_event,
) -> dict[str, Any]:
    """Make `export_dir` from the vectors of `generation`; answers the story of the step.

    An export of the same release, generation and window is left as it is; another one is replaced, at once.
    Raises DamageError when corpus and generation do not fit together, TrainingError when a vector is not finite,
    ResourceError when the disk does not suffice.
    """
    corpus = read_json(corpus_dir / MANIFEST)
    identity = {
        "format_version": FORMAT_VERSION,
        "release": release,
        "space_id": space_id,
        "vector_size": generation.vector_size,
        "partitions": corpus["partitions"],
        "num_users": corpus["num_users"],
        "num_items": corpus["num_items"],
        "generation": generation.generation,
        "created_from": {"window_id": corpus["window_id"], "run_id": run_id},
    }
    if (export_dir / MANIFEST).exists():
        manifest = read_json(export_dir / MANIFEST)
        if {key: manifest.get(key) for key in identity} == identity:
            return _tell(export_dir, manifest, index_seconds=0.0)
    _check_fit(corpus, generation, corpus_dir)
    with replace_folder(export_dir) as folder:
        _check_disk(folder, corpus, generation.vector_size)
        user_files, index, index_seconds = _write_users(folder, corpus_dir, corpus, generation, on_event)
        item_files = _write_items(folder, corpus_dir, generation) if generation.has_item_vectors else {}
        manifest = identity | {"user_files": user_files, "item_files": item_files, "index": index}
        write_json(folder / MANIFEST, manifest)
    return _tell(export_dir, manifest, index_seconds)


def list_files(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every file of an export but the manifest: path within the export → `{"bytes", "sha256", ...}`."""
    users = {f"user_vectors/{name}": about for name, about in manifest["user_files"].items()}
    items = {f"item_vectors/{name}": about for name, about in manifest["item_files"].items()}
    return users | items | {manifest["index"]["file"]: manifest["index"]}


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path`; when the block ends well it becomes `path`, in place of what was there.

    What an earlier process that was killed left beside `path` goes first. Raises ResourceError when the folder
    cannot be written to.
    """
    new, old = (path.with_name(f".{path.name}.{kind}.tmp") for kind in ("new", "old"))
    try:
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)
        new.mkdir(parents=True)
        yield new
        sync_folder(new)
        if path.exists():
            path.rename(old)
        new.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(f"cannot write {path}: {reason}; free or widen that disk, then run again") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """The rows of float32 (N, D) at length 1; a row of zeros stays zeros."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, np.finfo(np.float32).tiny)


def start_index(vector_size: int) -> tuple[str, Any]:
    """The kind and the empty index of user vectors, by inner product.

    Every row is compared, in 16-bit floats: half the bytes of float32, five times as fast for one user, cosines
    off by about 1e-4. The place to choose a quantised kind for tables where that is too slow or too large.
    """
    half = faiss.ScalarQuantizer.QT_fp16
    return "flat-fp16", faiss.IndexScalarQuantizer(vector_size, half, faiss.METRIC_INNER_PRODUCT)


def _write_users(
    folder: Path, corpus_dir: Path, corpus: dict[str, Any], generation: Generation, on_event: OnEvent
) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Write the user vectors and their index; answers the manifest's entries of both and the index's seconds."""
    kind, index = start_index(generation.vector_size)
    files: dict[str, Any] = {}
    index_seconds, num_done = 0.0, 0
    for partition, rows in enumerate(corpus["users"]):
        if rows == 0:
            continue
        users = _read_corpus(corpus_dir / f"p{partition:05d}.users.parquet", ["user_id"])
        vectors = generation.read_users(partition)
        what = f"micro-partition {partition}"
        _check_rows(what, vectors, rows, generation.vector_size)
        table = users.append_column("vector", _as_lists(vectors))
        name = f"part-{partition:05d}.parquet"
        _write_table(folder / "user_vectors" / name, table, USER_ROW_GROUP_ROWS)
        files[name] = {"rows": rows} | describe_file(folder / "user_vectors" / name)
        started = time.monotonic()
        index.add(unit_rows(vectors))
        index_seconds += time.monotonic() - started
        num_done += rows
        on_event("progress", {"step": "export", "done": num_done, "total": corpus["num_users"], "unit": "users"})
    started = time.monotonic()
    with replace_file(folder / INDEX_FILE) as temporary:
        _write_index(index, temporary)
    index_seconds += time.monotonic() - started
    about = {"file": INDEX_FILE, "kind": kind} | describe_file(folder / INDEX_FILE)
    return files, about, index_seconds


def _write_items(folder: Path, corpus_dir: Path, generation: Generation) -> dict[str, Any]:
    """Write the item vectors; answers the manifest's entry."""
    vocabulary = _read_corpus(corpus_dir / "vocabulary.parquet", ["url", "count"])
    vectors = generation.read_items()
    _check_rows("the item table", vectors, vocabulary.num_rows, generation.vector_size)
    table = vocabulary.append_column("vector", _as_lists(vectors))
    path = folder / "item_vectors" / "part-00000.parquet"
    _write_table(path, table, ITEM_ROW_GROUP_ROWS)
    return {path.name: {"rows": table.num_rows} | describe_file(path)}


def _write_index(index: Any, path: Path) -> None:
    """Write the index. faiss knows only RuntimeError: here a failed write is an OSError like any other."""
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise OSError(str(error)) from None


def _read_corpus(path: Path, columns: list[str]) -> pa.Table:
    """Columns of a Parquet file of the corpus. Raises DamageError when it is missing or unreadable."""
    try:
        return pq.read_table(path, columns=columns)
    except (OSError, pa.ArrowInvalid) as error:
        raise DamageError(f"{path} cannot be read ({error}): build the corpus again") from None


def _as_lists(vectors: np.ndarray) -> pa.FixedSizeListArray:
    """float32 (N, D) as an Arrow column, without a copy."""
    flat = np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors.shape[1])


def _write_table(path: Path, table: pa.Table, rows: int) -> None:
    """Write Parquet with `rows` rows a group. The names' least and greatest per group serve lookups.

    Vectors are not compressed: their bits are noise, and a plain column is read faster.
    """
    key = table.column_names[0]
    with replace_file(path) as temporary:
        pq.write_table(
            table.replace_schema_metadata(None),
            temporary,
            row_group_size=rows,
            use_dictionary=False,
            write_statistics=[key],
            column_encoding={key: "DELTA_BYTE_ARRAY"},
            compression=dict.fromkeys(table.column_names[:-1], "zstd") | {"vector.list.element": "none"},
        )


def _check_fit(corpus: dict[str, Any], generation: Generation, corpus_dir: Path) -> None:
    """Raise DamageError unless the generation was trained on a corpus of this shape."""
    found = (generation.num_partitions, generation.num_items)
    expected = (corpus["partitions"], corpus["num_items"])
    if found != expected:
        raise DamageError(
            f"generation {generation.generation} has {found[0]:,} micro-partitions and {found[1]:,} items but "
            f"{corpus_dir} has {expected[0]:,} and {expected[1]:,}: it was trained on another corpus; train again"
        )


def _check_rows(what: str, vectors: np.ndarray, rows: int, vector_size: int) -> None:
    """Raise DamageError on another shape than (rows, vector_size), TrainingError on vectors that are not finite."""
    if vectors.shape != (rows, vector_size):
        raise DamageError(
            f"{what} has vectors of shape {vectors.shape} where the corpus needs {(rows, vector_size)}: "
            "the store and the corpus do not belong together; train again"
        )
    num_bad = rows - int(np.isfinite(vectors).all(axis=1).sum())
    if num_bad:
        raise TrainingError(
            f"{what} has {num_bad:,} of {rows:,} vectors that are not finite, so nothing was exported: "
            "lower train.alpha and train again"
        )


def _check_disk(folder: Path, corpus: dict[str, Any], vector_size: int) -> None:
    """Raise ResourceError when the export will not fit; names are reckoned at 40 bytes a user, 80 an item."""
    needed = corpus["num_users"] * (6 * vector_size + 40) + corpus["num_items"] * (4 * vector_size + 80)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(
            f"the export needs about {needed / 1e9:,.2f} GB but the disk of {folder.parent} has {free / 1e9:,.2f} GB "
            "free: remove old releases there, or give a root on a larger disk"
        )


def _tell(export_dir: Path, manifest: dict[str, Any], index_seconds: float) -> dict[str, Any]:
    """The story of the step."""
    return {
        "release": manifest["release"],
        "export_dir": str(export_dir),
        "num_users": manifest["num_users"],
        "num_items": manifest["num_items"],
        "bytes": sum(about["bytes"] for about in list_files(manifest).values()),
        "index_kind": manifest["index"]["kind"],
        "index_seconds": round(index_seconds, 3),
    }
