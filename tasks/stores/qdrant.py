"""Pushes to Qdrant: a server, or the client's local mode in a folder. The switch moves two aliases in one call.

    user_vectors, item_vectors       aliases of a side's collections
    user_vectors_a, ..._b            the sides: points with the dot product; payload: user_id or url, digest
    surf2vec_push                    a point without a vector for each side: release, version, ...

A point's id is the UUID (version 5, namespace URL) of the user id or url. An API key comes from QDRANT_API_KEY.
"""

import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException

from surf2vec.tasks.release.release_reader import KEYS, decode_vectors
from surf2vec.tasks.stores.places import Place, Side, Store, empty_digests
from surf2vec.trainer.errors import ConfigError

WRITTEN_ROWS, READ_ROWS = 500, 5_000
TIMEOUT_SECONDS = 60
LOOPBACK = ("localhost", "127.0.0.1", "::1")
POINTS = {"a": 1, "b": 2}
ERRORS = (ApiException, RuntimeError)  # the second of the local mode, if another process has the folder


class QdrantStore(Store):
    """A server or a folder."""

    def __init__(self, place: Place) -> None:
        self.place = place
        if place.host:
            key, https = os.environ.get("QDRANT_API_KEY"), place.options.get("https")
            if key and https is None and urlsplit(f"//{place.host}").hostname not in LOOPBACK:
                raise ConfigError(
                    f"QDRANT_API_KEY would travel to {place.host} unencrypted: add the option https=true to the URL, or "
                    "https=false if nobody else can read that network"
                )
            url = f"{'https' if https == 'true' else 'http'}://{place.host}"
            with warnings.catch_warnings(action="ignore"):  # of the key without encryption, which was asked for
                self.client = QdrantClient(url, api_key=key, timeout=TIMEOUT_SECONDS, check_compatibility=False)
            self.client.get_collections()
        else:
            self.client = QdrantClient(path=place.path)

    def read_log(self) -> list[dict[str, Any]]:
        serves = self._aliases().get(self.place.table("users"), "")
        points, _ = self.client.scroll(self.place.log_table, with_payload=True)
        sides = [point.payload or {} for point in points]
        return [side | {"serves": serves == self.place.table("users", side.get("name", ""))} for side in sides]

    def list_names(self) -> set[str]:
        return {one.name for one in self.client.get_collections().collections} | self._aliases().keys()

    def record(self, side: Side) -> None:
        if self.place.log_table not in self.list_names():
            self.client.create_collection(self.place.log_table, vectors_config={})
        point = models.PointStruct(id=POINTS[side.name], vector={}, payload=asdict(side))
        self.client.upsert(self.place.log_table, [point])

    def make_table(self, kind: str, side: Side, since: Side | None) -> None:
        table = self.place.table(kind, side.name)
        self.client.delete_collection(table)
        vectors = models.VectorParams(size=side.vector_size, distance=models.Distance.DOT)
        self.client.create_collection(table, vectors_config=vectors)

    def read_digests(self, name: str, kind: str) -> pl.DataFrame:
        frames, offset = [empty_digests(kind)], None
        while True:
            table = self.place.table(kind, name)
            points, offset = self.client.scroll(table, limit=READ_ROWS, offset=offset, with_payload=True)
            frames.append(pl.DataFrame([point.payload for point in points], frames[0].schema))
            if offset is None:
                return pl.concat(frames)

    def change(self, name: str, kind: str, removed: list[str], rows: Iterable[pa.Table], share: float) -> None:
        table, key = self.place.table(kind, name), KEYS[kind]
        for start in range(0, len(removed), READ_ROWS):
            self.client.delete(table, list(map(point_id, removed[start : start + READ_ROWS])))
        for part in (one.slice(start, WRITTEN_ROWS) for one in rows for start in range(0, len(one), WRITTEN_ROWS)):
            payloads = part.select([key, "digest"]).to_pylist()
            ids = [point_id(payload[key]) for payload in payloads]
            self.client.upsert(table, models.Batch(ids=ids, vectors=decode_vectors(part).tolist(), payloads=payloads))

    def read_vectors(self, name: str, kind: str, keys: list[str]) -> dict[str, NDArray[np.float32]]:
        ids = list(map(point_id, keys))
        points = self.client.retrieve(self.place.table(kind, name), ids, with_vectors=True)
        return {(point.payload or {})[KEYS[kind]]: np.array(point.vector, np.float32) for point in points}

    def swap(self, side: Side) -> None:
        self.record(side)
        present, moves = self._aliases(), list[Any]()
        for kind in KEYS:
            alias = self.place.table(kind)
            if alias in present:
                moves.append(models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias)))
            create = models.CreateAlias(collection_name=self.place.table(kind, side.name), alias_name=alias)
            moves.append(models.CreateAliasOperation(create_alias=create))
        self.client.update_collection_aliases(moves)

    def _aliases(self) -> dict[str, str]:
        return {one.alias_name: one.collection_name for one in self.client.get_aliases().aliases}


def point_id(key: str) -> str:
    return str(uuid5(NAMESPACE_URL, key))
