"""Records every change that a command makes to the files below a folder: strace sees all processes, threads and libraries."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.faults.power_loss.calls import Calls, Table, UnknownChangeError
from tests.faults.power_loss.disk import Disk

WATCHED = (
    "open,openat,creat,close,dup,dup2,dup3,fcntl,lseek,read,readv,write,writev,pwrite64,pwritev,pwritev2,sendfile,copy_file_range,"
    "truncate,ftruncate,fallocate,fsync,fdatasync,sync,syncfs,sync_file_range,msync,mmap,rename,renameat,renameat2,link,linkat,"
    "unlink,unlinkat,mkdir,mkdirat,rmdir,symlink,symlinkat,chdir,fchdir,clone,clone3,fork,vfork,io_uring_setup,preadv,preadv2"
)
_LINE = re.compile(rb"(\d+) +(\w+)\((.*)\) += (-?\d+|\?)(.*)", re.DOTALL)
_UNFINISHED = re.compile(rb"(\d+) +(\w+)\((.*) <unfinished \.\.\.>", re.DOTALL)
_RESUMED = re.compile(rb"(\d+) +<\.\.\. (\w+) resumed>(.*)", re.DOTALL)


def has_strace() -> bool:
    return shutil.which("strace") is not None


def record(command: list[str], folder: Path, log: Path, expected_code: int = 0, **environment: str) -> Disk:
    """Run the command; return the disk below `folder` with all its steps. `folder` is then as the command left it.

    Raises UnknownChangeError where the recorded steps do not lead to the very bytes on the disk.
    """
    disk = Disk.read(folder)
    strace = [
        "strace",
        "-f",
        "-y",
        "--seccomp-bpf",
        "-qq",
        "-xx",
        "-s",
        "100000000",
        "-o",
        str(log),
        "-e",
        f"trace={WATCHED}",
    ]
    strace += ["-e", "signal=none"]
    done = subprocess.run([*strace, *command], env=os.environ | environment, capture_output=True, check=False)
    if done.returncode != expected_code:
        raise AssertionError(f"{command} ended with {done.returncode}: {done.stderr.decode()[-3000:]}")
    _Replay(disk, folder).follow(log)
    log.unlink()
    differences = disk.differences(folder)
    if differences:
        raise UnknownChangeError(f"the steps recorded of {command} do not make the files: {differences[:5]}")
    return disk


class _Replay(Calls):
    """The state of all processes while a log is read: open files of each process, and calls that have not ended."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        super().__init__(disk, folder)
        self.tables: dict[int, Table] = {}
        self.begun: dict[int, tuple[bytes, bytes, int]] = {}

    def follow(self, log: Path) -> None:
        for pid, name, arguments, result, since in self._calls(log):
            table = self._table(pid)
            if result >= 0:
                getattr(self, f"_{name}", self._ignore)(table, arguments, result, since, pid)

    def _calls(self, log: Path) -> Iterator[tuple[int, str, bytes, int, int]]:
        """Yield (pid, name, arguments, result, number of steps when it began) of each call, in the order of their ends."""
        with log.open("rb") as file:
            for line in file:
                since = len(self.disk.steps)
                if found := _UNFINISHED.match(line):
                    self.begun[int(found[1])] = (found[2], found[3], since)
                    if found[2] == b"close":  # its number is free at once: another thread may get it before this ends
                        yield int(found[1]), "close", found[3], 0, since
                    continue
                if found := _RESUMED.match(line):
                    name, arguments, since = self.begun.pop(int(found[1]))
                    if name == b"close":
                        continue
                    line = found[1] + b" " + name + b"(" + arguments + found[3]
                if found := _LINE.match(line):
                    result = -1 if found[4] == b"?" else int(found[4])
                    yield int(found[1]), found[2].decode(), found[3], result, since

    def _table(self, pid: int) -> Table:
        if pid not in self.tables:  # its first call ended before the clone that made it
            parents = [
                one for one, (name, _, _) in self.begun.items() if name in (b"clone", b"clone3", b"fork", b"vfork")
            ]
            if parents:
                self._share(parents[-1], pid, self.begun[parents[-1]][1])
        return self.tables.setdefault(pid, {})

    def _share(self, parent: int, child: int, arguments: bytes) -> None:
        table = self.tables.setdefault(parent, {})
        self.tables[child] = table if b"CLONE_FILES" in arguments else dict(table)

    def _clone(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        if result and result not in self.tables:
            self._share(pid, result, arguments)

    _clone3 = _fork = _vfork = _clone

    def _ignore(self, table: Table, arguments: bytes, result: int, since: int, pid: int) -> None:
        pass
