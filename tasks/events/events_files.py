"""One file under events/: the events of a source on one day, sorted by micro-partition, user, ts and line.

Work is done once per distinct string, not once per event: strings are replaced by numbers, which also sort fast.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.sql.runner import stream_rows

# Small row groups: a corpus of many micro-partitions reads a few of each file at a time.
ROW_GROUP_ROWS = 20_480
BATCH_ROWS = 1 << 18  # read together
EVENTS_SCHEMA = pa.schema(
    [
        ("micro_partition", pa.int32()), ("user_hash", pa.uint64()), ("user_id", pa.string()), ("ts", pa.timestamp("us")),
        ("source", pa.uint64()), ("line", pa.int64()), ("url", pa.string()),
    ]
)  # fmt: skip
# Delta encodings instead of dictionaries: a seventh smaller, and faster to write and to read.
_ENCODINGS = {
    "user_id": "DELTA_LENGTH_BYTE_ARRAY",
    "url": "DELTA_LENGTH_BYTE_ARRAY",
    "ts": "DELTA_BINARY_PACKED",
    "line": "DELTA_BINARY_PACKED",
}


def write_events(path: Path, rows: pa.RecordBatchReader) -> None:
    """Write sorted events to a file; the same events give the same bytes."""
    with pq.ParquetWriter(
        path, EVENTS_SCHEMA, version="2.6", compression="zstd", compression_level=1, store_schema=False,
        use_dictionary=["micro_partition", "user_hash", "source"], column_encoding=_ENCODINGS,
        write_statistics=["micro_partition", "user_id", "ts"],
    ) as writer:  # fmt: skip
        write_row_groups(writer, rows, ROW_GROUP_ROWS)


def filter_events(path: Path, target: Path, column: str, keep: Callable[[pa.Array], Any]) -> None:
    """Write the events of a file for which `keep` is true (bool[n] of values of the column) to another file."""
    with pq.ParquetFile(path, pre_buffer=False) as file:  # else pyarrow keeps all of it
        kept = (rows.cast(EVENTS_SCHEMA).filter(pa.array(keep(rows[column]))) for rows in file.iter_batches(BATCH_ROWS))
        write_events(target, pa.RecordBatchReader.from_batches(EVENTS_SCHEMA, kept))


def write_row_groups(writer: pq.ParquetWriter, rows: pa.RecordBatchReader, group_rows: int) -> None:
    """Write all rows, `group_rows` to a row group; so many and a batch are in memory. Dictionaries are decoded group by group."""
    pending = rows.schema.empty_table()
    for batch in rows:
        pending = pa.concat_tables([pending, pa.Table.from_batches([batch])])
        num_whole = pending.num_rows // group_rows * group_rows
        for start in range(0, num_whole, group_rows):
            writer.write_table(pending.slice(start, group_rows).combine_chunks().cast(writer.schema))
        pending = pending.slice(num_whole)
    if pending.num_rows:
        writer.write_table(pending.combine_chunks().cast(writer.schema))


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
