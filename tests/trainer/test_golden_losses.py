"""Ten steps of each objective have the losses that are written down, by the reference and by the CPU kernel on one thread."""

from tests.trainer.golden_losses import GOLDEN, lines


def test_ten_steps_of_each_objective_have_the_losses_written_down() -> None:
    assert list(lines()) == GOLDEN.read_text(encoding="utf-8").splitlines()
