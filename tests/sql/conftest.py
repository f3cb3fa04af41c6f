"""What the tests of SQL steps share: a connection as the steps have it."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from surf2vec.sql.runner import connect
from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.staging import define_session


@pytest.fixture
def con(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(300_000_000, tmp_path / "spill", 1) as con:
        define_session(con, IngestConfig())
        yield con
