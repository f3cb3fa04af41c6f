"""Which release serves, on a real registry: promoted, rolled back, called again, cut short, and what of each is kept."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any
from unittest import mock

import pytest
from mlflow import MlflowClient

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry import releases, tracking
from surf2vec.tasks.registry.promotion import (
    choose_aliases,
    lock_aliases,
    pin_release,
    promote,
    read_registry,
    refuse_lost_champion,
    release_pins,
    rollback,
    settle_aliases,
    versions_of,
)
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.releases import add_serving
from surf2vec.tasks.root.identity import remember_registry
from surf2vec.tasks.root.records import GateStep
from surf2vec.tasks.root.run import Root, Run, lock_root
from surf2vec.trainer.errors import DamageError, HeldBackError, InputError, ResourceError, UnavailableError
from surf2vec.trainer.store.writer import lock_store
from tests.roots.nights import FIRST, HELD, PASSED, PUBLISH, make_night


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nights that passed and one that was held."""
    root = Root(tmp_path_factory.mktemp("promotion") / "root")
    root.path.mkdir()
    aliases = [make_night(root, name, gate).alias for name, gate in (("r1", FIRST), ("r2", PASSED), ("r3", HELD))]
    assert aliases == ["champion", "champion", "challenger"]
    return root.path


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Root:
    shutil.copytree(made, tmp_path / "root")
    return Root(tmp_path / "root")


def aliases_of(root: Root) -> dict[str, int]:
    return read_registry(root, PUBLISH).aliases


def tags_of(root: Root, number: int) -> dict[str, str]:
    return next(one.tags for one in read_registry(root, PUBLISH).versions if one.number == number)


def pins_of(root: Root) -> set[str]:
    return {path.stem for path in (root.store / "pinned").glob("*.json")}


@pytest.mark.parametrize(
    ("version", "aliases", "may_serve", "expected"),
    [
        (1, {}, True, ["challenger", "champion"]),
        (1, {}, False, ["challenger", "champion"]),  # somebody has to serve
        (3, {"challenger": 2, "champion": 2}, True, ["challenger", "champion"]),
        (3, {"challenger": 2, "champion": 2}, False, ["challenger"]),
        (3, {"challenger": 4, "champion": 2}, True, ["champion"]),
        (3, {"challenger": 4, "champion": 2}, False, []),
        (2, {"challenger": 3, "champion": 2}, True, []),
        (1, {"challenger": 3, "champion": 2}, True, []),
    ],
)
def test_which_aliases_a_version_takes(
    version: int, aliases: dict[str, int], may_serve: bool, expected: list[str]
) -> None:
    assert choose_aliases(version, aliases, may_serve) == expected


def test_a_held_night_is_the_challenger_and_the_champion_keeps_serving(root: Root) -> None:
    assert aliases_of(root) == {"challenger": 3, "champion": 2}
    assert read_registry(root, PUBLISH).serving == "r2"
    registered, other = read_registry(root, PUBLISH), Root(root.path / "other")
    found = [one for release in ("r1", "r2", "r3") for one in versions_of(root, registered, release)]
    assert [(one.number, "promoted_at" in one.tags) for one in found] == [(1, True), (2, True), (3, False)]
    assert not versions_of(other, registered, "r2")
    assert [tags_of(root, number)["gate"] for number in (1, 2, 3)] == ["first", "passed", "held"]
    assert tags_of(root, 3)["held_by"] == "newest_day_events, users"
    assert tags_of(root, 2)["champion_before"] == "1"
    assert "champion_before" not in tags_of(root, 1)
    assert pins_of(root) == {"r1", "r2", "r3"}  # the rollback's target, the champion, the challenger


def test_a_held_version_needs_a_reason_which_is_kept(root: Root) -> None:
    with pytest.raises(HeldBackError, match=r"version 3 was held back by newest_day_events, users: .* --override"):
        promote(root, PUBLISH, None, None)
    assert aliases_of(root)["champion"] == 2
    lines: list[str] = []
    told = promote(root, PUBLISH, None, "the shop was closed", lambda name, values: lines.append(values["message"]))
    assert (told["model_version"], told["champion_before"], told["changed"]) == (3, 2, True)
    assert aliases_of(root) == {"challenger": 3, "champion": 3}
    expected = {"gate": "overridden", "override_reason": "the shop was closed", "champion_before": "2"}
    assert expected.items() <= tags_of(root, 3).items()
    steps = add_serving(root, PUBLISH, Run(root, "r3").record()).steps
    assert (steps.gate.overridden, steps.registered.alias) == ("the shop was closed", "champion")
    assert "the shop was closed" in lines[0]
    tags = tags_of(root, 3)
    again = promote(root, PUBLISH, None, "another reason")
    assert (again["changed"], again["message"]) == (False, "version 3 serves already")
    assert tags_of(root, 3) == tags


def test_a_rollback_goes_to_the_champion_before_once(root: Root) -> None:
    told = rollback(root, PUBLISH, None)
    assert (told["model_version"], told["champion_before"], told["changed"]) == (1, 2, True)
    assert told["message"] == "version 1 (release r1) serves again instead of 2"
    assert told["seconds"] < 5  # a second of work; the machine may be busy
    assert aliases_of(root) == {"challenger": 3, "champion": 1}
    assert tags_of(root, 1)["rolled_back_from"] == "2"
    assert "rolled_back_at" in tags_of(root, 2)
    again = rollback(root, PUBLISH, None)
    assert not again["changed"]
    assert "version 1 serves already, rolled back from version 2: nothing was changed" in again["message"]
    assert rollback(root, PUBLISH, 1)["changed"] is False
    assert aliases_of(root)["champion"] == 1


def test_a_record_has_the_alias_that_its_version_has_now(root: Root) -> None:
    def list_aliases() -> list[str | None]:
        found = [add_serving(root, PUBLISH, Run(root, release).record()) for release in ("r1", "r2")]
        return [record.steps.registered.alias for record in found]

    assert list_aliases() == [None, "champion"]
    rollback(root, PUBLISH, None)
    assert list_aliases() == ["champion", None]

    with mock.patch.object(releases, "read_registry", side_effect=UnavailableError("MLflow is away")):
        assert list_aliases() == [None, None]


def test_registering_again_does_not_bring_back_what_was_rolled_back(root: Root) -> None:
    rollback(root, PUBLISH, None)
    assert settle_aliases(root, PUBLISH, 2, GateStep(**PASSED)) is None
    record = Run(root, "r2").record()
    assert publish_release(root, PUBLISH, record, root.export("r2")).alias is None
    assert aliases_of(root)["champion"] == 1
    with pytest.raises(HeldBackError, match="version 2 was rolled back at"):
        promote(root, PUBLISH, 2, None)
    assert promote(root, PUBLISH, 2, "it was not its fault")["changed"]
    assert aliases_of(root)["champion"] == 2
    assert not {"rolled_back_at", "rolled_back_from"} & set(tags_of(root, 2))
    assert rollback(root, PUBLISH, None)["model_version"] == 1


def test_what_was_made_of_a_release_that_serves_no_longer_does_not_serve(root: Root) -> None:
    with pytest.raises(HeldBackError, match="version 3 was made of version 1, which serves no longer: run the same"):
        settle_aliases(root, PUBLISH, 3, None, read_registry(root, PUBLISH).get(1))
    assert aliases_of(root)["champion"] == 2


def test_a_verdict_about_another_champion_moves_no_alias(root: Root) -> None:
    rollback(root, PUBLISH, None)
    passed, before = PASSED | {"champion": "r2"}, read_registry(root, PUBLISH)
    with pytest.raises(HeldBackError, match="version 4 was compared with release r2, but release r1 serves now"):
        make_night(root, "r4", passed)
    assert read_registry(root, PUBLISH).aliases == before.aliases
    assert not {"gate", "promoted_at"} & set(tags_of(root, 4))
    with pytest.raises(InputError, match="version 4 never served: see `surf2vec promote --override`"):
        rollback(root, PUBLISH, 4)
    held = {"passes": False, "verdict": "held", "held_by": ["champion"], "champion": "r1"}
    assert make_night(root, "r4", held).alias == "challenger"
    with pytest.raises(HeldBackError, match="version 4 was held back by champion"):
        promote(root, PUBLISH, None, None)
    assert promote(root, PUBLISH, None, "it is good")["model_version"] == 4


def test_the_first_release_of_two_roots_serves_and_the_other_does_not(root: Root) -> None:
    with pytest.raises(HeldBackError, match="version 4 was compared with no champion, but release r2 serves now"):
        make_night(root, "r4", FIRST | {"champion": None})


def test_a_rollback_over_several_versions_leaves_them_all(root: Root) -> None:
    make_night(root, "r4", PASSED | {"champion": "r2"}, PublishConfig(keep_releases=4))
    assert rollback(root, PUBLISH, 1)["changed"]
    assert ["rolled_back_at" in tags_of(root, number) for number in (1, 2, 3, 4)] == [False, True, False, True]
    assert settle_aliases(root, PUBLISH, 2, GateStep(**PASSED, champion="r1")) is None
    assert aliases_of(root)["champion"] == 1


def test_the_next_night_builds_up_from_what_serves_again(root: Root) -> None:
    rollback(root, PUBLISH, None)
    assert make_night(root, "r4", PASSED).alias == "champion"
    assert tags_of(root, 4)["champion_before"] == "1"
    assert pins_of(root) == {"r1", "r4"}  # nobody can return to the held one, nor to the one that was rolled back
    assert rollback(root, PUBLISH, None)["model_version"] == 1


def test_what_was_held_is_no_place_to_roll_back_to(root: Root) -> None:
    with pytest.raises(InputError, match="version 3 was held back and never served"):
        rollback(root, PUBLISH, 3)
    with pytest.raises(InputError, match=r"there is no version 9 in this registry; the newest are: 1, 2, 3"):
        rollback(root, PUBLISH, 9)
    rollback(root, PUBLISH, None)
    tracking.set_tags(root.tracking_uri, read_registry(root, PUBLISH).versions[0], {"rolled_back_from": None})
    with pytest.raises(InputError, match="no version served before version 1"):
        rollback(root, PUBLISH, None)


def test_a_version_of_another_root_serves_only_where_it_was_made(root: Root, tmp_path: Path) -> None:
    """Even if that root has the same files: the one that registered it may have given up its generation."""
    other = Root(shutil.copytree(root.path, tmp_path / "other"))
    remember_registry(other, "another", root.tracking_uri)
    for move in (lambda: promote(other, PUBLISH, 3, "x"), lambda: rollback(other, PUBLISH, None)):
        with pytest.raises(InputError, match=r"version \d is of another root than .*other: give this command there"):
            move()
    assert aliases_of(root)["champion"] == 2


def test_without_anything_to_serve_nothing_moves(root: Root, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no champion"):
        rollback(Root(tmp_path), PUBLISH, None)
    with pytest.raises(InputError, match="no challenger"):
        promote(Root(tmp_path), PUBLISH, None, None)
    (root.store / "pinned" / "r1.json").unlink()
    with pytest.raises(DamageError, match="version 1 cannot serve: its generation is no longer"):
        rollback(root, PUBLISH, None)
    shutil.rmtree(root.export("r3"))
    with pytest.raises(DamageError, match="version 3 cannot serve: its export .* is gone"):
        promote(root, PUBLISH, None, "why not")
    assert aliases_of(root) == {"challenger": 3, "champion": 2}


@pytest.mark.parametrize(
    ("tags", "aliases"),
    [
        ({"gate": "passed", "promoted_at": "now", "held_by": None}, ["champion"]),
        ({"never": None}, ["challenger", "new"]),
    ],
)
def test_a_file_holds_what_mlflow_would_write(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tags: dict[str, str | None], aliases: list[str]
) -> None:
    other = Root(shutil.copytree(root.path, tmp_path / "other"))
    held = read_registry(root, PUBLISH).versions[2]
    releases.move_aliases(root.tracking_uri, held, tags, aliases)
    monkeypatch.setattr(releases, "_write_tables", lambda *arguments: False)
    releases.move_aliases(other.tracking_uri, held, tags, aliases)
    for table in ("model_version_tags", "registered_model_aliases", "model_versions", "registered_models"):
        rows = []
        for path in (root.database, other.database):
            with closing(sqlite3.connect(path)) as database:
                rows.append(sorted(database.execute(f"select * from {table}").fetchall(), key=repr))
        assert rows[0] == rows[1], table


def test_a_version_that_was_deleted_gets_no_alias(root: Root) -> None:
    gone = read_registry(root, PUBLISH).versions[0]
    tracking.delete_version(root.tracking_uri, gone)
    with pytest.raises(ResourceError, match="not found"):
        releases.move_aliases(root.tracking_uri, gone, {"gate": "passed"}, ["champion"])
    assert aliases_of(root) == {"challenger": 3, "champion": 2}


def test_promote_and_rollback_do_without_mlflow(root: Root) -> None:
    """Importing it takes three times as long as all else that they do."""
    call = (
        "import sys; from pathlib import Path; from surf2vec.tasks.config import PublishConfig; "
        "from surf2vec.tasks.registry.promotion import promote, rollback; from surf2vec.tasks.root.run import Root; "
        f"root, publish = Root(Path({str(root.path)!r})), PublishConfig(); rollback(root, publish, None); "
        "promote(root, publish, 2, 'why'); assert 'mlflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", call], check=True)
    assert aliases_of(root)["champion"] == 2


def test_a_rollback_does_not_wait_for_a_night(root: Root) -> None:
    with lock_root(root, "run"), lock_store(root.store):
        assert rollback(root, PUBLISH, None)["changed"]


def test_a_rollback_waits_for_whoever_moves_aliases(root: Root) -> None:
    done: list[dict[str, Any]] = []
    with lock_aliases(root):
        thread = Thread(target=lambda: done.append(rollback(root, PUBLISH, None)))
        thread.start()
        thread.join(0.5)
        assert (thread.is_alive(), done, aliases_of(root)["champion"]) == (True, [], 2)
    thread.join()
    assert aliases_of(root)["champion"] == 1


def test_a_verdict_that_other_settings_changed_counts(root: Root) -> None:
    assert settle_aliases(root, PUBLISH, 3, GateStep(**PASSED, champion="r2")) == "champion"
    held = GateStep(**HELD, champion="r2")
    assert tags_of(root, 3)["gate"] == "passed"
    assert "held_by" not in tags_of(root, 3)
    assert settle_aliases(root, PUBLISH, 3, held) == "champion"  # it serves; only a rollback takes that away
    assert tags_of(root, 3)["gate"] == "passed"


def remove_champion(root: Root) -> None:
    MlflowClient(root.tracking_uri).delete_registered_model_alias(PUBLISH.model_name, "champion")


def test_which_versions_are_needed(root: Root) -> None:
    def needed() -> set[int]:
        return read_registry(root, PUBLISH).needed

    assert needed() == {1, 2, 3}
    remove_champion(root)
    assert needed() == {1, 2, 3}  # a person may let what served last serve again, or then roll back
    promote(root, PUBLISH, 2, None)
    rollback(root, PUBLISH, None)
    assert needed() == {1, 3}
    remove_champion(root)
    assert needed() == {1, 3}


def test_without_the_alias_the_files_of_what_served_last_stay(root: Root) -> None:
    for release in ("r4", "r5"):
        make_night(root, release, PASSED, PublishConfig(keep_releases=5))
    rollback(root, PUBLISH, 2)
    remove_champion(root)
    release_pins(root, PublishConfig(keep_releases=1))
    assert pins_of(root) == {"r2", "r5"}
    with pytest.raises(HeldBackError, match=r"2 \(r2\) served last"):
        refuse_lost_champion(root, read_registry(root, PUBLISH))
    promote(root, PUBLISH, 2, None)
    with pytest.raises(InputError, match="no version served before version 2"):  # r1 has no files any more
        rollback(root, PUBLISH, None)


def test_a_rollback_goes_to_what_served_last_though_its_alias_was_removed(root: Root) -> None:
    make_night(root, "r4", PASSED, PublishConfig(keep_releases=4))
    remove_champion(root)
    promote(root, PUBLISH, 2, None)
    assert rollback(root, PUBLISH, None)["model_version"] == 4


def test_a_release_whose_alias_was_removed_serves_again_without_a_comparison(root: Root) -> None:
    """As by the night of a root that was restored: what it was compared with serves no longer, and need not."""
    remove_champion(root)
    assert settle_aliases(root, PUBLISH, 2, GateStep(**PASSED, champion="r1")) == "champion"
    assert rollback(root, PUBLISH, None)["release"] == "r1"


def test_only_the_generation_of_a_release_is_pinned_under_its_name(root: Root) -> None:
    (root.store / "pinned" / "r1.json").unlink()
    pin_release(root, "r1")  # the store has moved on
    assert "r1" not in pins_of(root)


def test_a_version_that_was_held_and_served_has_few_tags(root: Root) -> None:
    promote(root, PUBLISH, 3, "a holiday")
    rollback(root, PUBLISH, None)
    with tracking.connect(root.tracking_uri) as client:
        stored = [client.get_model_version(PUBLISH.model_name, str(number)).tags for number in (1, 2, 3)]
    assert [len(tags) <= 8 for tags in stored] == [True] * 3
    assert (stored[2]["gate"], tags_of(root, 3)["override_reason"]) == ("overridden", "a holiday")
