"""A root that was moved works as before; a copy becomes a root of its own, and changes nothing of the first."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlflow
import pandas as pd
import pytest

from surf2vec.arguments import configure
from surf2vec.operations import doctor, gc, pull, rollback
from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry.mlflow_runs import use_uri
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.releases import read_model, read_registry
from surf2vec.tasks.root.identity import read_root_id
from surf2vec.tasks.root.moves import settle_root
from surf2vec.tasks.root.records import GateStep
from surf2vec.tasks.root.run import Root, Run, read_run_records
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.events import ignore_event
from tests.roots.files import bytes_of
from tests.roots.releases import ONE_IN_CI, STORAGES
from tests.roots.serving import champion_vectors, make_served
from tests.tasks.forgetting.test_forget import erase, others

MODEL = "models:/surf2vec-users@champion"


def settle(root: Root, as_copy: bool = False) -> list[str]:
    """The lines that a command says about the move."""
    lines: list[str] = []
    settle_root(root, lambda name, values: lines.append(values["message"]), as_copy)
    return lines


def move(root: Root, folder: Path) -> Root:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return Root(Path(shutil.move(root.path, folder)))


def predict(root: Root, user_id: str = "user-12") -> Any:
    """The vector that MLflow alone serves."""
    with use_uri(root.tracking_uri):
        [vector] = mlflow.pyfunc.load_model(MODEL).predict(pd.DataFrame({"user_id": [user_id]}))["vector"]
    return vector


@pytest.mark.parametrize("storage", ONE_IN_CI)
def test_all_works_in_a_root_that_was_moved(tmp_path: Path, storage: str) -> None:
    publish = STORAGES[storage]
    first = make_served(tmp_path / "first", publish, ("r1", "r2"))
    vector, vectors = predict(first), champion_vectors(first, publish)
    root = move(first, tmp_path / "a disk" / "é")
    assert settle(root) == [
        f"{root.path} was moved here from {first.path}, and the addresses in its registry were changed"
    ]
    assert settle(root) == []
    assert predict(root) == vector
    assert doctor(root.path)["damage"] == 0
    assert pull(MODEL, tmp_path / "out", root.path, on_event=ignore_event)["num_users"] == len(vectors)
    rollback(root=root.path, on_event=ignore_event)
    predict(root)
    told = erase(root, publish=publish)
    assert (told["found"], told["elsewhere"]) == (0, [])
    assert champion_vectors(root, publish).keys() == others(vectors).keys()
    gc(root.path, on_event=ignore_event)
    assert not root.forgetting.exists()
    assert not first.path.exists()


def test_every_command_settles_a_root(tmp_path: Path) -> None:
    root = move(make_served(tmp_path / "first", PublishConfig()), tmp_path / "second")
    configure(None, {}, root.path)
    assert settle(root) == []
    predict(root)


def test_a_killed_call_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_served(tmp_path / "first", PublishConfig())
    copy = Root(Path(shutil.copytree(first.path, tmp_path / "copy")))
    with monkeypatch.context() as patched:
        patched.setattr("surf2vec.tasks.root.moves.remember_registry", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            settle(copy)
    assert read_root_id(copy) == read_root_id(first)
    assert len(settle(copy)) == 1
    assert erase(copy)["found"] == 0
    assert [version.number for version in read_registry(copy, PublishConfig()).versions] == [2]  # 1 was its own


def test_a_copy_has_an_identity_of_its_own_and_leaves_the_first_alone(tmp_path: Path) -> None:
    first = make_served(tmp_path / "first", PublishConfig())
    copy = Root(Path(shutil.copytree(first.path, tmp_path / "copy")))
    before = bytes_of(first.path)
    assert settle(copy)[0].startswith(f"{copy.path} is a copy of {first.path}: it has an identity of its own")
    told = erase(copy)
    assert (told["found"], told["elsewhere"]) == (0, [])
    predict(copy)
    assert bytes_of(first.path) == before
    assert settle(first) == []
    assert read_root_id(copy) not in (None, read_root_id(first))
    assert doctor(first.path)["damage"] == 0


def test_a_copy_on_the_registry_of_the_first_needs_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = PublishConfig(tracking_uri=f"sqlite:///{tmp_path}/shared.db")
    first = make_served(tmp_path / "first", publish)
    copy = Root(Path(shutil.copytree(first.path, tmp_path / "copy")))
    with pytest.raises(
        ConfigError, match=rf"{copy.path} is a copy of {first.path}, and both .* `surf2vec run --as-copy"
    ):
        gc(copy.path, on_event=ignore_event)
    assert doctor(copy.path)["damage"] == 1
    assert len(settle(copy, as_copy=True)) == 1
    [record] = read_run_records(copy)
    assert (bool(record.steps.registered), bool(record.gone_steps.registered)) == (False, True)
    gc(copy.path, publish__keep_releases=1, on_event=ignore_event)
    told = erase(copy, publish=publish)
    assert (told["found"], [one["used_by"] for one in told["elsewhere"]]) == (0, [["models:/surf2vec-users/1"]])
    assert [version.number for version in read_model(publish.tracking_uri or "", publish.model_name).versions] == [1]
    assert set(champion_vectors(first, publish)) >= {"user-11", "user-33"}
    assert not (tmp_path / "mlruns").exists()


def test_the_same_release_of_two_roots_serves_once(tmp_path: Path) -> None:
    publish = PublishConfig(tracking_uri=f"sqlite:///{tmp_path}/shared.db")
    first = make_served(tmp_path / "first", publish)
    copy = Root(Path(shutil.copytree(first.path, tmp_path / "copy")))
    settle(copy, as_copy=True)
    gate = GateStep(digest="", passes=True, verdict="first", champion=None)
    record = Run(copy, "r1").record()
    again = publish_release(copy, publish, record.replace(steps=record.steps.replace(gate)), copy.export("r1"))
    assert again.model_version == 2
    assert read_registry(first, publish).aliases["champion"] == 1


def test_a_registry_that_cannot_be_changed_is_named(tmp_path: Path) -> None:
    root = move(make_served(tmp_path / "first", PublishConfig()), tmp_path / "second")
    root.database.write_text("no database")
    with pytest.raises(ResourceError, match=r"the addresses in .*mlflow\.db cannot be changed"):
        settle(root)
    assert "the registry's database is damaged" in " ".join(one["message"] for one in doctor(root.path)["findings"])
