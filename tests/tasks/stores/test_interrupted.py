"""A push that was killed leaves readers what they had, and the same push again completes it. Foreign tables stay."""

import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from surf2vec.tasks.stores.places import Side, open_store
from surf2vec.tasks.stores.push import roll_back
from surf2vec.tasks.users.pseudonyms import keyed_digest
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


def test_forgotten_users_leave_both_sides_and_older_states(url: str, tmp_path: Path) -> None:
    """user-007 is in both sides; user-008 left by himself before he was forgotten."""
    push_to(url, write_release(tmp_path / "r1", "r1"))
    users = {name: vector for name, vector in USERS.items() if name != "user-008"}
    push_to(url, write_release(tmp_path / "r2", "r2", users, number=2))
    today = datetime.now(UTC).date()
    forgotten = Tombstones(b"key", {keyed_digest(name, b"key"): today for name in ("user-007", "user-008")})
    third = write_release(tmp_path / "r3", "r3", {name: users[name] for name in users if name != "user-007"}, number=3)
    pushed = push_to(url, third, forgotten=forgotten)
    assert pushed["users_forgotten"] == 3
    with open_store(url) as store:
        held = {side.name: store.read_digests(side.name, "users")["user_id"].to_list() for side in store.read_sides()}
    assert {name: len(keys) for name, keys in held.items()} == {"a": 119, "b": 119}
    assert not {"user-007", "user-008"} & {key for keys in held.values() for key in keys}
    if url.startswith("lancedb:"):
        names = ("user-007", "user-008")
        traces = [*map(str.encode, names), *(np.array(USERS[name], np.float32).tobytes() for name in names)]
        files = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
        assert any(b"user-009" in content for content in files.values())
        assert [path for path, content in files.items() if any(trace in content for trace in traces)] == []
    assert push_to(url, third, forgotten=forgotten)["users_forgotten"] == 0
    assert read_served(url) == as_lists({name: users[name] for name in users if name != "user-007"})


def test_what_others_made_is_refused_and_stays(url: str, tmp_path: Path) -> None:
    theirs = Side("a", "theirs", 1, "", "", vector_size=3, manifest_sha256="", pushed_at="", number=1)
    with open_store(url) as store:
        store.make_table("items", theirs, None)
        before = store.list_names()
    with pytest.raises(InputError, match="item_vectors_a.* already, which no push made: nothing was changed.*prefix="):
        push_to(url, write_release(tmp_path / "r1", "r1"))
    beside = f"{url}beside_" if url.startswith("postgresql") else f"{url}?prefix=beside_"
    push_to(beside, write_release(tmp_path / "r2", "r2"))
    assert read_served(beside) == as_lists(USERS)
    with open_store(url) as store:
        assert before <= store.list_names()
        assert store.read_sides() == []
