"""Allocates memory pages, measures a process's private memory, and measures and limits its GPU memory."""

import mmap
import re
import subprocess
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = 4096
DEVICE_CONTEXT_BYTES = 700 * 10**6
"""Assumed to be taken on a GPU by driver and libraries, where there is no card to measure it on."""
LEAST_CONTEXT_BYTES, CONTEXT_STEP_BYTES = 64 * 10**6, 32 * 10**6
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


def limit_device_memory(budget_bytes: int, context_bytes: int) -> None:
    """Limit torch's allocator to the budget less what driver and libraries take."""
    import torch

    if torch.cuda.is_available():
        total_bytes = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, (budget_bytes - context_bytes) / total_bytes)))


def free_device_bytes() -> int | None:
    """Return the free bytes of this process's GPU, as nvidia-smi says, which needs no context there; None if it says nothing."""
    import torch

    if not torch.cuda.is_available():
        return None
    name = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    command = ["nvidia-smi", f"--id={name}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout
        return int(told) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):  # no such command, or a part of a card (MIG)
        return None


def context_bytes(free_before: int | None) -> int:
    """Return what driver and libraries took on the GPU since `free_device_bytes`; without it DEVICE_CONTEXT_BYTES.

    If another process takes memory meanwhile, it is counted, too. Rounded up, so that it is the same the next time.
    """
    if free_before is None:
        return DEVICE_CONTEXT_BYTES
    import torch

    taken = free_before - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
    return max(LEAST_CONTEXT_BYTES, -(-taken // CONTEXT_STEP_BYTES) * CONTEXT_STEP_BYTES)
