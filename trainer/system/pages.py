"""Pages of memory that the operating system gives and takes back."""

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = 4096
Bytes = NDArray[np.uint8]


def make_pages(num_bytes: int) -> Bytes:
    """Pages for an image of so many bytes, not filled yet. They are the system's own, and go back when nobody holds them:
    an allocator may keep what is freed, and the budget counts that too.
    """
    wanted = _whole_pages(num_bytes)
    pages = mmap.mmap(-1, max(wanted, PAGE_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=np.uint8)[:wanted]


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
