"""Replaces strings by numbers: work is done once per distinct string, not once per event, and numbers sort fast.

Also the order of users in events files.
"""

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.sql.runner import stream_rows


def number_strings(strings: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.int32], pa.Array]:
    """Return the number of each of n strings, int32[n], and the distinct strings by number; null counts as a string.

    Numbers follow the order of first appearance. The distinct strings are `large_string`: they may exceed 2 GiB in total.
    """
    chunked = strings if isinstance(strings, pa.ChunkedArray) else pa.chunked_array([strings])
    encoded = chunked.cast(pa.large_string()).dictionary_encode(null_encoding="encode")
    if not encoded.num_chunks:
        return np.empty(0, dtype=np.int32), pa.array([], pa.large_string())
    return np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks]), encoded.chunk(0).dictionary


def place_users(con: duckdb.DuckDBPyConnection, user_ids: pa.Array, partitions: int) -> pa.Table:
    """Return (user_code, user_id, user_hash, micro_partition) in the order of events files. user_code: index in `user_ids`."""
    con.register("int_user_ids", pa.table({"user_code": np.arange(len(user_ids), dtype=np.int32), "user_id": user_ids}))
    placed = stream_rows(con, "intermediate/int_placed_users", {"partitions": partitions}).read_all().combine_chunks()
    con.unregister("int_user_ids")
    return placed
