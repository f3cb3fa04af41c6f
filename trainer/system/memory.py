"""What of the memory this process holds, and how much of a GPU it may take."""

import re

DEVICE_CONTEXT_BYTES = 700 * 10**6  # what a GPU's driver and libraries take before the first row

_PRIVATE = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)


def private_bytes(process: int | str = "self") -> int:
    """Anonymous and shared memory that a process holds now, what a budget is measured by; 0 when it is no more."""
    try:
        with open(f"/proc/{process}/status", "rb", buffering=0) as file:
            status = file.read()
    except OSError:
        return 0
    return sum(int(kilobytes) * 1024 for kilobytes in _PRIVATE.findall(status))


def limit_device_memory(budget_bytes: int) -> None:
    """Let torch's allocator take no more of the GPU than the budget without the driver's own part."""
    import torch

    if torch.cuda.is_available():
        total_bytes = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, max(0.0, (budget_bytes - DEVICE_CONTEXT_BYTES) / total_bytes))
        )
