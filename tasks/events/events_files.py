"""One file under events/: the events of a source on one day, sorted by micro-partition, user, ts and line."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.events.row_groups import write_row_groups

# Small row groups: a corpus of many micro-partitions reads a few of each file at a time.
ROW_GROUP_ROWS = 20_480
EVENTS_SCHEMA = pa.schema(
    [
        ("micro_partition", pa.int32()), ("user_id", pa.string()), ("ts", pa.timestamp("us")), ("source", pa.uint64()),
        ("line", pa.int64()), ("url", pa.string()),
    ]
)  # fmt: skip
# Lengths and differences instead of dictionaries: a seventh smaller, and faster to write and to read.
_ENCODINGS = {
    "user_id": "DELTA_LENGTH_BYTE_ARRAY", "url": "DELTA_LENGTH_BYTE_ARRAY", "ts": "DELTA_BINARY_PACKED",
    "line": "DELTA_BINARY_PACKED",
}  # fmt: skip


def write_events(path: Path, rows: pa.RecordBatchReader) -> None:
    """Write sorted events into a file: the same events are the same bytes."""
    with pq.ParquetWriter(
        path, EVENTS_SCHEMA, version="2.6", compression="zstd", compression_level=1, store_schema=False,
        use_dictionary=["micro_partition", "source"], column_encoding=_ENCODINGS,
        write_statistics=["micro_partition", "user_id", "ts"],
    ) as writer:  # fmt: skip
        write_row_groups(writer, rows, ROW_GROUP_ROWS)
