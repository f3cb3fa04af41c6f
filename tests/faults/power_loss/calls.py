"""What each system call that strace shows does to the files below a folder."""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from tests.faults.power_loss.disk import Disk, Inode

_STRING = re.compile(rb'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_WORKING = -100  # the number of the working folder among open files, as in the kernel's AT_FDCWD


class UnknownChangeError(Exception):
    """A file was changed in a way that the recorder cannot follow: nothing may be concluded."""


@dataclass
class Open:
    """An open file description: its inode below the watched folder, or its path elsewhere, and its offset in bytes."""

    inode: Inode | None
    path: str
    offset: int = 0
    appends: bool = False


Table = dict[int, Open]
"""The open files of a process, by number."""


@dataclass
class Descriptors:
    """Paths, open files and their offsets."""

    disk: Disk
    folder: Path

    def _paths(self, table: Table, arguments: bytes) -> list[str]:
        """The absolute paths among the arguments: strings, relative to the descriptor before, or to the working folder."""
        paths, base = [], table[_WORKING].path if _WORKING in table else os.getcwd()
        for fd, base_path, text in re.findall(rb'(AT_FDCWD|\b\d+)<([^>]*)>|"((?:\\x[0-9a-f]{2})*)"', arguments):
            if fd:
                base = decode(base_path)
            else:
                paths.append(os.path.normpath(os.path.join(base, decode(text))))
        return paths

    def _is_ours(self, path: str) -> bool:
        return path.startswith(f"{self.folder}/") or path == str(self.folder)

    def _open(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        (path,) = self._paths(table, arguments)[:1]
        if b"O_TMPFILE" in arguments and self._is_ours(path):
            raise UnknownChangeError(f"an unnamed file in {path}")
        inode = None
        if self._is_ours(path):
            inode = self.disk.find(path)
            if inode is None:
                if b"O_CREAT" not in arguments:
                    raise UnknownChangeError(f"{path} was opened, which no step made")
                inode = self.disk.create(path)
            elif b"O_TRUNC" in arguments:
                self.disk.truncate(inode, 0)
        table[result] = Open(inode, path, appends=b"O_APPEND" in arguments)

    _openat = _open

    def _creat(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        self._open(table, arguments + b" O_CREAT|O_TRUNC", result, since, pid)

    def _close(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        table.pop(_number(arguments), None)

    def _dup(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        if found := table.get(_number(arguments)):
            table[result] = found
        else:
            table.pop(result, None)

    _dup2 = _dup3 = _dup

    def _fcntl(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        if b"F_DUPFD" in arguments:
            self._dup(table, arguments, result, since, pid)

    def _chdir(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        (path,) = self._paths(table, arguments)
        table[_WORKING] = Open(None, path)

    def _fchdir(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        table[_WORKING] = Open(None, table[_number(arguments)].path)

    # offsets

    def _lseek(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        if (found := table.get(_number(arguments))) and b"SEEK_DATA" not in arguments and b"SEEK_HOLE" not in arguments:
            found.offset = result

    def _read(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        if found := table.get(_number(arguments)):
            found.offset += result

    _readv = _read


class Contents(Descriptors):
    """What is written to files."""

    def _write(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        number = _number(arguments)
        found = table.get(number)
        if found is None:
            if number == 2:
                self.disk.mark(_strings(arguments)[0].decode(errors="replace"))
            return
        if found.inode is not None and result:
            self.disk.write(found.inode, self._place(found), b"".join(_strings(arguments))[:result])
        found.offset = self._place(found, after=True) + (0 if found.appends else result)

    _writev = _write

    def _place(self, found: Open, after: bool = False) -> int:
        return len(self.disk.content(found.inode)) if found.appends and found.inode is not None else found.offset

    def _pwrite64(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        if (found := table.get(_number(arguments))) and found.inode is not None:
            offset = int(re.search(rb", (\d+)$", arguments)[1])  # type: ignore[index]
            self.disk.write(found.inode, offset, b"".join(_strings(arguments))[:result])

    _pwritev = _pwrite64

    def _pwritev2(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        self._refuse(table, arguments)

    def _sendfile(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        """sendfile(out, in, NULL or [offset], count)."""
        out, source, offset = (part.strip() for part in arguments.split(b",")[:3])
        self._copy(
            table, _number(source), None if offset == b"NULL" else _bracketed(offset), _number(out), None, result
        )

    def _copy_file_range(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        """copy_file_range(in, NULL or [offset], out, NULL or [offset], count, flags)."""
        source, offset, out, place = (part.strip() for part in arguments.split(b",")[:4])
        places = [None if one == b"NULL" else _bracketed(one) for one in (offset, place)]
        self._copy(table, _number(source), places[0], _number(out), places[1], result)

    def _copy(self, table: Table, source: int, offset: int | None, out: int, place: int | None, num_bytes: int) -> None:
        target, origin = table.get(out), table.get(source)
        if origin is None or target is None:
            if target and target.inode is not None:
                raise UnknownChangeError(f"{target.path} was copied from an unknown file")
            return
        start = origin.offset if offset is None else offset
        if target.inode is not None and num_bytes:
            whole = self.disk.content(origin.inode) if origin.inode is not None else Path(origin.path).read_bytes()
            self.disk.write(
                target.inode, target.offset if place is None else place, bytes(whole[start : start + num_bytes])
            )
        if offset is None:
            origin.offset += num_bytes
        if place is None:
            target.offset += num_bytes

    def _ftruncate(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        if (found := table.get(_number(arguments))) and found.inode is not None:
            self.disk.truncate(found.inode, int(arguments.rsplit(b",", 1)[1]))

    def _truncate(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        (path,) = self._paths(table, arguments)
        if self._is_ours(path):
            inode = self.disk.find(path)
            assert inode is not None
            self.disk.truncate(inode, int(arguments.rsplit(b",", 1)[1]))

    def _fallocate(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        """fallocate(fd, mode, offset, length): only the growing of files is known."""
        if (found := table.get(_number(arguments))) and found.inode is not None:
            mode, offset, length = (part.strip() for part in arguments.split(b",")[1:4])
            if mode not in (b"0", b"0x0"):
                raise UnknownChangeError(f"fallocate of {found.path} with mode {mode.decode()}")
            if int(offset) + int(length) > len(self.disk.content(found.inode)):
                self.disk.truncate(found.inode, int(offset) + int(length))

    def _mmap(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        if b"MAP_SHARED" in arguments and b"PROT_WRITE" in arguments:
            self._refuse(table, arguments.split(b",")[4].strip())

    def _refuse(self, table: Table, arguments: bytes) -> None:
        if (found := table.get(_number(arguments))) and found.inode is not None:
            raise UnknownChangeError(f"{found.path} is written by a call that is not followed: {arguments[:200]!r}")


class Calls(Contents):
    """All calls: names, and what reaches the disk, too. Each method has the name of a call."""

    def _fsync(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        if (found := table.get(_number(arguments))) and found.inode is not None:
            self.disk.sync(found.inode, since)

    _fdatasync = _fsync

    def _sync(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        self.disk.sync(None, since)

    _syncfs = _sync

    # names

    def _rename(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        source, target = self._paths(table, arguments)
        if b"RENAME_EXCHANGE" in arguments:
            if self._is_ours(source) or self._is_ours(target):
                self.disk.exchange(source, target)
        elif self._is_ours(source) and self._is_ours(target):
            self.disk.rename(source, target)
        elif self._is_ours(source) or self._is_ours(target):
            raise UnknownChangeError(f"{source} was renamed to {target}, across the border of {self.folder}")

    _renameat = _renameat2 = _rename

    def _link(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        source, target = self._paths(table, arguments)
        if self._is_ours(target):
            inode = self.disk.find(source) if self._is_ours(source) else None
            if inode is None:
                raise UnknownChangeError(f"{target} was linked to {source}, outside of {self.folder}")
            self.disk.link(inode, target)

    _linkat = _link

    def _unlink(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        (path,) = self._paths(table, arguments)
        if self._is_ours(path):
            self.disk.remove(path)

    _unlinkat = _rmdir = _unlink

    def _mkdir(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        (path,) = self._paths(table, arguments)
        if self._is_ours(path):
            self.disk.create(path, stat.S_IFDIR)

    _mkdirat = _mkdir

    def _symlink(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        target = _strings(arguments)[0].decode()
        path = self._paths(table, arguments)[1]
        if self._is_ours(path):
            self.disk.create(path, stat.S_IFLNK, target)

    _symlinkat = _symlink

    def _io_uring_setup(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        raise UnknownChangeError("a process writes by io_uring, which strace does not see")


def decode(text: bytes) -> str:
    r"""A path as strace prints it: plain, or as \x2f\x74."""
    if text.startswith(b"\\x"):
        return bytes.fromhex(text.replace(b"\\x", b"").decode()).decode()
    return text.decode()


def _strings(arguments: bytes) -> list[bytes]:
    found = []
    for text, is_cut in _STRING.findall(arguments):
        if is_cut:
            raise UnknownChangeError("strace cut a text off")
        found.append(bytes.fromhex(text.replace(b"\\x", b"").decode()))
    return found


def _number(argument: bytes) -> int:
    found = re.match(rb"\s*(-?\d+)", argument)
    return int(found[1]) if found else -1


def _bracketed(argument: bytes) -> int:
    found = re.search(rb"\[(\d+)", argument)
    assert found
    return int(found[1])
