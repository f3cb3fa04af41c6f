"""Where users are: the hash that places them, and the order in which events files and corpora have them."""

import hashlib

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tasks.events.compiled_strings import BLOCK_BYTES, hash_strings
from tasks.events.numbering import lay_open


def user_hash(user_id: str) -> int:
    """The hash that places a user: the low 64 bits of the id's md5, as DuckDB's md5_number_lower."""
    return int.from_bytes(hashlib.md5(user_id.encode(), usedforsecurity=False).digest()[8:], "little")


def hash_users(user_ids: pa.Array) -> NDArray[np.uint64]:
    """`user_hash` of each, uint64[n]; of null that of an empty id."""
    hashes = np.empty(len(user_ids), dtype=np.uint64)
    block = np.empty(BLOCK_BYTES, dtype=np.uint8)
    hash_strings(*lay_open(user_ids), block, block.view(np.uint32), hashes)
    return hashes


def place_users(
    user_ids: pa.Array, hashes: NDArray[np.uint64], partitions: int
) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """The micro-partition of each of n users, int32[n], and their order, uint32[n]: by micro-partition, then bytewise by id."""
    micro_partition = (hashes % np.uint64(partitions)).astype(np.int32)
    users = pl.DataFrame({"micro_partition": micro_partition, "user_id": pl.Series(user_ids)})
    return micro_partition, users.select(pl.arg_sort_by("micro_partition", "user_id")).to_series().to_numpy()
