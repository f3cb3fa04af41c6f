"""Failures of disk, memory and permission as errors that say what to do."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from tasks.root.run import Root
from trainer.errors import ResourceError, SurfError
from trainer.system.units import size

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


@contextmanager
def explain_failures(root: Root, what: str, memory_bytes: int) -> Iterator[None]:
    """Raise ResourceError for what the operating system or DuckDB could not give to `what`.

    Any other failure of DuckDB is a fault of ours; its message may hold a value out of a log, so only its kind is told.
    """
    try:
        yield
    except (duckdb.Error, OSError, MemoryError) as error:
        explained = _explain(root, what, memory_bytes, error)
        if explained is not None:
            raise explained from error
        if isinstance(error, duckdb.Error):
            raise SurfError(
                f"DuckDB failed while {what} ({type(error).__name__}): what was there before is untouched; please report it"
            ) from error
        raise


def _explain(root: Root, what: str, memory_bytes: int, error: BaseException) -> ResourceError | None:
    text = str(error)
    code = error.errno if isinstance(error, OSError) else None
    if code in _FULL or "No space left" in text or "temp_directory" in text:
        free = size(shutil.disk_usage(root.path).free)
        return ResourceError(
            f"the disk of {root.path} is full while {what}: {free} are free. What was there before is untouched; free space, or "
            "give a --root on another disk, then run the same command again"
        )
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError):
        return ResourceError(
            f"{size(memory_bytes)} of memory do not suffice while {what}: raise --host-memory ({text.partition(chr(10))[0]})"
        )
    if code in _DENIED or (isinstance(error, duckdb.IOException) and ("denied" in text or "Cannot open file" in text)):
        return ResourceError(
            f"no permission to write below {root.path} while {what} ({text.partition(chr(10))[0]}): permit it, or give "
            "another --root"
        )
    return None
