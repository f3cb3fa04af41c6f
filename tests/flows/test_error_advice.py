"""What the runbook says to do after a held night or a bug is done to the letter; a release then serves."""

from pathlib import Path
from unittest import mock

import pytest

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.night import steps
from surf2vec.tasks.registry.promotion import promote
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.root.run import Root, Run
from tests.flows.test_doctor_advice import HISTORIES, deliver, run
from tests.roots.ingest import write_day

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A root to be, of which the first day was delivered."""
    root = Root(tmp_path / "root")
    deliver(root, 1)
    return root


def log_of(root: Root) -> Path:
    """The log of the first day."""
    return root.path.parent / "logs" / "day-01.csv"


def name_champion(root: Root) -> str | None:
    champion = read_registry(root, PublishConfig()).champion
    return champion.tags["release"] if champion else None


def test_a_bug_that_does_not_come_again(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    with mock.patch.object(steps, "export_vectors", side_effect=RuntimeError("a bug")), pytest.raises(RuntimeError):
        run(root)
    monkeypatch.setattr(steps, "train", lambda *arguments: pytest.fail("it was trained again"))
    [record] = [Run(root, path.parent.name).record() for path in root.path.glob("runs/*/run.json")]
    result = run(root)
    assert (result["alias"], result["run_id"]) == ("champion", record.run_id)


def deliver_days(root: Root, *days: int, num_users: int = len(HISTORIES)) -> None:
    """Of each of these users, a page a day."""
    for day in days:
        pages = {user: [items[day % len(items)]] for user, items in list(HISTORIES.items())[:num_users]}
        write_day(log_of(root).parent, day, pages)


def test_a_day_delivered_by_half_is_mended_by_the_next_night(root: Root) -> None:
    deliver_days(root, *range(1, 6))
    first = run(root)
    deliver_days(root, 6, num_users=20)
    held = run(root, "gate.newest_day_events=0.6")
    assert (held["alias"], held["gate"]["held_by"]) == ("challenger", ["newest_day_events"])
    assert name_champion(root) == first["release"]
    deliver_days(root, 6)
    mended = run(root, "gate.newest_day_events=0.6")
    assert (mended["alias"], name_champion(root)) == ("champion", mended["release"])


@pytest.mark.long
def test_a_day_that_never_comes_holds_every_night_until_a_person_promotes_one(root: Root) -> None:
    deliver_days(root, *range(1, 6))
    run(root)
    held = []
    for day in (7, 8):
        deliver_days(root, day)
        held.append(run(root))
    assert [(one["alias"], one["gate"]["held_by"]) for one in held] == [("challenger", ["missing_days"])] * 2
    promote(root, PublishConfig(), None, "the sixth of January was lost")
    assert name_champion(root) == held[1]["release"]
    deliver_days(root, 9)
    assert run(root)["alias"] == "champion"
