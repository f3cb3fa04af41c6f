"""The recorder misses nothing, and the disks that are drawn are those that a power loss may leave, and no others."""

import os
import sys
from pathlib import Path

import pytest

from tests.faults.power_loss.calls import UnknownChangeError
from tests.faults.power_loss.disk import Disk, put_on_disk
from tests.faults.power_loss.losses import DATA, NAMES, Loss, draw_losses, lose_power
from tests.faults.power_loss.recorder import has_strace, record

needs_strace = pytest.mark.skipif(not has_strace(), reason="strace is not installed: apt-get install strace")
CHANGES = """
import os, shutil, subprocess, threading
import numpy as np
os.mkdir("a"); os.mkdir("a/b")
with open("a/b/text", "w") as file: file.write("one"); file.flush(); file.seek(1); file.write("NE, two")
with open("a/b/text", "a") as file: file.write(" three")
np.save("a/array.npy", np.arange(1000)); np.arange(10).tofile("a/raw")
shutil.copyfile("a/array.npy", "a/copy"); shutil.copytree("a", "tree")
os.link("a/copy", "a/b/hard"); os.symlink("a/b", "soft")
with open("soft/through", "wb") as file: file.write(b"x" * 9000); os.fsync(file.fileno())
os.truncate("a/raw", 17); os.rename("a/copy", "renamed"); os.replace("renamed", "a/b/text"); shutil.rmtree("tree/b")
fd = os.open("a", os.O_RDONLY); os.unlink("array.npy", dir_fd=fd); os.fsync(fd); os.close(fd)
fd = os.open("old", os.O_RDWR); os.pwrite(fd, b"new", 4); os.lseek(fd, 0, os.SEEK_END); os.write(fd, b"end"); os.close(fd)
def work(n):
    for i in range(30):
        with open(f"t{n}-{i}", "wb") as file: file.write(bytes([n]) * i); os.fsync(file.fileno())
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
subprocess.run(["sh", "-c", "echo child > child; echo more >> child"], check=True)
"""


@needs_strace
def test_what_was_recorded_makes_the_very_files(tmp_path: Path) -> None:
    """`record` itself compares; here the bytes are those that the steps make somewhere else, too."""
    world = tmp_path / "world"
    world.mkdir()
    (world / "old").write_text("0123456789")
    code = f"import os; os.chdir({str(world)!r})\n{CHANGES}"
    disk = record([sys.executable, "-c", code], world, tmp_path / "log")
    assert len(disk.steps) > 350
    assert (world / "old").read_text() == "0123new789end"
    (tmp_path / "other").mkdir()
    put_on_disk(disk.tree(), tmp_path / "other")
    assert disk.differences(tmp_path / "other") == []
    assert (tmp_path / "other" / "a" / "b" / "hard").stat().st_nlink == 2


@needs_strace
def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    world = tmp_path / "world"
    world.mkdir()
    (world / "file").write_bytes(bytes(4096))
    code = f"import mmap; file = open({str(world / 'file')!r}, 'r+b'); mmap.mmap(file.fileno(), 4096)[0] = 7"
    with pytest.raises(UnknownChangeError, match="is written by a call that is not followed"):
        record([sys.executable, "-c", code], world, tmp_path / "log")


def make_disk(tmp_path: Path) -> Disk:
    """`file` was old; its replacement is written, synced if asked, renamed."""
    (tmp_path / "file").write_bytes(b"old")
    return Disk.read(tmp_path)


def replace(disk: Disk, folder: Path, synced: bool) -> None:
    inode = disk.create(f"{folder}/.tmp")
    disk.write(inode, 0, b"n" * 10_000)
    if synced:
        disk.sync(inode, len(disk.steps))
    disk.rename(f"{folder}/.tmp", f"{folder}/file")


def contents(disk: Disk, num: int = 400) -> set[bytes | str | None]:
    """What `file` may be, over all ways in which power may be lost after all steps."""
    point = len(disk.steps)
    losses = [Loss(point, names, data, seed) for names in NAMES for data in DATA for seed in range(num // 36 + 1)]
    trees = [lose_power(disk, loss) for loss in losses]
    return {tree["file"].content if "file" in tree else None for tree in trees}


def test_a_synced_file_that_is_renamed_is_old_or_new(tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    replace(disk, tmp_path, synced=True)
    assert contents(disk) == {b"old", b"n" * 10_000}
    disk.sync(disk.root, len(disk.steps))
    assert contents(disk) == {b"n" * 10_000}


def test_a_file_that_is_renamed_unsynced_may_be_anything_in_blocks(tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    replace(disk, tmp_path, synced=False)
    found = contents(disk)
    assert {b"old", b"", bytes(10_000), b"n" * 10_000, b"n" * 4096, b"n" * 512} <= found
    assert all(isinstance(one, bytes) and set(one) <= {0, ord("n")} for one in found - {b"old"})
    blocks = {one.count(b"n") for one in found if isinstance(one, bytes)}
    assert any(number % 4096 and number % 512 == 0 for number in blocks), "no block of 512 bytes was torn off"


def test_a_sync_holds_for_what_was_written_before_it_began(tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    inode = disk.find(str(tmp_path / "file"))
    assert inode
    disk.write(inode, 3, b"1")
    since = len(disk.steps)
    disk.write(inode, 4, b"2")
    disk.sync(inode, since)
    assert contents(disk) >= {b"old1", b"old12", b"old1\0"}
    assert {one[:4] for one in contents(disk) if isinstance(one, bytes)} == {b"old1"}


def test_a_file_moved_to_another_folder_is_in_one_of_them_or_both(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "file").write_bytes(b"x")
    disk = Disk.read(tmp_path)
    disk.rename(f"{tmp_path}/one/file", f"{tmp_path}/two/file")
    seen = {
        tuple(name for name in ("one/file", "two/file") if name in lose_power(disk, Loss(2, names, "kept", seed)))
        for names in NAMES
        for seed in range(20)
    }
    assert seen == {("one/file",), ("two/file",), ("one/file", "two/file")}


def test_the_seed_draws_the_same_again(tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    replace(disk, tmp_path, synced=False)
    trees = [[lose_power(disk, loss) for loss in draw_losses(disk, 50, seed)] for seed in (5, 5, 6)]
    assert trees[0] == trees[1] != trees[2]
    assert os.listdir(tmp_path) == ["file"]
