"""Pushes to PostgreSQL with pgvector, by psycopg2. The switch is one transaction that replaces two views.

user_vectors, item_vectors       views: user_id or url, vector
user_vectors_a, ..._b            the sides: also a digest, and an index (HNSW: users by cosine, items by inner product);
                                 user_id is the primary key, url has a hash index, as B-trees refuse long values
surf2vec_push                    a row for each side: release, version, space_id, window_end, serves, ...
"""

from collections.abc import Iterable
from dataclasses import asdict
from io import BytesIO
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import polars as pl
import psycopg2
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.tasks.release.release_reader import KEYS, decode_vectors
from surf2vec.tasks.stores.places import Place, Side, Store, empty_digests

OPERATORS = {"users": "vector_cosine_ops", "items": "vector_ip_ops"}
MAX_INDEXED_SIZE = 2000  # of pgvector's HNSW
REBUILT_SHARE = 0.1  # if more of the rows change, rebuilding the index is faster
FETCH_ROWS = 50_000
ERRORS = (psycopg2.Error,)
NAMES = "select relname from pg_class where relnamespace = current_schema()::regnamespace"
TYPES = {str: "text", int: "bigint", bool: "boolean"}


class PostgresStore(Store):
    """A database. Each method is one transaction."""

    def __init__(self, place: Place) -> None:
        self.place = place
        options = {name: value for name, value in place.options.items() if name != "index"}
        dsn = urlsplit(place.url)._replace(query=urlencode(options, quote_via=quote)).geturl()
        self.client = psycopg2.connect(dsn, connect_timeout=10, application_name="surf2vec push")
        # A killed push must not hold its lock, nor a push the readers who wait behind its switch.
        settings = "set client_connection_check_interval = '1s'; set lock_timeout = '20s'"
        self._fetch(f"{settings}; select pg_advisory_lock(hashtext(%s))", (place.log_table,))

    def read_log(self) -> list[dict[str, Any]]:
        return [row for (row,) in self._fetch(f"select to_jsonb(log) from {self.place.log_table} log order by name")]

    def list_names(self) -> set[str]:
        return {name for (name,) in self._fetch(NAMES)}

    def record(self, side: Side) -> None:
        with self.client, self.client.cursor() as cursor:
            columns = ", ".join(f"{name} {TYPES[type(value)]}" for name, value in asdict(side).items())
            cursor.execute(f"create table if not exists {self.place.log_table} ({columns}, primary key (name))")
            self._record(cursor, side)

    def make_table(self, kind: str, side: Side, since: Side | None) -> None:
        table, size = self.place.table(kind, side.name), side.vector_size
        constraint = "primary key" if kind == "users" else "not null"
        columns = f'{KEYS[kind]} text collate "C" {constraint}, vector vector({size}) not null, digest bigint not null'
        with self.client, self.client.cursor() as cursor:
            cursor.execute("create extension if not exists vector")
            cursor.execute(f"drop table if exists {table}; create table {table} ({columns})")
            if since and since.vector_size == size:
                cursor.execute(f"insert into {table} select * from {self.place.table(kind, since.name)}")

    def read_digests(self, name: str, kind: str) -> pl.DataFrame:
        frames = [empty_digests(kind)]
        with self.client, self.client.cursor("digests") as cursor:  # named: it fetches in parts
            cursor.execute(f"select {KEYS[kind]}, digest from {self.place.table(kind, name)}")
            while rows := cursor.fetchmany(FETCH_ROWS):
                frames.append(pl.DataFrame(rows, frames[0].schema, orient="row"))
        return pl.concat(frames)

    def change(self, name: str, kind: str, removed: list[str], rows: Iterable[pa.Table], share: float) -> None:
        table, key = self.place.table(kind, name), KEYS[kind]
        with self.client, self.client.cursor() as cursor:
            if share > REBUILT_SHARE:
                cursor.execute(f"drop index if exists {table}_hnsw")
            if kind == "items":
                cursor.execute(f"create index if not exists {table}_{key} on {table} using hash ({key})")
            cursor.execute(f"delete from {table} using unnest(%s::text[]) as old (id) where {key} = old.id", (removed,))
            for part in rows:
                cursor.copy_expert(f"copy {table} from stdin (format binary)", BytesIO(encode_rows(part)))
            cursor.execute(
                "select atttypmod from pg_attribute where attrelid = %s::regclass and attname = 'vector'", (table,)
            )
            if cursor.fetchone()[0] <= MAX_INDEXED_SIZE and self.place.options.get("index") != "none":
                index = f"{table}_hnsw on {table} using hnsw (vector {OPERATORS[kind]})"
                cursor.execute(f"create index if not exists {index}")
            cursor.execute(f"analyze {table}")

    def read_vectors(self, name: str, kind: str, keys: list[str]) -> dict[str, NDArray[np.float32]]:
        query = f"select {KEYS[kind]}, vector::real[] from {self.place.table(kind, name)} where {KEYS[kind]} = any(%s)"
        return {key: np.array(vector, np.float32) for key, vector in self._fetch(query, (keys,))}

    def swap(self, side: Side) -> None:
        with self.client, self.client.cursor() as cursor:
            for kind, key in KEYS.items():
                # The cast drops the size, so that a release with another one can take the view's place.
                query = f"select {key}, vector::vector as vector from {self.place.table(kind, side.name)}"
                cursor.execute(f"create or replace view {self.place.table(kind)} as {query}")
            cursor.execute(f"update {self.place.log_table} set serves = false")
            self._record(cursor, side)

    def _record(self, cursor: Any, side: Side) -> None:
        values = asdict(side)
        cursor.execute(f"delete from {self.place.log_table} where name = %(name)s", values)
        names, marks = ", ".join(values), ", ".join(f"%({name})s" for name in values)
        cursor.execute(f"insert into {self.place.log_table} ({names}) values ({marks})", values)

    def _fetch(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self.client, self.client.cursor() as cursor:
            cursor.execute(query, values)
            return cursor.fetchall()


def encode_rows(rows: pa.Table) -> bytes:
    """Return rows (key, vector, digest) in the binary format of PostgreSQL's COPY."""
    keys, vectors = rows.column(0).to_pylist(), decode_vectors(rows)
    size = vectors.shape[1]
    fields = [("bytes", ">i4"), ("size", ">i2"), ("unused", ">i2"), ("vector", ">f4", size)]
    fixed = np.zeros(len(keys), np.dtype([*fields, ("digest_bytes", ">i4"), ("digest", ">i8")]))
    fixed["bytes"], fixed["size"], fixed["vector"] = 4 + 4 * size, size, vectors
    fixed["digest_bytes"], fixed["digest"] = 8, rows["digest"].to_numpy()
    parts = [b"PGCOPY\n\xff\r\n\0", bytes(8)]
    for key, row in zip(map(str.encode, keys), fixed, strict=True):
        parts += [b"\0\3", len(key).to_bytes(4), key, row.tobytes()]
    return b"".join([*parts, b"\xff\xff"])
