"""The folder that a pull fills: one pull at a time, what a killed one fetched is kept, and it appears whole or not at all.

Beside `NAME` are, while a pull works, `.NAME.pull.lock` (who works), `.NAME.pull.tmp` (what is fetched so far) and, for a
moment, `.NAME.old.tmp`. A pull that died leaves the first two; the next one goes on from there.
"""

import ctypes
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.errors import DamageError, ResourceError
from trainer.system.files import make_folder, sync_file, sync_folder, verify_file

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def hold_folder(out: Path, on_wait: Callable[[str], None] = lambda message: None) -> Iterator[Path]:
    """Yield the folder in which to gather what will be `out`; wait for another pull into `out`.

    Raises ResourceError when it cannot be written to. What is gathered stays when the block raises.
    """
    gathered, old = (out.with_name(f".{out.name}.{kind}.tmp") for kind in ("pull", "old"))
    try:
        make_folder(out.parent)
        with _locked(out.with_name(f".{out.name}.pull.lock"), lambda: on_wait(f"waiting for another pull into {out}")):
            if old.exists() and not out.exists():
                old.rename(out)  # died between two renames
            shutil.rmtree(old, ignore_errors=True)
            gathered.mkdir(exist_ok=True)
            try:
                yield gathered
            finally:
                with suppress(OSError):
                    gathered.rmdir()  # if nothing is in it
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(
            f"cannot write {out}: {reason}; free or widen that disk, then run the same command again: it goes on"
        ) from None


def put_in_place(gathered: Path, out: Path, names: set[str]) -> None:
    """Make `gathered`, of which the files `names` are wanted and others go, the folder `out`: durably, and at once."""
    for path in sorted(gathered.rglob("*"), reverse=True):
        if path.is_dir():
            with suppress(OSError):
                path.rmdir()  # if empty
        elif str(path.relative_to(gathered)) not in names:
            path.unlink()
    for path in gathered.rglob("*"):
        (sync_folder if path.is_dir() else sync_file)(path)
    sync_folder(gathered)
    old = out.with_name(f".{out.name}.old.tmp")
    if not out.exists():
        gathered.rename(out)
    elif _exchange(gathered, out):
        gathered.rename(old)
    else:
        out.rename(old)
        gathered.rename(out)
    sync_folder(out.parent)
    shutil.rmtree(old, ignore_errors=True)


def is_there(path: Path, about: dict[str, object]) -> bool:
    """Whether the file `path` is the one of the manifest entry `about`, every byte of it."""
    try:
        verify_file(path, about)
    except DamageError:
        return False
    return True


def take_over(path: Path, about: dict[str, object], target: Path) -> bool:
    """Make `target` the same file as `path`, if that is the one of `about`; returns whether."""
    if not is_there(path, about):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(path, target)
    except OSError:  # a file system without links
        shutil.copyfile(path, target)
    return True


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock that goes with the process; its file goes with the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            break
        os.close(descriptor)  # another had it and removed its file
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change their names in one step, as Linux can; returns whether that was done."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
