"""What a step may take of the budget."""

import numpy as np

from tasks.memory import spare_bytes
from trainer.memory import private_bytes


def test_what_the_process_holds_counts() -> None:
    before = private_bytes()
    array = np.ones(100_000_000, dtype=np.uint8)
    assert 90_000_000 < private_bytes() - before < 130_000_000
    assert abs(10**12 - private_bytes() - spare_bytes(10**12)) < 20_000_000
    assert array.all()


def test_never_less_than_a_quarter_of_the_budget() -> None:
    assert spare_bytes(1000) == 250
