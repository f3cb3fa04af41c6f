"""Whole commands killed at random moments go on; `python -m tests.benchmarks.kills` kills each of them, many times."""

from pathlib import Path

import pytest

from tests.faults.command_kills import try_kills


@pytest.mark.long
@pytest.mark.parametrize("name", ["pull", "gc", "forget", "run"])
def test_a_killed_command_goes_on(tmp_path: Path, name: str) -> None:
    tally = try_kills(name, 2, 1, tmp_path)
    assert tally.faults == []
    assert (tally.kills, tally.of_trees) == (2, 1)
