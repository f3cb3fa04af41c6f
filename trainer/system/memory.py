"""Allocates memory pages, measures a process's private memory, and limits its GPU memory."""

import mmap
import re
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = 4096
DEVICE_CONTEXT_BYTES = 700 * 10**6  # taken by the GPU's driver and libraries before the first row
Bytes = NDArray[np.uint8]

_PRIVATE = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)


def make_pages(num_bytes: int) -> Bytes:
    """Return unfilled pages for so many bytes. Freed pages return to the system at once; an allocator may keep them."""
    wanted = whole_pages(num_bytes)
    pages = mmap.mmap(-1, max(wanted, PAGE_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=np.uint8)[:wanted]


def whole_pages(num_bytes: int) -> int:
    """Return a number of bytes rounded up to full pages."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


def private_bytes(process: int | str = "self") -> int:
    """Return the anonymous and shared memory of a process, which budgets limit; 0 when the process has ended."""
    try:
        with open(f"/proc/{process}/status", "rb", buffering=0) as file:
            status = file.read()
    except OSError:
        return 0
    return sum(int(kilobytes) * 1024 for kilobytes in _PRIVATE.findall(status))


def limit_device_memory(budget_bytes: int) -> None:
    """Limit torch's allocator to the budget less the driver's part."""
    import torch

    if torch.cuda.is_available():
        total_bytes = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, max(0.0, (budget_bytes - DEVICE_CONTEXT_BYTES) / total_bytes))
        )
