"""Power is lost while a trainer commits, and while other commands write: the same bits, or a refusal by name.

`python -m tests.benchmarks.power_loss` loses it 10,000 times.
"""

from pathlib import Path

import pytest

from tests.faults.power_loss.commands import COMMANDS
from tests.faults.power_loss.losses import draw_losses
from tests.faults.power_loss.recorder import has_strace
from tests.faults.power_loss.trial import SAME, record_command, try_command, try_losses

pytestmark = pytest.mark.skipif(not has_strace(), reason="strace is not installed: apt-get install strace")
SEED = 7
IN_CI = ("ingest", "corpus", "export", "push")


def test_300_losses_while_a_trainer_commits(tmp_path: Path) -> None:
    """On each disk what a commit reported is there, whole. A twentieth of them is trained on, and ends with the same bits."""
    recorded = record_command("commit", tmp_path / "world")
    losses = draw_losses(recorded.disk, 300, SEED)
    tally = try_losses(recorded, losses, run_every=20)
    assert tally.faults == []
    assert (tally.losses, tally.outcomes[SAME]) == (300, tally.disks)
    assert tally.disks > 100
    assert recorded.count_reported(len(recorded.disk.steps)) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in IN_CI else pytest.param(name, marks=pytest.mark.long) for name in COMMANDS]
)
def test_losses_while_a_command_writes(tmp_path: Path, name: str) -> None:
    num = 6 if COMMANDS[name].has_registry else 30
    tally = try_command(name, tmp_path / "world", num, SEED)
    assert tally.faults == []
    assert tally.outcomes[SAME] > 0  # most losses in a registry leave one of few disks
