"""What is read of a Parquet file in batches is released: by default pyarrow keeps all of the file until its end."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.ingest import records
from surf2vec.tasks.ingest.columns import ROLES
from surf2vec.tasks.ingest.formats import LogFile

ROOT = Path(__file__).parents[2]
FOLDERS = ("flows", "infra", "sql", "surf2vec", "tasks", "trainer")
READERS = [path for name in FOLDERS for path in (ROOT / name).rglob("*.py") if "iter_batches(" in path.read_text()]


def test_a_nested_log_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PARQUET_ROWS", 500)
    num_groups, rows_per_group, url_bytes = 30, 500, 2000
    path, users = tmp_path / "log.parquet", pa.array([{"id": "u1"}] * rows_per_group)
    schema = pa.schema([("user", users.type), ("url", pa.string())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for group in range(num_groups):
            urls = pa.array([f"/{group}-{row}".ljust(url_bytes, "x") for row in range(rows_per_group)])
            writer.write_table(pa.table([users, urls], schema=schema), rows_per_group)
    columns = dict.fromkeys(ROLES) | {"user": "user.id", "url": "url"}
    before_bytes, most_bytes, num_rows = pa.total_allocated_bytes(), 0, 0
    for rows in records.read_parquet(LogFile(path, "parquet", columns=columns, is_nested=True)):
        most_bytes = max(most_bytes, pa.total_allocated_bytes() - before_bytes)
        num_rows += len(rows)
    assert num_rows == num_groups * rows_per_group
    assert most_bytes < path.stat().st_size / 3


@pytest.mark.parametrize("path", READERS, ids=lambda path: path.stem)
def test_no_reader_of_batches_lets_pyarrow_keep_them(path: Path) -> None:
    text = path.read_text()
    assert text.count("pre_buffer=False") == text.count("pq.ParquetFile(") > 0
