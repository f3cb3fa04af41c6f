"""The snippets of docs/stores.md run as they are printed, on a store that was pushed to."""

import re
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.roots.pushes import USERS, push_to, write_release

PAGE = (Path(__file__).parents[3] / "docs" / "stores.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SQL = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
WITH_U42 = USERS | {"u42": [1.0, 1.0, -1.0]}
BEST = "/page/29"  # the item vectors are [.5, number, -1]


def run(snippet: str, folder: Path) -> Any:
    """What a snippet finds in the stores of `folder` instead of /data."""
    names: dict[str, Any] = {}
    exec(snippet.replace("/data/", f"{folder}/"), names)
    return names["found"]


def choose(package: str) -> str:
    """The snippet that imports a package."""
    (snippet,) = (text for text in SNIPPETS if f"import {package}" in text or f"from {package}" in text)
    return snippet


def test_there_are_no_other_snippets() -> None:
    assert len(SNIPPETS) == 4
    assert len(SQL) == 1


def test_lancedb_ranks_the_next_items(tmp_path: Path) -> None:
    push_to(f"lancedb://{tmp_path}/lance", write_release(tmp_path / "r1", "r1", WITH_U42))
    assert [row["url"] for row in run(choose("lancedb"), tmp_path)][:2] == [BEST, "/page/28"]


def test_qdrant_ranks_the_next_items(tmp_path: Path) -> None:
    push_to(f"qdrant://{tmp_path}/qdrant", write_release(tmp_path / "r1", "r1", WITH_U42))
    assert [point.payload["url"] for point in run(choose("qdrant_client"), tmp_path)][:2] == [BEST, "/page/28"]


def test_duckdb_and_feast_read_the_files(tmp_path: Path) -> None:
    push_to(f"parquet://{tmp_path}/parquet", write_release(tmp_path / "r1", "r1", WITH_U42))
    assert [url for (url,) in run(choose("duckdb"), tmp_path)][:2] == [BEST, "/page/28"]
    rows = run(choose("polars"), tmp_path)
    assert rows["window_end"].dt.to_string("%Y-%m-%d").unique().to_list() == ["2026-11-01"]
    assert (tmp_path / "feast.parquet").exists()


@pytest.mark.slow
def test_postgresql_answers_and_takes_options_of_libpq(postgres: str, tmp_path: Path) -> None:
    url = f"{postgres}&options=-c maintenance_work_mem=99MB"
    push_to(url, write_release(tmp_path / "r1", "r1", WITH_U42, number=7))
    connection = psycopg2.connect(postgres)
    with connection, connection.cursor() as cursor:
        results = []
        for query in SQL[0].split(";")[:3]:
            cursor.execute(re.sub(r"--.*", "", query))
            results.append(cursor.fetchall())
    connection.close()
    assert results[0][0] == ("u42",)
    assert results[1][:2] == [(BEST,), ("/page/28",)]
    assert results[2] == [("r1", 7, "2026-11-07")]
