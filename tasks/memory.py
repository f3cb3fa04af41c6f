"""How much memory a step may take: the budget is for the whole process, and what it holds already counts."""

from trainer.memory import private_bytes


def spare_bytes(memory_bytes: int) -> int:
    """What is left of a budget, but never less than a quarter of it: a step then spills, or says what it lacks."""
    return max(memory_bytes - private_bytes(), memory_bytes // 4)
