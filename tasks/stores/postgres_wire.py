"""Rows in the binary format of PostgreSQL's COPY."""

import numpy as np
import pyarrow as pa

from surf2vec.tasks.stores.places import as_vectors


def encode_rows(rows: pa.Table) -> bytes:
    """Return rows (key, vector, digest) in the binary format of COPY."""
    keys, vectors = rows.column(0).to_pylist(), as_vectors(rows)
    size = vectors.shape[1]
    fields = [("bytes", ">i4"), ("size", ">i2"), ("unused", ">i2"), ("vector", ">f4", size)]
    fixed = np.zeros(len(keys), np.dtype([*fields, ("digest_bytes", ">i4"), ("digest", ">i8")]))
    fixed["bytes"], fixed["size"], fixed["vector"] = 4 + 4 * size, size, vectors
    fixed["digest_bytes"], fixed["digest"] = 8, rows["digest"].to_numpy()
    parts = [b"PGCOPY\n\xff\r\n\0", bytes(8)]
    for key, row in zip(map(str.encode, keys), fixed, strict=True):
        parts += [b"\0\3", len(key).to_bytes(4), key, row.tobytes()]
    return b"".join([*parts, b"\xff\xff"])
