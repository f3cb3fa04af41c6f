"""A dry run names what the night after it then does, and leaves every byte of the root as it was."""

import fcntl
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from surf2vec.flows.cli.show import show_run
from surf2vec.flows.cli.table import held_exit_code
from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.night.context import NightContext
from surf2vec.tasks.night.night import make_night
from surf2vec.tasks.night.preview import dry_run
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import RejectedError, ResourceError
from surf2vec.trainer.events import ignore_event
from tests.data.corpora import planted_histories
from tests.flows.test_nightly import FAST
from tests.roots.ingest import write_day

pytestmark = pytest.mark.slow
SETTINGS = [*(value for value in FAST if "=" in value), "train.epochs=3", "train.vector_size=8", "store.partitions=2"]
HISTORIES = planted_histories(120, length=20)
DAYS = 4


def bytes_of(folder: Path) -> dict[str, tuple[str, int]]:
    """Digest and time of change of everything in a folder, databases and locks too."""
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def deliver(night: NightContext, day: int, every: int = 1) -> list[str]:
    """Write the log of a day, of one in `every` users; return the logs of all days."""
    logs = night.root.path.parent / "logs"
    write_day(logs, day, {user: items[day - 1 :: DAYS] for user, items in list(HISTORIES.items())[::every]})
    return [f"{logs}/*.csv"]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> NightContext:
    """A root with a night of four days."""
    made = NightContext(Root(tmp_path_factory.mktemp("dry") / "root"), None, None, load_config(None, SETTINGS))
    for day in range(1, DAYS + 1):
        logs = deliver(made, day)
    told = dry_run(made, logs, ignore_event)
    assert not made.root.path.exists()
    result = make_night(made.root.path, logs, config=made.config)
    assert_foreseen(told, result)
    assert (told["kind"], told["users_before"], told["predicted"]["seconds"]["others"]) == ("full", None, None)
    assert told["gate"]["at_risk"] == []
    return made


def assert_foreseen(told: dict[str, Any], result: dict[str, Any]) -> None:
    """The numbers of a dry run are those of the night."""
    names = ("users", "items", "tokens", "events", "rejected")
    assert {name: told[name] for name in names} == {name: result[name] for name in names}
    assert told["kind"] == result["night"]["kind"]
    assert told["changed_users"] == result["night"]["changed"]
    for name in ("new_users", "new_items"):
        assert told[name] == result["night"][name]
    later = {row["rule"]: row for row in result["gate"]["table"]}
    known = [row for row in told["gate"]["table"] if row["tonight"]]
    assert known == [later[row["rule"]] for row in known]
    predicted = told["predicted"]
    assert predicted["seconds"]["train"] > 0
    assert 0 < predicted["peak_bytes"] <= predicted["budget_bytes"]
    assert min(predicted["disk_bytes"].values()) > 0


def test_nothing_new_is_nothing_to_do(night: NightContext, capsys: pytest.CaptureFixture[str]) -> None:
    before = bytes_of(night.root.path)
    told = dry_run(night, [], ignore_event)
    assert (told["kind"], told["sources"]) == ("none", {"new": [], "known": DAYS})
    assert "is complete already" in told["message"]
    assert held_exit_code(told) == 0
    show_run(json.loads(json.dumps(told)))
    assert "nothing was written" in capsys.readouterr().out
    assert bytes_of(night.root.path) == before


def test_a_writer_at_work_is_waited_for(night: NightContext) -> None:
    with open(night.root.path / ".lock", "r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ResourceError, match="a writer is at work"):
            dry_run(night, [], ignore_event)


def test_logs_that_a_night_would_refuse_are_refused_in_words_of_the_root(night: NightContext, tmp_path: Path) -> None:
    before = bytes_of(night.root.path.parent)
    log = tmp_path / "bad.csv"
    log.write_text("user_id,url,ts\n" + "u1,/a,yesterday\n" * 50)
    with pytest.raises(RejectedError, match="none is usable") as raised:
        dry_run(night, [str(log)], ignore_event)
    assert ".surf2vec-dry-run" not in str(raised.value)
    assert bytes_of(night.root.path.parent) == before


def test_the_next_night_does_what_was_said(night: NightContext, capsys: pytest.CaptureFixture[str]) -> None:
    """Last, as it adds a night: a tenth of a day arrives, which the gate would hold back."""
    logs = deliver(night, DAYS + 1, every=10)
    before = bytes_of(night.root.path)
    told = dry_run(night, logs, ignore_event)
    assert bytes_of(night.root.path) == before
    assert [path.name for path in night.root.path.parent.iterdir() if path.name.startswith(".")] == []
    assert told["sources"]["new"] == [str(night.root.path.parent / "logs" / "day-05.csv")]
    assert told["gate"]["at_risk"] == ["newest_day_events"]
    assert "hit_at_10" in told["gate"]["unknown"]
    assert held_exit_code(told) == 0
    show_run(json.loads(json.dumps(told)))
    printed = capsys.readouterr().out
    assert "at risk\n    newest_day_events\n" in printed
    assert "unknown\n    hit_at_10\n" in printed
    full = dry_run(replace(night, is_full=True), logs, ignore_event)
    assert (full["kind"], full["full_because"]) == ("full", "--full was given")
    assert full["predicted"]["seconds"]["others"] > 0  # those of the night before
    result = make_night(night.root.path, logs, config=night.config)
    assert_foreseen(told, result)
    assert (told["kind"], result["gate"]["held_by"]) == ("incremental", ["newest_day_events"])
