"""Parts of a Delta or Iceberg table read as plain Parquet: one line says what is wrong and how the table is read."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.roots.ingest import take_in


@pytest.mark.parametrize(
    ("signs", "scanned"),
    [
        (["_delta_log/00000000000000000000.json"], "delta_scan('{table}')"),
        (
            ["metadata/v9.metadata.json", "metadata/v10.metadata.json"],
            "iceberg_scan('{table}/metadata/v10.metadata.json')",
        ),
        (["metadata/notes.json"], None),
    ],
)
@pytest.mark.parametrize("is_remote", [False, True])
def test_parts_of_a_table_are_warned_of(tmp_path: Path, signs: list[str], scanned: str | None, is_remote: bool) -> None:
    table = tmp_path / "shop"
    for number in range(2):
        part = table / "data" / f"day={number}" / "part-0.parquet"
        part.parent.mkdir(parents=True)
        columns = {"host": ["a"], "url": [f"/{number}"], "ts": [1_793_610_000 + number]}
        pq.write_table(pa.table(columns), part)
    for sign in signs:
        (table / sign).parent.mkdir(exist_ok=True)
        (table / sign).write_text("{}")
    told: list[dict[str, Any]] = []
    place = f"file://{table}" if is_remote else str(table)
    take_in(
        tmp_path / "root",
        f"{place}/data/*/*.parquet",
        columns={"user": "host"},
        on_event=lambda name, values: told.append(values),
    )
    warnings = [values["message"] for values in told if " table " in values.get("message", "")]
    if scanned is None:
        assert warnings == []
        return
    [warning] = warnings
    kind = scanned.split("_")[0].capitalize()
    assert warning.startswith(f"the {kind} table {place} is read as plain Parquet (2 files): what it deleted ")
    assert warning.endswith(f'select "host" as user_id, "url" as url, "ts" as ts from {scanned.format(table=place)}')
