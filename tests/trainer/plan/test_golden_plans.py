"""The planner counts as it is written down, number by number and word by word."""

from tests.trainer.plan.golden_plans import GOLDEN, lines


def test_plans_have_the_numbers_and_reasons_written_down() -> None:
    assert list(lines()) == GOLDEN.read_text(encoding="utf-8").splitlines()
