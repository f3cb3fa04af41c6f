"""A push that was killed leaves readers what they had, and the same push again completes it. Foreign tables stay."""

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from surf2vec.tasks.stores.places import open_store
from surf2vec.tasks.stores.push import roll_back
from surf2vec.tasks.users.tombstones import Tombstones
from surf2vec.trainer.errors import InputError
from tests.roots.pushes import SECOND, USERS, as_lists, push_to, read_served, write_release


def kill_push(url: str, folder: Path, point: str) -> None:
    """A push of r2 in another process, killed at a point."""
    done = subprocess.run([sys.executable, "-m", "tests.faults.push_kill", url, str(folder), point], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    ["swap", *(pytest.param(point, marks=pytest.mark.long) for point in ("writing side", "progress", "items:"))],
)
def test_a_killed_push_is_completed_by_the_same_again(url: str, point: str, tmp_path: Path) -> None:
    push_to(url, write_release(tmp_path / "r1", "r1"))
    kill_push(url, tmp_path / "killed", point)
    assert read_served(url) == as_lists(USERS)
    if point != "writing side":  # at which nothing was begun
        with open_store(url) as store, pytest.raises(InputError, match="run the same push to finish it"):
            roll_back(store)
    again = push_to(url, write_release(tmp_path / "r2", "r2", SECOND, number=2))
    assert (again["since"], again["new"], again["changed"], again["gone"]) == ("r1", 1, 1, 1)
    assert read_served(url) == as_lists(SECOND)
    with open_store(url) as store:
        assert roll_back(store)["release"] == "r1"


def test_a_first_push_that_was_killed_is_completed(tmp_path: Path) -> None:
    url = f"parquet://{tmp_path / 'store'}"
    kill_push(url, tmp_path / "killed", "progress")
    assert not (tmp_path / "store" / "current").exists()
    push_to(url, write_release(tmp_path / "r2", "r2", SECOND, number=2))
    assert read_served(url) == as_lists(SECOND)


def test_a_side_that_was_cut_off_before_its_record_was_there_is_begun_anew(tmp_path: Path) -> None:
    """What a kill, or a power loss, leaves between the folder of a side and its record."""
    url, store = f"parquet://{tmp_path / 'store'}", tmp_path / "store"
    push_to(url, write_release(tmp_path / "r1", "r1"))
    (record,) = (store / "a").glob("*.json")
    (store / "b").mkdir()
    (store / "b" / f".{record.name}.0a1b2c3d.4711.tmp").write_text("{")
    push_to(url, write_release(tmp_path / "r2", "r2", SECOND, number=2))
    assert read_served(url) == as_lists(SECOND)
    assert list(store.rglob("*.tmp")) == []


def test_forgotten_users_leave_the_release_before_too(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_to(url, write_release(tmp_path / "r1", "r1"))
    monkeypatch.setattr(Tombstones, "day_of", lambda self, user_id: "today" if user_id == "user-007" else None)
    pushed = push_to(
        url, write_release(tmp_path / "r2", "r2", SECOND, number=2), forgotten=Tombstones(days={b"": None})
    )  # type: ignore[dict-item]
    assert pushed["users_forgotten"] == 1
    with open_store(url) as store:
        assert {side.name: store.count(side.name, "users") for side in store.read_sides()} == {"a": 120, "b": 121}
        assert "user-007" not in store.read_digests("a", "users")["user_id"]


def take_names(url: str, folder: Path) -> Callable[[], Any]:
    """Make what surf2vec did not make, under a name that a push would take; return a function that reads it."""
    import lancedb
    import psycopg2
    from qdrant_client import QdrantClient, models

    scheme = url.partition(":")[0]
    if scheme == "parquet":
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "mine.txt").write_text("mine")
        return lambda: [(path.name, path.read_text()) for path in (folder / "a").iterdir()]
    if scheme == "lancedb":
        lancedb.connect(folder).create_table("item_vectors_a", pa.table({"mine": [1]}))
        return lambda: lancedb.connect(folder).open_table("item_vectors_a").to_arrow().to_pylist()
    if scheme == "qdrant":
        host, key = url.removeprefix("qdrant://"), os.environ.get("QDRANT_API_KEY")

        def connect() -> QdrantClient:
            if host.startswith("/"):
                return QdrantClient(path=str(folder))
            with warnings.catch_warnings(action="ignore"):  # the key is not encrypted
                return QdrantClient(f"http://{host}", api_key=key, check_compatibility=False)

        client = connect()
        client.create_collection("user_vectors", models.VectorParams(size=2, distance=models.Distance.DOT))
        client.upsert("user_vectors", [models.PointStruct(id=1, vector=[1.0, 2.0])])
        client.close()

        def read() -> int:
            reader = connect()
            number = reader.count("user_vectors").count
            reader.close()
            return number

        return read
    dsn, _, prefix = url.partition("&prefix=")

    def execute(query: str) -> Any:
        connection = psycopg2.connect(dsn)
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            rows = cursor.fetchall()
        connection.close()
        return rows

    execute(f"create table {prefix}user_vectors as select 1 as mine; select 1")
    return lambda: execute(f"select * from {prefix}user_vectors")


def test_what_others_made_is_refused_and_stays(url: str, tmp_path: Path) -> None:
    read = take_names(url, tmp_path / "store")
    before = read()
    with pytest.raises(InputError, match="no push made.*nothing was changed.*prefix="):
        push_to(url, write_release(tmp_path / "r1", "r1"))
    assert read() == before
    beside = f"{url}beside_" if url.startswith("postgresql") else f"{url}?prefix=beside_"
    push_to(beside, write_release(tmp_path / "r2", "r2"))
    assert read_served(beside) == as_lists(USERS)
    assert read() == before
