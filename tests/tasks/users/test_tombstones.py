"""Tombstones know who was forgotten, and name nobody."""

import hashlib
import stat
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.tombstones import FILE, KEY_FILE, add_tombstones, copy_tombstones, read_tombstones
from surf2vec.trainer.errors import DamageError


def test_nobody_is_forgotten_in_a_new_root(tmp_path: Path) -> None:
    tombstones = read_tombstones(Root(tmp_path))
    assert not tombstones
    assert tombstones.is_forgotten(["ann", None]).tolist() == [False, False]
    assert tombstones.day_of("ann") is None
    assert not any(tmp_path.iterdir())


def test_who_was_forgotten_is_known_and_not_named(tmp_path: Path) -> None:
    root = Root(tmp_path)
    assert add_tombstones(root, ["ann", "bob"]) == 2
    assert add_tombstones(root, ["bob", "cid"]) == 1
    tombstones = read_tombstones(root)
    ids = ["ann", "dora", None, "cid"]
    for column in (ids, pa.array(ids), pl.Series(ids)):
        assert tombstones.is_forgotten(column).tolist() == [True, False, False, True]
    assert tombstones.day_of("ann") == datetime.now(UTC).date()
    content = (tmp_path / FILE).read_bytes()
    for user_id in (b"ann", b"bob", b"cid"):
        for trace in (user_id, hashlib.sha256(user_id).digest(), hashlib.md5(user_id).digest()[8:]):
            assert trace not in content
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in (FILE, KEY_FILE)] == [0o600, 0o600]


def test_a_copy_honours_the_same(tmp_path: Path) -> None:
    root, other = Root(tmp_path), Root(tmp_path / "other")
    other.path.mkdir()
    copy_tombstones(root, other)
    assert not any(other.path.iterdir())
    add_tombstones(root, ["ann"])
    copy_tombstones(root, other)
    assert read_tombstones(other) == read_tombstones(root)
    assert stat.S_IMODE((other.path / KEY_FILE).stat().st_mode) == 0o600


def test_a_missing_or_other_key_is_damage(tmp_path: Path) -> None:
    root = Root(tmp_path)
    add_tombstones(root, ["ann"])
    (tmp_path / KEY_FILE).chmod(0o600)
    (tmp_path / KEY_FILE).write_bytes(b"x" * 32)
    with pytest.raises(DamageError, match="is not the key"):
        read_tombstones(root)
    (tmp_path / KEY_FILE).unlink()
    with pytest.raises(DamageError, match=r"forgotten.key is missing"):
        add_tombstones(root, ["bob"])
