"""Files that survive a crash: write under a temporary name, fsync, rename, fsync the folder. And locks between processes.

A reader sees the old file or the new one, never a part. This module does not depend on the content of files.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from surf2vec.trainer.errors import DamageError, ResourceError

TEMPORARY_SUFFIX = ".tmp"
SYNCED_AT_ONCE = 8
VERIFIED_AT_ONCE = 2
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_DIGEST = "digest"  # the key of the digest of all other values in a JSON file
_DOCTOR = "`surf2vec doctor` shows how to repair it"


def user_cache() -> Path:
    """Return the folder for what this user's programs make once: machine code, and an empty database of MLflow."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "surf2vec"


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. It durably replaces `path` when the block succeeds, and is removed otherwise."""
    make_folder(path.parent)
    own = f"{secrets.token_hex(4)}.{os.getpid()}"  # two machines that write the same file may have equal process ids
    temporary = path.with_name(f".{path.name}.{own}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        sync_path(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` unless the block raises. The block syncs its files, this the folders.

    Raises ResourceError if it cannot be written to.
    """
    new = path.with_name(f".{path.name}.new{TEMPORARY_SUFFIX}")
    try:
        shutil.rmtree(new, ignore_errors=True)
        make_folder(new)
        yield new
        sync_folders(new)  # hard links in it would be lost with the folder that is replaced
        put_folder(new, path)
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(f"cannot write {path}: {reason}; free or widen that disk, then run again") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def put_folder(new: Path, path: Path) -> None:
    """Durably rename the synced folder `new` to `path`, and remove the folder that was there.

    On Linux the two exchange their names in one step. Elsewhere `restore_folder` completes what a crash left between two renames.
    """
    old = _replaced(path)
    _remove_tree(old)
    if path.exists() and _exchange(new, path):
        new.rename(old)
    else:
        if path.exists():
            path.rename(old)
        new.rename(path)
    sync_path(path.parent)
    _remove_tree(old)


def restore_folder(path: Path) -> None:
    """Bring back the folder `path` if `put_folder` was killed between two renames; remove what it was to remove."""
    old = _replaced(path)
    if old.exists() and not path.exists():
        old.rename(path)
    _remove_tree(old)


def remove_folder(path: Path) -> None:
    """Remove a folder, or the link to one. It is renamed first, so that no reader finds an incomplete one."""
    old = _replaced(path)
    _remove_tree(old)
    os.replace(path, old)
    _remove_tree(old, ignore_errors=False)


def _remove_tree(path: Path, ignore_errors: bool = True) -> None:
    """Remove a folder if it exists; of a link only the link, as its target belongs to whoever made the link."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors)


def _replaced(path: Path) -> Path:
    return path.with_name(f".{path.name}.old{TEMPORARY_SUFFIX}")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step. Returns False where the system cannot (only Linux can)."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0


@contextmanager
def lock(path: Path, holder: str = "", on_wait: Callable[[str], None] = lambda holder: None) -> Iterator[None]:
    """Hold the lock of the file `path`, which the operating system releases when the process dies. The file names its holder.

    on_wait: called with the holder's name before waiting for it; may raise. The block may remove the file.
    Raises ResourceError if the file cannot be written.
    """
    while True:
        with _open_lock(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                on_wait(file.read().strip() or "another process")
                fcntl.flock(file, fcntl.LOCK_EX)
            if not (path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())):
                continue  # another process held the lock and removed its file
            file.truncate(0)
            with suppress(OSError):  # a full disk: messages then do not name the holder
                os.write(file.fileno(), holder.encode())
            yield
            file.truncate(0)
            return


def _open_lock(path: Path) -> TextIO:
    try:
        return open(path, "a+", encoding="utf-8")
    except OSError as error:
        raise ResourceError(
            f"cannot write {path}: {error.strerror}; permit writing there, or work on a copy of the folder"
        ) from None


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file, which may be read-only; False if the file does not exist."""
    with suppress(FileNotFoundError, NotADirectoryError), open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a shared one: to read suffices, also on NFS
        except BlockingIOError:
            return True
    return False


@contextmanager
def raise_if_unwritten(folder: Path, what: str) -> Iterator[None]:
    """Raise ResourceError, with the free bytes, when the block cannot write `what` to `folder`: disk full, or no permission."""
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"could not write {what} to {folder} ({error}; {shutil.disk_usage(folder).free:,} bytes are free): "
            "free space or permit writing, then run the same command again; what was committed is whole"
        ) from error


def sync_path(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk. Only then a rename in it is durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_paths(paths: Iterable[Path]) -> None:
    """`sync_path` for many, several at a time, which is faster."""
    with ThreadPoolExecutor(SYNCED_AT_ONCE) as pool:
        list(pool.map(sync_path, paths))


def sync_folders(path: Path) -> None:
    """`sync_path` for `path` and every folder below it."""
    for folder, _, _ in os.walk(path, topdown=False):
        with suppress(FileNotFoundError):  # another process removed its folder meanwhile
            sync_path(Path(folder))


def sync_tree(path: Path) -> None:
    """Wait until `path` and all files and folders below it are on the disk."""
    sync_paths(file for file in path.rglob("*") if file.is_file())
    sync_folders(path)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make `path` and its missing parent folders, durably."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode, parents=True, exist_ok=True)
    for folder in missing:
        sync_path(folder.parent)


def link_file(path: Path, second: Path) -> None:
    """Hard-link a file that never changes, or copy and sync it on a file system without links."""
    make_folder(second.parent)
    try:
        os.link(path, second)
    except OSError:
        shutil.copyfile(path, second)
        sync_path(second)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    with replace_file(path) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_bytes(content)


def write_manifest_json(path: Path, value: dict[str, Any]) -> None:
    """`write_json` with the digest of `value`, which `read_json` checks."""
    write_json(path, value | {_DIGEST: digest_json(value)})


def write_json(path: Path, value: Any) -> None:
    """Durably replace `path` by `value` as indented JSON with sorted keys: equal values give equal bytes."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    with replace_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read the JSON in `path` without its digest. Raises DamageError when it is missing or invalid, or its digest is wrong."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamageError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path} is not readable as JSON ({error}): it was altered or cut short; {_DOCTOR}") from None
    if isinstance(value, dict) and _DIGEST in value and value.pop(_DIGEST) != digest_json(value):
        raise DamageError(f"{path} does not say what was written: it was altered; {_DOCTOR}")
    return value


def digest_file(path: Path) -> str:
    """Return the sha256 of a file, 64 hex digits. Takes a bounded memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_json(value: Any) -> str:
    """Return the sha256 of a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def describe_file(path: Path) -> dict[str, Any]:
    """Return `{"bytes", "sha256"}` of a file, for a manifest."""
    return {"bytes": path.stat().st_size, "sha256": digest_file(path)}


def verify_size(path: Path, expected: dict[str, Any]) -> None:
    """Raise DamageError unless `path` exists with the size that a manifest recorded."""
    if not path.exists():
        raise DamageError(f"{path} is missing")
    found_bytes = path.stat().st_size
    if found_bytes != expected["bytes"]:
        raise DamageError(f"{path} has {found_bytes:,} bytes where its manifest says {expected['bytes']:,}")


def verify_file(path: Path, expected: dict[str, Any]) -> None:
    """Raise DamageError unless `path` has the bytes and sha256 that a manifest recorded."""
    verify_size(path, expected)
    try:
        found = digest_file(path)
    except OSError as error:  # the disk fails
        raise DamageError(f"{path} cannot be read ({error.strerror})") from None
    if found != expected["sha256"]:
        raise DamageError(f"{path} does not have the sha256 its manifest says: its bytes were altered")


def verify_once(path: Path, expected: dict[str, Any], way_out: str) -> Path:
    """Return `path` after verifying its bytes against a manifest's. A process verifies a file only once, unless it is written or
    replaced meanwhile. Raises DamageError, which ends in `way_out`: how to repair it.
    """
    try:
        verify_size(path, expected)
        stat = path.stat()
        _verify_bytes(path, expected["bytes"], expected["sha256"], (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
    except DamageError as error:
        raise DamageError(f"{error}; {way_out}") from None
    return path


@lru_cache(maxsize=1 << 18)  # errors are not cached
def _verify_bytes(path: Path, num_bytes: int, sha256: str, stamp: tuple[int, int, int]) -> None:
    verify_file(path, {"bytes": num_bytes, "sha256": sha256})


def verify_all(files: Iterable[tuple[Path, dict[str, Any], str]]) -> None:
    """`verify_once` for many files, two at a time, as a digest takes a core."""
    with ThreadPoolExecutor(VERIFIED_AT_ONCE) as pool:
        list(pool.map(lambda file: verify_once(*file), files))
