"""Commands that move aliases and are killed: the same command completes them, and no other does so unchecked."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from surf2vec.tasks.registry import mlflow_runs, promotion, releases, tracking
from surf2vec.tasks.registry.promotion import promote, read_registry, rollback, settle_aliases
from surf2vec.tasks.root.records import GateStep
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import HeldBackError
from tests.faults.exits import start
from tests.roots.nights import FIRST, PASSED, PUBLISH, make_night
from tests.tasks.registry.test_promotion import aliases_of, made, root, tags_of

__all__ = ["made", "root"]  # fixtures


def told_of(root: Root) -> Any:
    """What the registry says, without times: aliases and tags."""
    timed = ("promoted_at", "rolled_back_at")
    tags = {
        number: {name: name in timed or value for name, value in tags_of(root, number).items()} for number in (1, 2, 3)
    }
    return aliases_of(root), tags


WRITES = ["set_model_version_tag", "delete_model_version_tag", "set_registered_model_alias"]


@pytest.mark.parametrize(
    ("before", "move"),
    [
        (lambda root: None, lambda root: rollback(root, PUBLISH, None)),
        (lambda root: None, lambda root: promote(root, PUBLISH, 3, "x")),
        (lambda root: rollback(root, PUBLISH, None), lambda root: promote(root, PUBLISH, 2, "x")),
        (lambda root: None, lambda root: settle_aliases(root, PUBLISH, 3, GateStep(**PASSED, champion="r2"))),
    ],
    ids=["rollback", "promote the held one", "promote what was rolled back", "a night with other settings"],
)
def test_a_call_cut_off_at_any_write_is_completed(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Any, move: Any
) -> None:
    """On a server, where each write stands alone. The reason why a version was promoted is there as without the interruption."""
    left = 0
    monkeypatch.setattr(releases, "_write_tables", lambda *arguments: False)

    def stop_later(write: Any) -> Any:
        def stop(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return write(*arguments)

        return stop

    for name in WRITES:
        monkeypatch.setattr(mlflow_runs.MlflowClient, name, stop_later(getattr(mlflow_runs.MlflowClient, name)))
    before(root)
    undisturbed, left = Root(shutil.copytree(root.path, tmp_path / "undisturbed")), 0
    move(undisturbed)
    for cut in range(1, 1 - left):
        again, left = Root(shutil.copytree(root.path, tmp_path / f"again-{cut}")), cut
        with pytest.raises(KeyboardInterrupt):
            move(again)
        for _ in range(2):
            move(again)
            assert told_of(again) == told_of(undisturbed), f"cut off at write {cut}"
    assert cut >= 3


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A server, where a process is killed before it moves an alias."""
    monkeypatch.setattr(releases, "_write_tables", lambda *arguments: False)
    with monkeypatch.context() as patch:
        patch.setattr(tracking, "set_alias", mock.Mock(side_effect=KeyboardInterrupt))
        yield patch


def test_the_first_night_cut_off_before_its_alias_is_completed_and_no_other_serves_unchecked(
    tmp_path: Path, cut_off: pytest.MonkeyPatch
) -> None:
    root = Root(tmp_path / "root")
    root.path.mkdir()
    with pytest.raises(KeyboardInterrupt):
        make_night(root, "r1", FIRST)
    cut_off.undo()
    with pytest.raises(HeldBackError, match="1 .r1. served last"):
        make_night(root, "r2", FIRST)
    assert make_night(root, "r1", FIRST).alias == "champion"


def test_what_a_person_promotes_after_a_night_was_cut_off_stays(root: Root, cut_off: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_night(root, "r4", PASSED | {"champion": "r2"})
    cut_off.undo()
    with mock.patch.object(promotion, "_now", return_value="2100-01-01T00:00:00+00:00"):
        promote(root, PUBLISH, 1, None)
    make_night(root, "r4", PASSED | {"champion": "r2"})
    assert aliases_of(root) == {"challenger": 3, "champion": 1}


def register_and_die(path: Path) -> None:
    """A night whose process leaves when its version is there, and before it has tags of the gate and an alias."""
    releases.store_tags = lambda *arguments: os._exit(9)
    make_night(Root(path), "r4", PASSED)


@pytest.mark.slow
def test_a_night_killed_between_registering_and_the_alias_is_completed(root: Root) -> None:
    process = start(register_and_die, root.path)
    process.join()
    assert process.exitcode == 9
    assert len(read_registry(root, PUBLISH).versions) == 4
    assert aliases_of(root) == {"challenger": 3, "champion": 2}
    assert make_night(root, "r4", PASSED).alias == "champion"
    assert (tags_of(root, 4)["gate"], tags_of(root, 4)["champion_before"]) == ("passed", "2")
    assert len(read_registry(root, PUBLISH).versions) == 4
