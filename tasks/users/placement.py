"""The order of users in events files and corpora."""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import duckdb


def place_users(con: "duckdb.DuckDBPyConnection", user_ids: pa.Array, partitions: int) -> pa.Table:
    """Return (user_code, user_id, hash, micro_partition) in the order of events files; user_code: the index in `user_ids`."""
    from surf2vec.sql.runner import stream_rows  # DuckDB; `surf2vec similar` does without

    con.register("int_user_ids", pa.table({"user_code": np.arange(len(user_ids), dtype=np.int32), "user_id": user_ids}))
    placed = stream_rows(con, "intermediate/int_placed_users", {"partitions": partitions}).read_all().combine_chunks()
    con.unregister("int_user_ids")
    return placed
