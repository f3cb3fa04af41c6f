"""How much memory a step may take: the budget is for the whole process, and what it holds already counts."""

from pathlib import Path

_COUNTED = ("RssAnon:", "RssShmem:")


def held_bytes() -> int:
    """Anonymous and shared memory of this process now; files that are mapped can be dropped and do not count."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(_COUNTED))


def spare_bytes(memory_bytes: int) -> int:
    """What is left of a budget, but never less than a quarter of it: a step then spills, or says what it lacks."""
    return max(memory_bytes - held_bytes(), memory_bytes // 4)
