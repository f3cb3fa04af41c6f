"""Writes a stream of rows into Parquet in row groups of a fixed size: the same rows are the same bytes, whatever the batches."""

import pyarrow as pa
import pyarrow.parquet as pq


def write_row_groups(writer: pq.ParquetWriter, rows: pa.RecordBatchReader, group_rows: int) -> None:
    """Write all `rows`, `group_rows` to a row group; at most that many and a batch are in memory, strings of a dictionary even
    fewer: they are copied out of it a row group at a time.
    """
    pending = rows.schema.empty_table()
    for batch in rows:
        pending = pa.concat_tables([pending, pa.Table.from_batches([batch])])
        num_whole = pending.num_rows // group_rows * group_rows
        for start in range(0, num_whole, group_rows):
            writer.write_table(pending.slice(start, group_rows).combine_chunks().cast(writer.schema))
        pending = pending.slice(num_whole)
    if pending.num_rows:
        writer.write_table(pending.combine_chunks().cast(writer.schema))
