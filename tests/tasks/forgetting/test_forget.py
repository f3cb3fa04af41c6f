"""Forgotten users are gone from every place, stay gone, and nobody else loses a bit."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from surf2vec.tasks.config import IngestConfig, PublishConfig
from surf2vec.tasks.forgetting import forget as forgetting
from surf2vec.tasks.forgetting.forget import forget
from surf2vec.tasks.ingest.sources import read_catalog
from surf2vec.tasks.queries.infer import Inference, infer
from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.promotion import promote, rollback
from surf2vec.tasks.registry.publish import DESCRIBED
from surf2vec.tasks.registry.pull import pull
from surf2vec.tasks.registry.releases import current_release, read_model
from surf2vec.tasks.root.run import FORGET, Root, Run, lock_root
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.tasks.users.tombstones import read_tombstones
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, InputError, ResourceError
from surf2vec.trainer.store.generation import open_generation, write_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST
from surf2vec.trainer.store.writer import lock_store, open_pinned
from surf2vec.trainer.system.files import read_json, write_json
from tests.faults.exits import run_dying
from tests.roots.files import bytes_of
from tests.roots.ingest import check_events, read_events, write_log
from tests.roots.releases import STORAGES, read_users
from tests.roots.serving import champion_vectors, deliver, make_served
from tests.roots.training import MEMORY_BYTES, make_trained, rows_by_user
from tests.tasks.upkeep.test_gc import put_back

CONFIG = PublishConfig()
GOING = ["user-11", "user-33", "nobody"]


def erase(root: Root, user_ids: list[str] | None = GOING, publish: PublishConfig = CONFIG) -> dict[str, Any]:
    with lock_root(root, FORGET), lock_store(root.store):
        return forget(root, user_ids, publish, MEMORY_BYTES)


def others(rows: dict[str, bytes]) -> dict[str, bytes]:
    return {user_id: row for user_id, row in rows.items() if user_id not in GOING}


def damage(root: Root) -> list[Any]:
    return [found for found in examine(root) if found.level != "ok"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, Path]:
    """A root of two releases, the second serves, and a copy to put in its place again."""
    root = make_served(tmp_path_factory.mktemp("forget") / "root", CONFIG, ("r1", "r2"))
    shutil.copytree(root.path, root.path.with_name("backup"))
    return root, root.path.with_name("backup")


@pytest.fixture
def root(made: tuple[Root, Path]) -> Root:
    put_back(*made)
    return made[0]


@pytest.mark.parametrize("storage", STORAGES)
def test_users_are_gone_everywhere_and_all_others_are_the_same_bits(root: Root, tmp_path: Path, storage: str) -> None:
    publish = STORAGES[storage]
    if storage == "reference":
        root = make_served(tmp_path / "root", publish, ("r1", "r2"))
    rows, vectors, events = rows_by_user(root), champion_vectors(root, publish), read_events(root.path)
    told = erase(root, publish=publish)
    assert (told["found"], told["users_new"], told["model_version"]) == (0, 3, 3)
    assert told["events"] == sum(user_id in GOING for user_id, *_ in events) > 0
    assert rows_by_user(root) == others(rows)
    assert rows_by_user(root, open_pinned(root.store, told["release"])) == others(rows)
    assert champion_vectors(root, publish) == others(vectors)
    assert len(vectors) - len(others(vectors)) == 2
    assert read_events(root.path) == [event for event in events if event[0] not in GOING]
    check_events(root.path)
    assert damage(root) == []
    registered = read_model(root.tracking_uri, publish.model_name)
    assert ([version.number for version in registered.versions], registered.aliases["champion"]) == ([3], 3)
    assert [path.name for path in (root.path / "export").iterdir()] == [told["release"]]
    assert [path.stem for path in (root.store / "pinned").iterdir()] == [told["release"]]
    assert len(list((root.path / "corpus").iterdir())) == 1
    assert similar_users(root, root.export(told["release"]), "user-3", 2)["seen"]
    with pytest.raises(InputError, match="not among the 55 users"):
        similar_users(root, root.export(told["release"]), "user-33", 2)
    again = pull("models:/surf2vec-users@champion", tmp_path / "out", root.tracking_uri)
    assert (again["release"], set(read_users(tmp_path / "out"))) == (told["release"], set(others(vectors)))


def test_the_proof_names_every_place_and_its_rows(root: Root) -> None:
    places = {place["place"]: place["rows"] for place in erase(root)["places"]}
    release = current_release(root, CONFIG)
    assert places["events"] == len(read_events(root.path))
    assert places[f"export/{release}/index/users.faiss"] == places["store/MANIFEST.json"] == 55
    assert {"rejects", "mlartifacts", f"export/{release}", f"store/pinned/{release}.json"} < places.keys()
    assert any(place.startswith("registry: ") and rows == 55 for place, rows in places.items())
    assert not any(b"user-33" in path.read_bytes() for path in root.path.rglob("*") if path.is_file())


def test_a_late_file_brings_nobody_back(root: Root) -> None:
    erase(root)
    before = read_events(root.path)
    told = deliver(root, "late.csv", "user-33,/page/1,2026-01-02T00:00:00Z", "user-3,/page/1,2026-01-02T00:00:00Z")
    assert (told["events"], told["left_out"]) == (1, {"forgotten": 1})
    told = deliver(root, "later.csv", *(f"user-33,/page/{i},2026-01-03T00:00:00Z" for i in range(3)))
    assert (told["events"], told["left_out"], told["num_rejected"]) == (0, {"forgotten": 3}, 0)
    assert len(read_events(root.path)) == len(before) + 1
    assert damage(root) == []


def test_infer_gives_no_vector_and_says_so(root: Root, tmp_path: Path) -> None:
    release, lines = erase(root)["release"], []
    visits = (f"{user},/page/{item},2026-01-02" for user in ("user-33", "eve") for item in (4, 8))
    log = write_log(tmp_path / "new.csv", *visits)
    asked = Inference([str(log)], tmp_path / "out.parquet", IngestConfig(), TrainConfig(threads=1), MEMORY_BYTES)
    told = infer(root, release, asked, lambda name, values: lines.append(values.get("message")))
    assert (told["users"], told["events_forgotten"]) == (1, 2)
    assert "2 events of users who were forgotten are left out: they get no vector" in lines
    write_log(log, "user-33,/page/4,2026-01-02")
    with pytest.raises(InputError, match="nobody gets a vector"):
        infer(root, release, asked)


@pytest.mark.slow
def test_an_older_release_is_pulled_without_them(tmp_path: Path) -> None:
    root = make_served(tmp_path / "root", CONFIG, dtype="int8")
    before = read_users(root.export("r1"))
    shutil.copytree(root.path / "mlartifacts", tmp_path / "kept")
    shutil.copy(root.path / "mlflow.db", tmp_path / "kept.db")
    erase(root)
    shutil.copytree(tmp_path / "kept", root.path / "mlartifacts", dirs_exist_ok=True)  # a registry out of a backup
    uri = f"sqlite:///{tmp_path / 'kept.db'}"
    told = pull("models:/surf2vec-users/1", tmp_path / "out", uri, forgotten=read_tombstones(root))
    assert (told["release"], told["num_users"], told["users_forgotten"]) == ("r1", 55, 2)
    after = read_users(tmp_path / "out")
    assert after.keys() == before.keys() - set(GOING)
    assert all((after[user_id] == before[user_id]).all() for user_id in after)
    assert read_json(tmp_path / "out" / "manifest.json")["users_forgotten"] == 2


def test_the_same_again_changes_nothing(root: Root) -> None:
    first = erase(root)
    before = {name: digest for name, digest in bytes_of(root.path).items() if "mlflow.db" not in name}
    for user_ids in (GOING, None, ["a stranger"]):
        told = erase(root, user_ids)
        assert (told["events"], told["release"], told["removed"], told["found"]) == (0, None, [], 0)
        assert told["model_version"] == first["model_version"]
    after = {name: digest for name, digest in bytes_of(root.path).items() if "mlflow.db" not in name}
    assert {name for name in before | after if before.get(name) != after.get(name)} == {"forgotten.parquet"}


def test_more_users_later(root: Root) -> None:
    rows = rows_by_user(root)
    releases = [erase(root, [user_id])["release"] for user_id in ("user-11", "user-33")]
    assert len(set(releases)) == 2
    assert rows_by_user(root) == others(rows)
    assert sum(entry["left_out"].get("forgotten", 0) for entry in read_catalog(root).entries.values()) > 0
    assert len(read_tombstones(root).days) == 2


def test_a_call_that_was_killed_is_finished_by_one_for_other_users(root: Root) -> None:
    vectors = champion_vectors(root, CONFIG)
    with mock.patch.object(forgetting, "write_report", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        erase(root, ["user-11"])
    told = erase(root, ["user-33"])
    assert (told["found"], champion_vectors(root, CONFIG), damage(root)) == (0, others(vectors), [])


def test_a_call_that_was_killed_before_its_report_writes_it(root: Root) -> None:
    with mock.patch.object(forgetting, "write_report", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        erase(root)
    erase(root)
    assert (Run(root, current_release(root, CONFIG)).folder / "report.html").exists()


def test_what_serves_keeps_its_verdict_and_rollback_target(root: Root) -> None:
    rollback(root, CONFIG, None)
    promote(root, CONFIG, 2, "a holiday")
    erase(root, ["user-11"])
    tags = read_model(root.tracking_uri, CONFIG.model_name).champion.tags
    assert (tags["gate"], tags["override_reason"], tags["champion_before"]) == ("overridden", "a holiday", "1")
    with pytest.raises(InputError, match="no version served before version 3, or it was removed: nothing"):
        rollback(root, CONFIG, None)


def test_a_held_night_is_not_what_serves(root: Root) -> None:
    """The store's generation is a later one than the champion's: both lose the users, and the held release goes."""
    for alias, version in (("champion", 1), ("challenger", 2)):
        tracking.set_alias(root.tracking_uri, CONFIG.model_name, alias, version)
    held, served = rows_by_user(root), rows_by_user(root, open_pinned(root.store, "r1"))
    assert held != served
    told = erase(root)
    assert rows_by_user(root) == others(held)
    assert rows_by_user(root, open_pinned(root.store, told["release"])) == others(served)
    assert damage(root) == []


def test_a_root_that_only_trained_keeps_other_writers_out_until_it_is_done_and_no_id_is_printed(tmp_path: Path) -> None:
    root, lines = make_trained(tmp_path / "root", 2), list[Any]()
    rows = rows_by_user(root)
    write_json(root.forgetting, {})
    with pytest.raises(ResourceError, match="was interrupted: run the same command again"), lock_root(root, "run"):
        pass
    with lock_root(root, FORGET), lock_store(root.store):
        told = forget(root, GOING, CONFIG, MEMORY_BYTES, lambda name, values: lines.append(values))
    assert told["release"] is None
    assert not any(user_id in json.dumps([told, lines]) for user_id in GOING)
    assert rows_by_user(root) == others(rows)
    assert damage(root) == []
    with lock_root(root, "run"):
        pass


def test_a_champion_that_is_only_in_the_registry(root: Root) -> None:
    """As after a restore of another release: neither its export nor its record is in the root."""
    vectors, before = champion_vectors(root, CONFIG), read_model(root.tracking_uri, CONFIG.model_name).champion.tags
    shutil.rmtree(root.export("r2"))
    shutil.rmtree(Run(root, "r2").folder)
    erase(root)
    assert champion_vectors(root, CONFIG) == others(vectors)
    tags = read_model(root.tracking_uri, CONFIG.model_name).champion.tags
    assert {name: tags.get(name) for name in DESCRIBED} == {name: before[name] for name in DESCRIBED}
    assert damage(root) == []


def test_everybody_cannot_be_forgotten_and_a_training_must_end_first(root: Root) -> None:
    with pytest.raises(InputError, match="these are all 57 users of release r2"):
        erase(root, list(rows_by_user(root)))
    write_manifest(root.store, STORE_MANIFEST, open_generation(root.store).manifest | {"stage": "training"})
    with pytest.raises(ConfigError, match="holds a training that has not ended"):
        erase(root)
    assert not read_tombstones(root)


def work(path: Path) -> None:
    erase(Root(path))


@pytest.mark.slow
def test_forget_that_dies_at_any_step_is_finished_by_the_same_call(tmp_path: Path) -> None:
    made = make_trained(tmp_path / "made", 2, num_users=40)
    rows, events = rows_by_user(made), read_events(made.path)
    deaths = 0
    for step in range(1, 200):
        root = Root(tmp_path / "root")
        shutil.rmtree(root.path, ignore_errors=True)
        shutil.copytree(made.path, root.path)
        code = run_dying(work, root.path, step=step)
        if code:
            assert rows_by_user(root) in (rows, others(rows))  # whole before and after, and never half
        assert erase(root, None if step % 2 and read_tombstones(root) else GOING)["found"] == 0
        assert rows_by_user(root) == others(rows)
        assert read_events(root.path) == [event for event in events if event[0] not in GOING]
        assert damage(root) == []
        deaths += code == 9
        if code == 0:
            break
    assert deaths >= 20


@pytest.mark.long
def test_a_registered_release_survives_deaths(made: tuple[Root, Path]) -> None:
    root = made[0]
    for step in range(24, 60, 7):
        put_back(*made)
        vectors = others(champion_vectors(root, CONFIG))
        code = run_dying(work, root.path, step=step)
        assert others(champion_vectors(root, CONFIG)) == vectors  # somebody always serves
        assert erase(root)["found"] == 0
        assert champion_vectors(root, CONFIG) == vectors
        assert damage(root) == []
        if code == 0:
            break
    assert step > 30
