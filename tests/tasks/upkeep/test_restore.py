"""A root out of a release: the same bits, and enough of the corpus for the next night."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.operations import restore
from surf2vec.tasks.activity.count import read_activity
from surf2vec.tasks.config import IngestConfig, PublishConfig
from surf2vec.tasks.forgetting.forget import forget
from surf2vec.tasks.queries.infer import Inference, infer
from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.registry import mlflow_runs
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.pull import pull
from surf2vec.tasks.registry.releases import read_model
from surf2vec.tasks.root.identity import read_root_id, registry_uri
from surf2vec.tasks.root.run import Root, Run, lock_root
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.tasks.upkeep.repartition import repartition
from surf2vec.tasks.upkeep.restore import restore_run_record
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, DamageError, InputError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.store.writer import open_pinned
from surf2vec.trainer.system.files import read_json, write_json
from tests.faults.exits import run_dying
from tests.roots.files import bytes_of, flip
from tests.roots.ingest import write_log
from tests.roots.releases import STORAGES, make_release, write_run_record
from tests.roots.serving import deliver, make_served
from tests.roots.store_contents import read_item_table
from tests.roots.training import MEMORY_BYTES, rows_by_user

URI = "models:/surf2vec-users@champion"


@pytest.fixture(scope="module", params=STORAGES)
def lost(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Root:
    """A root of which the registry, and by reference the exports, outlive the machine."""
    return make_served(tmp_path_factory.mktemp("lost") / "root", STORAGES[request.param], ("r1",))


def make_again(lost: Root, path: Path) -> tuple[Root, dict[str, Any]]:
    told = restore(URI, path, lost.tracking_uri, on_event=ignore_event)
    return Root(path), told


@pytest.mark.slow
def test_vectors_optimizer_state_and_rows_are_the_same(lost: Root, tmp_path: Path) -> None:
    root, told = make_again(lost, tmp_path / "new")
    assert (told["release"], told["model_version"], told["users"]) == ("r1", 1, 57)
    assert read_root_id(root) == read_root_id(lost) is not None
    assert registry_uri(root, PublishConfig()) == lost.tracking_uri  # it goes on publishing there
    assert rows_by_user(root) == rows_by_user(lost)
    assert open_generation(root.store).manifest == open_pinned(root.store, "r1").manifest
    assert open_generation(root.store).manifest == open_generation(lost.store).manifest
    before, after = read_item_table(open_generation(lost.store)), read_item_table(open_generation(root.store))
    assert before.outputs.vectors.tobytes() == after.outputs.vectors.tobytes()
    assert before.outputs.squares.tobytes() == after.outputs.squares.tobytes()
    old, new = (open_corpus(one.corpus(told["window_id"])) for one in (lost, root))
    for partition in range(old.num_partitions):
        assert new.read_ids(partition).to_pylist() == old.read_ids(partition).to_pylist()
        assert (new.read(partition).hashes == old.read(partition).hashes).all()
        assert len(new.read(partition).tokens) == 0
        assert read_activity(new, partition).tobytes() == read_activity(old, partition).tobytes()
    assert (new.count_training_tokens() == old.count_training_tokens()).all()
    assert (new.folder / "vocabulary.parquet").read_bytes() == (old.folder / "vocabulary.parquet").read_bytes()
    assert new.manifest["made_from"] == old.manifest["made_from"]
    assert [found for found in examine(root) if found.level != "ok"] == []
    assert Run(root, "r1").record().run_id == "r1"


def test_the_root_works_on(lost: Root, tmp_path: Path) -> None:
    root, _ = make_again(lost, tmp_path / "new")
    assert deliver(root, "a.csv", *(f"user-3,/page/{i},2026-01-05T00:00:00Z" for i in range(3)))["events"] == 3
    assert read_json(root.sources)["partitions"] == 4
    assert similar_users(root, root.export("r1"), "user-3", 2)["neighbours"]
    log = write_log(tmp_path / "new.csv", *(f"eve,/page/{i},2026-01-02" for i in (4, 8)))
    vectors = []
    for one in (lost, root):
        asked = Inference([str(log)], tmp_path / "out.parquet", IngestConfig(), TrainConfig(threads=1), MEMORY_BYTES)
        infer(one, "r1", asked)
        vectors.append((tmp_path / "out.parquet").read_bytes())
    assert vectors[0] == vectors[1]
    with lock_root(root, "test"):
        assert repartition(root, 8, MEMORY_BYTES, 1)["changed"]
    assert rows_by_user(root) == rows_by_user(lost)


def test_the_same_again_changes_nothing_and_killed_it_goes_on(lost: Root, tmp_path: Path) -> None:
    root, _ = make_again(lost, tmp_path / "new")
    before = bytes_of(root.path)
    make_again(lost, root.path)
    assert bytes_of(root.path) == before


def work(path: Path, uri: str) -> None:
    restore(URI, path, uri, on_event=ignore_event)


@pytest.mark.slow
def test_restore_that_dies_is_finished_by_the_same_call(lost: Root, tmp_path: Path) -> None:
    rows = rows_by_user(lost)
    deaths = 0
    for step in range(8, 200, 9):
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        code = run_dying(work, tmp_path / "new", lost.tracking_uri, step=step)
        root, _ = make_again(lost, tmp_path / "new")
        assert rows_by_user(root) == rows
        assert [found for found in examine(root) if found.level == "damage"] == []
        deaths += code == 9
        if code == 0:
            break
    assert deaths >= 3


def test_another_store_or_events_are_not_replaced(lost: Root, tmp_path: Path) -> None:
    other = make_served(tmp_path / "other", PublishConfig(), ("r9",), num_users=30)
    before = bytes_of(other.path)
    with pytest.raises(ConfigError, match="has events of its own"):
        make_again(lost, other.path)
    (other.path / "sources.json").rename(tmp_path / "kept.json")
    with pytest.raises(ConfigError, match="has the vectors of another release"):
        make_again(lost, other.path)
    (tmp_path / "kept.json").rename(other.path / "sources.json")
    assert bytes_of(other.path) == before


def test_a_release_without_state_is_refused(tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    publish_release(root, PublishConfig(), write_run_record(), make_release(root))
    with pytest.raises(InputError, match="carries no state"):
        make_again(root, tmp_path / "new")
    assert not (tmp_path / "new" / "sources.json").exists()


def test_a_pull_leaves_the_state_out(lost: Root, tmp_path: Path) -> None:
    pull(URI, tmp_path / "out", lost.tracking_uri)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "index",
        "item_vectors",
        "manifest.json",
        "user_vectors",
    }


@pytest.mark.parametrize("storage", STORAGES)
def test_the_key_of_pseudonyms_is_checked_but_its_fingerprint_does_not_leave_the_root(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_KEY", "a key of 16 bytes")
    keyed = IngestConfig(user_key_env="USER_KEY")
    lost = make_served(tmp_path / "lost", STORAGES[storage], settings=keyed)
    known = read_json(lost.sources)["user_key_fingerprint"]
    places = [
        lost.database,
        *(path for name in ("mlartifacts", "export", "runs") for path in (lost.path / name).rglob("*")),
    ]
    assert any(b"USER_KEY" in path.read_bytes() for path in places if path.is_file())
    assert not any(known.encode() in path.read_bytes() for path in places if path.is_file())
    for key, message in (
        (None, "USER_KEY, which is not set"),
        ("another key of 16 bytes", "not that of the pseudonyms"),
    ):
        monkeypatch.setenv("USER_KEY", key) if key else monkeypatch.delenv("USER_KEY")
        with pytest.raises(ConfigError, match=message):
            make_again(lost, tmp_path / "new")
    monkeypatch.setenv("USER_KEY", "a key of 16 bytes")
    root, told = make_again(lost, tmp_path / "new")
    assert read_json(root.sources)["user_key_fingerprint"] == known
    manifests = [open_corpus(one.corpus(told["window_id"])).manifest["made_from"] for one in (lost, root)]
    assert manifests[0] == manifests[1]


def test_a_forgotten_user_is_not_in_the_state(lost: Root, tmp_path: Path) -> None:
    """Also damage: afterwards the module's root is of no more use, so both are looked at here."""
    publish = PublishConfig(**read_json(lost.run("r1") / "run.json")["config"]["publish"])
    forget(lost, ["user-11"], publish, MEMORY_BYTES)
    root, told = make_again(lost, tmp_path / "new")
    assert told["model_version"] == 2
    assert rows_by_user(root) == rows_by_user(lost)
    assert "user-11" not in rows_by_user(root)
    version = read_model(lost.tracking_uri, "surf2vec-users").versions[-1]
    assert version.tags["state_sha256"]
    path = next(path for path in sorted(lost.path.rglob("state/store/users-*")) if path.stat().st_size)
    flip(path)
    with pytest.raises(DamageError, match=path.name):
        make_again(lost, tmp_path / "newer")
    assert not (tmp_path / "newer" / "sources.json").exists()
    assert np.isfinite(open_generation(root.store).read_users(0)).all()


def test_a_lost_record_is_looked_for_where_the_root_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root(tmp_path / "root")
    asked: list[str] = []
    write_json(root.identity, {"root_id": "me", "tracking_uri": "http://mlflow.example"})
    write_json(root.export("r1") / "manifest.json", {"release": "r1"})

    def read_document(uri: str, *names: str) -> None:
        asked.append(uri)
        raise DamageError("it is not there")

    monkeypatch.setattr(mlflow_runs, "read_document", read_document)
    assert not restore_run_record(root, PublishConfig(), "r1")
    assert asked == ["http://mlflow.example"]
