"""Pushes to LanceDB, embedded. The switch is one commit of the small table surf2vec_push, which a reader reads first.

surf2vec_push                a row for each side: name, serves, release, version, ...
user_vectors_a, ..._b        user_id, vector, digest
item_vectors_a, ..._b        url, vector, digest
"""

import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict, replace
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

from surf2vec.tasks.release.release_reader import KEYS, decode_vectors
from surf2vec.tasks.stores.places import Place, Side, Store, empty_digests

INDEXED_ROWS = 50_000  # below, LanceDB compares with every row, in milliseconds
REMOVED_ROWS = 5_000  # in one condition
METRICS: dict[str, Literal["cosine", "dot"]] = {"users": "cosine", "items": "dot"}
ALL_TABLES = 2**31 - 1
OLD = timedelta(days=1)  # a reader may keep a table open for so long
ERRORS = (OSError, RuntimeError)


class LanceStore(Store):
    """A folder of tables."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.database = lancedb.connect(place.path)

    def read_log(self) -> list[dict[str, Any]]:
        return self.database.open_table(self.place.log_table).to_arrow().to_pylist()

    def record(self, side: Side) -> None:
        others = [one for one in self.read_sides() if one.name != side.name]
        others = [replace(one, serves=False) for one in others] if side.serves else others
        sides = sorted([*others, side], key=lambda one: one.name)
        self.database.create_table(self.place.log_table, list(map(asdict, sides)), mode="overwrite")

    swap = record

    def make_table(self, kind: str, side: Side, since: Side | None) -> None:
        vector = pa.list_(pa.float32(), side.vector_size)
        schema = pa.schema([(KEYS[kind], pa.string()), ("vector", vector), ("digest", pa.int64())])
        self.database.create_table(self.place.table(kind, side.name), schema=schema, mode="overwrite")

    def read_digests(self, name: str, kind: str) -> pl.DataFrame:
        rows = self._open(name, kind).search().select([KEYS[kind], "digest"]).to_arrow()
        return pl.DataFrame(rows, schema=empty_digests(kind).schema)

    def change(self, name: str, kind: str, removed: list[str], rows: Iterable[pa.Table], share: float) -> None:
        table = self._open(name, kind)
        for start in range(0, len(removed), REMOVED_ROWS):
            table.delete(condition(KEYS[kind], removed[start : start + REMOVED_ROWS]))
        batches = (batch for one in rows for batch in one.to_batches())
        table.add(pa.RecordBatchReader.from_batches(table.schema, batches))
        self._tidy(table, kind, OLD)

    def _tidy(self, table: Any, kind: str, age: timedelta) -> None:
        """Make the missing indices of a table, and remove versions of this age."""
        indexed = {column for index in table.list_indices() for column in index.columns}
        if KEYS[kind] not in indexed and len(table):
            table.create_index(KEYS[kind], config=BTree())
        if "vector" not in indexed and len(table) >= INDEXED_ROWS:
            table.create_index("vector", config=IvfSq(distance_type=METRICS[kind]))
        table.optimize(cleanup_older_than=age, delete_unverified=not age)

    def erase(self, name: str, user_ids: list[str]) -> None:
        """Write the whole table anew and remove its versions: files of rows, indices and transactions name removed users."""
        super().erase(name, user_ids)
        before = self._open(name, "users")
        table = self.database.create_table(before.name, before.search().to_batches(), mode="overwrite")
        with warnings.catch_warnings(action="ignore"):  # that readers of the older versions fail
            self._tidy(table, "users", timedelta(0))

    def read_vectors(self, name: str, kind: str, keys: list[str]) -> dict[str, NDArray[np.float32]]:
        if not keys:
            return {}
        query = self._open(name, kind).search().where(condition(KEYS[kind], keys))
        rows = query.select([KEYS[kind], "vector"]).to_arrow()
        return dict(zip(rows[KEYS[kind]].to_pylist(), decode_vectors(rows), strict=True))

    def list_names(self) -> set[str]:
        return set(self.database.list_tables(limit=ALL_TABLES).tables)

    def _open(self, name: str, kind: str) -> Any:
        return self.database.open_table(self.place.table(kind, name))


def condition(key: str, values: list[str]) -> str:
    """Return SQL that is true for the rows with these keys."""
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"{key} in ({quoted})"
