"""A memory cgroup for a child process, so that the page cache counts too; and an empty page cache to begin with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup/memory")


def drop_caches() -> None:
    """Write out and forget the page cache, where this process may."""
    os.sync()
    if os.access("/proc/sys/vm/drop_caches", os.W_OK):
        Path("/proc/sys/vm/drop_caches").write_text("3")


@contextmanager
def memory_group(limit_bytes: int | None) -> Iterator[Path | None]:
    """A memory cgroup (version 1) with this limit for a child to enter; None where none can be made or is wanted."""
    group = CGROUPS / f"surf2vec-{os.getpid()}"
    try:
        if limit_bytes is None:
            raise PermissionError
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()
