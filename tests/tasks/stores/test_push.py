"""A push writes what differs, the store then has the release, and every store does it alike."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psycopg2
import pytest

from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.stores.places import Store, open_store
from surf2vec.tasks.stores.push import compare, make_rows, open_pushed, roll_back
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.events import ignore_event
from tests.roots.ingest import take_in, write_log
from tests.roots.pushes import ITEMS, SECOND, USERS, as_lists, push_to, read_served, write_release
from tests.roots.release_series import bytes_of
from tests.roots.releases import STORAGES, make_release, write_run_record


def test_what_is_new_changed_and_gone() -> None:
    held = pl.DataFrame({"url": ["a", "b", "c"], "digest": [1, 2, 3]})
    found = compare(held, pl.DataFrame({"url": ["d", "c", "a"], "digest": [4, 9, 1]}), "url")
    assert {name: keys.to_list() for name, keys in found.items()} == {"new": ["d"], "changed": ["c"], "gone": ["b"]}


def test_releases_follow_each_other_by_difference(url: str, tmp_path: Path) -> None:
    first = push_to(url, write_release(tmp_path / "r1", "r1"))
    assert (first["since"], first["new"], first["changed"], first["gone"]) == (None, 121, 0, 0)
    assert first["checked"] == 100 + 30
    assert read_served(url) == as_lists(USERS)
    second = push_to(url, write_release(tmp_path / "r2", "r2", SECOND, number=2))
    assert (second["since"], second["new"], second["changed"], second["gone"]) == ("r1", 1, 1, 1)
    assert (second["new_items"], second["changed_items"], second["gone_items"]) == (0, 0, 0)
    assert read_served(url) == as_lists(SECOND)
    third = push_to(url, write_release(tmp_path / "r3", "r3", USERS, {"/only": [1.0, 1.0, 1.0]}, number=3))
    assert (third["release"], third["version"], third["new"], third["gone"]) == ("r3", 3, 1, 1)
    assert read_served(url) == as_lists(USERS)
    assert read_served(url, "items") == {"/only": [1.0, 1.0, 1.0]}


def test_the_same_push_twice_changes_nothing(url: str, tmp_path: Path) -> None:
    release = write_release(tmp_path / "r1", "r1")
    push_to(url, release)
    again = push_to(url, release)
    assert again["message"] == "release r1 serves there already: nothing to do"
    assert (again["changed_store"], again["new"], again["changed"], again["gone"]) == (False, 0, 0, 0)
    assert again["checked"] == 130


def test_a_rollback_swaps_back_once(url: str, tmp_path: Path) -> None:
    push_to(url, write_release(tmp_path / "r1", "r1"))
    with open_store(url) as store, pytest.raises(InputError, match="no release before r1: only one was pushed"):
        roll_back(store)
    second = write_release(tmp_path / "r2", "r2", SECOND, number=2)
    push_to(url, second)
    with open_store(url) as store:
        assert roll_back(store)["message"] == "release r1 serves there, rolled back"
        assert roll_back(store)["message"] == "release r1 serves there already, rolled back"
    assert read_served(url) == as_lists(USERS)
    assert push_to(url, second)["changed_store"]
    assert read_served(url) == as_lists(SECOND)


def test_long_pages_and_user_ids_arrive(url: str, tmp_path: Path) -> None:
    """A page of 24,000 bytes is more than an ordinary index row of PostgreSQL holds, if it cannot be compressed."""
    letters = "".join(map(chr, np.random.default_rng(1).integers(33, 127, 24_000)))
    items = ITEMS | {letters: [1.0, 2.0, 3.0], letters[:2705]: [4.0, 5.0, 6.0]}
    users = USERS | {letters[:1024]: [7.0, 8.0, 9.0]}
    for number, more in enumerate(({}, {"/more": [1.0, 1.0, 1.0]}), start=1):
        push_to(url, write_release(tmp_path / f"r{number}", f"r{number}", users, items | more, number=number))
        assert (read_served(url), read_served(url, "items")) == (as_lists(users), as_lists(items | more))


def test_vectors_of_another_size_take_the_place(url: str, tmp_path: Path) -> None:
    for number, size in enumerate((3, 2, 3), start=1):
        users, items = ({name: vector[:size] for name, vector in rows.items()} for rows in (USERS, ITEMS))
        push_to(url, write_release(tmp_path / f"r{number}", f"r{number}", users, items, number=number))
        assert read_served(url) == as_lists(users)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_smaller_numbers_arrive_as_float32(dtype: str, tmp_path: Path) -> None:
    url = f"parquet://{tmp_path / 'store'}"
    push_to(url, write_release(tmp_path / "r1", "r1", dtype=dtype))
    assert read_served(url)["user-002"] == pytest.approx([2.0, 1.0, 0.25], abs=0.01)


def test_a_row_that_was_altered_in_the_store_is_found_and_mended(url: str, tmp_path: Path) -> None:
    release = write_release(tmp_path / "r1", "r1")
    push_to(url, release)
    with open_store(url) as store:
        serving = store.read_sides()[0]
        digests = store.read_digests(serving.name, "items")
        digest = digests.row(by_predicate=pl.col("url") == "/page/3")[1]
        altered = make_rows("items", pl.Series(["/page/3"]).to_arrow(), np.full((1, 3), 7, np.float32))
        altered = altered.set_column(2, "digest", pl.Series([digest]).to_arrow())
        store.change(serving.name, "items", ["/page/3"], [altered], 0.0)
    with pytest.raises(DamageError, match="1 of 30 rows that differ from release r1.*--whole"):
        push_to(url, release)
    push_to(url, release, whole=True)
    assert read_served(url, "items") == as_lists(ITEMS)


def test_a_row_too_few_is_found_before_the_switch(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push_to(url, write_release(tmp_path / "r1", "r1"))
    with open_store(url) as store:
        change = type(store).change

    def lose_a_row(self: Store, name: str, kind: str, *arguments: Any) -> None:
        change(self, name, kind, *arguments)
        if kind == "users":
            change(self, name, kind, ["user-003"], [], 0.0)

    monkeypatch.setattr(type(store), "change", lose_a_row)
    with pytest.raises(DamageError, match="has 1 rows that differ from release r2: nothing was switched"):
        push_to(url, write_release(tmp_path / "r2", "r2", SECOND, number=2))
    assert read_served(url) == as_lists(USERS)


def test_parquet_has_release_version_and_window_in_columns(tmp_path: Path) -> None:
    push_to(f"parquet://{tmp_path / 'store'}", write_release(tmp_path / "r1", "r1", number=7))
    assert os.readlink(tmp_path / "store" / "current") == "a"
    rows = pl.read_parquet(tmp_path / "store" / "current" / "user_vectors" / "*.parquet")
    assert rows.columns == ["user_id", "vector", "digest", "release", "version", "window_end"]
    assert rows.select("release", "version", "window_end").unique().rows() == [("r1", 7, "2026-11-07")]


def test_a_side_is_written_anew_when_most_users_moved(url: str, tmp_path: Path) -> None:
    moved = {name: [number + 1 for number in vector] for name, vector in USERS.items()}
    for number, users in enumerate((USERS, SECOND, moved), start=1):
        pushed = push_to(url, write_release(tmp_path / f"r{number}", f"r{number}", users, number=number))
    assert (pushed["new"], pushed["changed"], pushed["gone"]) == (1, 120, 1)
    assert read_served(url) == as_lists(moved)


@pytest.mark.slow
@pytest.mark.parametrize(("option", "num_indexed"), [("", 4), ("&index=none", 0)])
def test_postgresql_has_an_index_unless_it_is_left_out(
    option: str, num_indexed: int, postgres: str, tmp_path: Path
) -> None:
    prefix = f"indexed{num_indexed}_"
    for number, users in enumerate((USERS, SECOND), start=1):
        release = write_release(tmp_path / f"r{number}", f"r{number}", users, number=number)
        push_to(f"{postgres}{option}&prefix={prefix}", release)
    connection = psycopg2.connect(postgres)
    with connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from pg_indexes where indexname ~ %s", (f"^{prefix}.*_hnsw$",))
        assert cursor.fetchone() == (num_indexed,)
    connection.close()


def test_a_release_from_the_registry_is_gathered_in_the_root_and_not_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's folder for temporary files may be small, and nobody removes what a killed push left there."""
    root = Root(tmp_path / "root")
    take_in(root.path, write_log(tmp_path / "log.csv", "user-1,https://a.org/1,2026-01-01T00:00:00Z"))
    export = make_release(root, "r1")
    publish_release(root, STORAGES["copy"], write_run_record("r1"), export)
    before = bytes_of(export)
    shutil.rmtree(export)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with open_pushed(root, "models:/surf2vec-users@champion", root.tracking_uri, ignore_event) as pushed:
        assert bytes_of(pushed.release.folder) == before
        assert pushed.release.folder.is_relative_to(root.temporary)
    assert list(root.temporary.iterdir()) == []
