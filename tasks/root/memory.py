"""How much memory a step may take: the budget is for the whole process, and what it holds already counts."""

import ctypes
import gc

import pyarrow as pa

from trainer.system.memory import private_bytes

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; other C libraries need none or have none


def spare_bytes(memory_bytes: int) -> int:
    """What is left of a budget, but never less than a quarter of it: a step then spills, or says what it lacks."""
    return max(memory_bytes - private_bytes(), memory_bytes // 4)


def give_back_memory() -> None:
    """Return to the operating system what was freed: allocators keep it, and the budget of the next step would count it."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    if _malloc_trim:
        _malloc_trim(0)
