"""Locks between processes, and folders that take the place of others in one step."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.system import files
from surf2vec.trainer.system.files import is_locked, lock, put_folder, remove_folder, replace_folder, restore_folder

HOLDER = """
import sys
from pathlib import Path
from surf2vec.trainer.system.files import lock
with lock(Path(sys.argv[1]), "the other command"):
    print("held", flush=True)
    sys.stdin.read()
"""


class WaitedError(Exception):
    pass


def refuse(holder: str) -> None:
    raise WaitedError(holder)


def test_a_lock_names_its_holder_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not is_locked(path)
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert is_locked(path)
        with pytest.raises(WaitedError, match="the other command"), lock(path, on_wait=refuse):
            pass
        process.kill()
    assert not is_locked(path)
    with lock(path, "mine", refuse):
        assert path.read_text() == "mine"
        with pytest.raises(WaitedError, match="mine"), lock(path, on_wait=refuse):
            pass
    assert path.read_text() == ""


def test_who_waited_for_a_file_that_was_removed_locks_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / ".lock"

    def let_go(holder: str) -> None:
        path.unlink()
        first.__exit__(None, None, None)

    first = lock(path, "first")
    first.__enter__()
    with lock(path, "second", let_go):
        assert path.read_text() == "second"
        assert is_locked(path)


def test_a_lock_on_a_read_only_disk_can_be_looked_at_and_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lock").touch()
    opens = open

    def open_read_only(path: Path, mode: str, **how: Any) -> Any:
        if mode != "rb":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opens(path, mode)

    monkeypatch.setattr("builtins.open", open_read_only)
    assert not is_locked(tmp_path / ".lock")
    refused = pytest.raises(ResourceError, match=r"cannot write .*/\.lock: Read-only file system; permit")
    with refused, lock(tmp_path / ".lock"):
        pass


def fill(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "file").write_text(text)
    return folder


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    for text in ("old", "new"):
        put_folder(fill(tmp_path / "made", text), tmp_path / "place")
        assert (tmp_path / "place" / "file").read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_a_folder_comes_back_that_was_cut_off_between_two_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fill(tmp_path / "place", "old")
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    with pytest.raises(FileNotFoundError):
        put_folder(tmp_path / "missing", place)
    assert not place.exists()
    for _ in range(2):
        restore_folder(place)
        assert (place / "file").read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_a_block_that_fails_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    place = fill(tmp_path / "place", "old")

    def fail() -> None:
        with replace_folder(place) as new:
            (new / "file").write_text("new")
            raise OSError(28, "no space")

    with pytest.raises(ResourceError, match="cannot write .*place: no space"):
        fail()
    assert (place / "file").read_text() == "old"
    with replace_folder(place) as new:
        (new / "other").write_text("new")
    assert [path.name for path in place.iterdir()] == ["other"]
    remove_folder(place)
    assert list(tmp_path.iterdir()) == []
