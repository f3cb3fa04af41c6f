"""How much memory a step may use: the budget is for the whole process, and memory already in use counts."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from surf2vec.trainer.system.memory import private_bytes

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has and needs it

NIGHT_BYTES = 250 * 10**6
"""What the process of a night has taken before its training: a new one takes 124 MB, and ingest and corpus leave 45 MB after
7,000 events, 110 MB after 2.2 million. `plan` and `run` count it alike, so that they refuse the same budgets.
"""


def spare_bytes(memory_bytes: int) -> int:
    """Return what is left of a budget, at least a quarter of it: a step then spills to disk or reports what it lacks."""
    return max(memory_bytes - private_bytes(), memory_bytes // 4)


def give_back_memory() -> None:
    """Return freed memory to the operating system: allocators keep it, so it would count in the next step's budget."""
    gc.collect()
    gc.freeze()  # the modules that a step imported are left out of the next collections, too
    pa.default_memory_pool().release_unused()
    if _malloc_trim:
        _malloc_trim(0)


@contextmanager
def keep_loaded() -> Iterator[None]:
    """Leave the modules loaded by now out of garbage collections: looking through them takes a tenth of a second a step."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
