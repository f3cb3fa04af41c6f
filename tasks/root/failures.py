"""Turns failures of disk, memory and permissions into errors that say what to do."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import ConfigError, ResourceError, SurfError
from surf2vec.trainer.system.units import size

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


@contextmanager
def explain_failures(root: Root, what: str, memory_bytes: int) -> Iterator[None]:
    """Raise ResourceError when disk, memory or permissions do not suffice for `what`.

    Any other DuckDB error is a bug of surf2vec. Its message may contain a value from a log, so only its type is reported.
    """
    try:
        yield
    except (duckdb.Error, OSError, MemoryError) as error:
        text, code = str(error), error.errno if isinstance(error, OSError) else None
        line = text.partition("\n")[0]
        if code in _FULL or "No space left" in text or "temp_directory" in text:
            fault = (
                f"the disk of {root.path} is full while {what}: {size(shutil.disk_usage(root.path).free)} are free. What was "
                "there before is untouched; free space, or use a --root on another disk, then run the same command again"
            )
        elif isinstance(error, duckdb.OutOfMemoryException | MemoryError):
            fault = f"{size(memory_bytes)} of memory do not suffice while {what}: raise --host-memory ({line})"
        elif code in _DENIED or (isinstance(error, duckdb.IOException) and re.search("denied|Cannot open file", text)):
            fault = f"no permission to write below {root.path} while {what} ({line}): permit it, or use another --root"
        elif isinstance(error, duckdb.Error):
            raise SurfError(
                f"DuckDB failed while {what} ({type(error).__name__}): what was there before is untouched; please report it"
            ) from error
        else:
            raise
        raise ResourceError(fault) from error


def check_out(out: Path, kind: str, example: str) -> None:
    """Raise ConfigError unless --out can be a file with the suffix of `example`, ResourceError if its folder is not writable."""
    try:
        is_folder = out.is_dir()
        parent = next(path for path in out.resolve().parents if path.exists())
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be a file: {error.strerror}; name another") from None
    suffix = Path(example).suffix
    if out.suffix != suffix or is_folder:
        what = "is a folder" if is_folder else f"does not end in {suffix}"
        raise ConfigError(f"--out {out} {what}: name a {kind} file, for instance --out {example}")
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ResourceError(f"cannot write {out}: {parent} is no folder that may be written to; use another --out")
