"""Ten steps of each objective have the losses that are written down, by the reference and by the CPU kernel on one thread."""

import numpy as np

from tests.trainer.golden_losses import GOLDEN, NUM_STEPS, lines

LAST_DIGIT = 2e-6
"""Kinds of CPU add up in another order: the last of six digits may differ."""


def test_ten_steps_of_each_objective_have_the_losses_written_down() -> None:
    found, wanted = list(lines()), GOLDEN.read_text(encoding="utf-8").splitlines()
    names, losses = zip(*(split(line) for line in found), strict=True)
    wanted_names, wanted_losses = zip(*(split(line) for line in wanted), strict=True)
    assert names == wanted_names
    np.testing.assert_allclose(losses, wanted_losses, rtol=0, atol=LAST_DIGIT)


def split(line: str) -> tuple[str, list[float]]:
    """Kernel and objective, and the losses."""
    words = line.split()
    return " ".join(words[:-NUM_STEPS]), [float(word) for word in words[-NUM_STEPS:]]
