"""What a step may take of the budget."""

import numpy as np

from surf2vec.tasks.root.memory import give_back_memory, spare_bytes
from surf2vec.trainer.system.memory import private_bytes


def test_what_the_process_holds_counts() -> None:
    before = private_bytes()
    array = np.ones(100_000_000, dtype=np.uint8)
    assert 90_000_000 < private_bytes() - before < 130_000_000
    assert abs(10**12 - private_bytes() - spare_bytes(10**12)) < 20_000_000
    assert array.all()


def test_never_less_than_a_quarter_of_the_budget() -> None:
    assert spare_bytes(1000) == 250


def test_what_was_freed_goes_back() -> None:
    texts = [bytes(5000) for _ in range(40_000)]
    held = texts[::500]  # so that the heap does not shrink by itself
    texts.clear()
    before = private_bytes()
    give_back_memory()
    assert private_bytes() < before - 150_000_000
    assert all(len(text) == 5000 for text in held)
