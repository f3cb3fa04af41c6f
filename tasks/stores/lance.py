"""Pushes to LanceDB, embedded. The switch is one commit of the small table surf2vec_push, which a reader reads first.

surf2vec_push                a row for each side: name, serves, release, version, ...
user_vectors_a, ..._b        user_id, vector, digest
item_vectors_a, ..._b        url, vector, digest
"""

import os
from datetime import timedelta
from typing import Any, Literal

os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")  # else each index logs that it shows them
os.environ.setdefault("RUST_LOG", "error")

import lancedb
import numpy as np
import polars as pl
import pyarrow as pa
from lancedb.index import BTree, IvfSq
from numpy.typing import NDArray

from surf2vec.tasks.release.release_reader import KEYS
from surf2vec.tasks.stores.places import Change, Place, Side, as_vectors, empty_digests, lock_folder, parse_side

INDEXED_ROWS = 50_000  # below, LanceDB compares with every row, in milliseconds
REMOVED_ROWS = 5_000  # in one condition
METRICS: dict[str, Literal["cosine", "dot"]] = {"users": "cosine", "items": "dot"}
OLD = timedelta(days=1)  # a reader may keep a table open for so long
ERRORS = (OSError, RuntimeError)


class LanceStore:
    """A folder of tables."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.lock = lock_folder(place)
        self.database = lancedb.connect(place.path)

    def close(self) -> None:
        self.lock.close()

    def read_sides(self) -> list[Side]:
        if self.place.log_table not in self._list_names():
            return []
        rows = self.database.open_table(self.place.log_table).to_arrow().to_pylist()
        return [parse_side(row, self.place) for row in rows]

    def begin(self, side: Side, since: Side | None) -> None:
        sides = self.read_sides()
        kept = self.place.keep_tables(sides, self._list_names(), side, since)
        self._record([*(one for one in sides if one.name != side.name), side])
        for kind in KEYS:
            if (table := self.place.table(kind, side.name)) in kept:
                continue
            vector = pa.list_(pa.float32(), side.vector_size)
            schema = pa.schema([(KEYS[kind], pa.string()), ("vector", vector), ("digest", pa.int64())])
            self.database.create_table(table, schema=schema, mode="overwrite")

    def read_digests(self, name: str, kind: str) -> pl.DataFrame:
        rows = self._open(name, kind).search().select([KEYS[kind], "digest"]).to_arrow()
        return pl.DataFrame(rows, schema=empty_digests(kind).schema)

    def change(self, name: str, kind: str, change: Change) -> None:
        table = self._open(name, kind)
        for start in range(0, len(change.removed), REMOVED_ROWS):
            table.delete(condition(KEYS[kind], change.removed[start : start + REMOVED_ROWS]))
        batches = (batch for rows in change.rows for batch in rows.to_batches())
        table.add(pa.RecordBatchReader.from_batches(table.schema, batches))
        indexed = {column for index in table.list_indices() for column in index.columns}
        if KEYS[kind] not in indexed and len(table):
            table.create_index(KEYS[kind], config=BTree())
        if "vector" not in indexed and len(table) >= INDEXED_ROWS:
            table.create_index("vector", config=IvfSq(distance_type=METRICS[kind]))
        table.optimize(cleanup_older_than=OLD)

    def read_vectors(self, name: str, kind: str, keys: list[str]) -> dict[str, NDArray[np.float32]]:
        if not keys:
            return {}
        query = self._open(name, kind).search().where(condition(KEYS[kind], keys))
        rows = query.select([KEYS[kind], "vector"]).to_arrow()
        return dict(zip(rows[KEYS[kind]].to_pylist(), as_vectors(rows), strict=True)) if len(rows) else {}

    def count(self, name: str, kind: str) -> int:
        return int(self._open(name, kind).count_rows())

    def swap(self, side: Side) -> None:
        others = [one for one in self.read_sides() if one.name != side.name]
        self._record([*(Side(**one.record() | {"serves": False}) for one in others), side])

    def _record(self, sides: list[Side]) -> None:
        rows = pa.Table.from_pylist([side.record() for side in sorted(sides, key=lambda side: side.name)])
        self.database.create_table(self.place.log_table, data=rows, mode="overwrite")

    def _list_names(self) -> set[str]:
        names: set[str] = set()
        token = None
        while page := self.database.list_tables(page_token=token):
            names |= set(page.tables)
            token = page.page_token
            if not token:
                break
        return names

    def _open(self, name: str, kind: str) -> Any:
        return self.database.open_table(self.place.table(kind, name))


def condition(key: str, values: list[str]) -> str:
    """Return SQL that is true for the rows with these keys."""
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"{key} in ({quoted})"
