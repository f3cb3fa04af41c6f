"""What a group of micro-partitions hands to the vocabulary."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.clean_pass import COUNTS_ROWS, GroupCounts
from tasks.corpus.cleaning import UserEvents


def test_counts_can_be_read_without_holding_them_all(tmp_path: Path) -> None:
    num_items = 2 * COUNTS_ROWS + 1
    counts = GroupCounts(num_items)
    user, item = np.array([0, 0, 1], dtype=np.int32), np.array([7, 7, 7], dtype=np.int32)
    counts.add(UserEvents(user, np.zeros(3, dtype=np.int32), item))
    path = tmp_path / "counts.parquet"
    counts.write(path, pa.array([f"/{number}" for number in range(num_items)], pa.large_string()))
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(group).num_rows for group in range(3)] == [COUNTS_ROWS, COUNTS_ROWS, 1]
    table = pq.read_table(path)
    assert table.slice(7, 1).to_pylist() == [{"url": "/7", "item_code": 7, "events": 3, "users": 2}]
    assert table["item_code"].to_pylist() == list(range(num_items))
    assert sum(table["events"].to_pylist()) == 3
