"""A root whose registry went away, or has another address by now: the night after what the runbook says to do then."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surf2vec.infra.services import Service
from surf2vec.operations import gc
from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.night import steps
from surf2vec.tasks.registry.releases import read_model
from surf2vec.tasks.root.identity import read_root_id
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import UnavailableError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.system.files import read_json, write_json
from surf2vec.trainer.training.loop import train
from tests.flows.test_doctor_advice import deliver, run
from tests.flows.test_nightly import snapshot
from tests.servers.mlflow import serve_mlflow
from tests.tasks.forgetting.test_forget import erase

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]
MODEL = PublishConfig().model_name


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """A root to be, of which the first day was delivered."""
    monkeypatch.chdir(tmp_path)  # artifacts of a database go to ./mlruns
    root = Root(tmp_path / "root")
    deliver(root, 1)
    return root


def point_to(root: Root, uri: str | None) -> None:
    """Write the new address into root.json."""
    write_json(root.identity, read_json(root.identity) | {"tracking_uri": uri})


def versions(uri: str) -> list[int]:
    return [version.number for version in read_model(uri, MODEL).versions]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """MLflow's server; its address is its name."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with serve_mlflow(tmp_path, f"sqlite:///{tmp_path}/server.db", tmp_path / "artifacts") as server:
        yield server


@pytest.mark.long
def test_what_was_trained_while_the_server_died_is_registered_once_it_is_back(
    root: Root, server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_while_it_dies(*arguments: Any) -> Any:
        server.stop()
        return train(*arguments)

    first = run(root, f"publish.tracking_uri={server.name}")
    deliver(root, 2)
    monkeypatch.setattr(steps, "train", train_while_it_dies)
    with pytest.raises(UnavailableError, match="MLflow at .* failed"):
        run(root)
    monkeypatch.setattr(steps, "train", lambda *arguments: pytest.fail("it was trained again"))
    server.start()
    server.wait()
    second = run(root)
    assert (second["model_version"], second["alias"], second["night"]["base"]) == (2, "champion", first["release"])


@pytest.mark.long
@pytest.mark.parametrize("is_own", [True, False])
def test_data_moved_to_another_registry_goes_on_there(root: Root, tmp_path: Path, is_own: bool) -> None:
    """To another database, or by `null` to the root's own."""
    old, new = tmp_path / "old.db", root.database if is_own else tmp_path / "new.db"
    first = run(root, f"publish.tracking_uri=sqlite:///{old}")
    old.rename(new)
    point_to(root, None if is_own else f"sqlite:///{new}")
    deliver(root, 2)
    second = run(root)
    assert (second["model_version"], second["alias"], second["night"]["base"]) == (2, "champion", first["release"])
    assert not old.exists()


def test_in_an_empty_registry_the_next_night_is_the_first(root: Root, tmp_path: Path) -> None:
    run(root)
    point_to(root, f"sqlite:///{tmp_path}/empty.db")
    deliver(root, 2)
    second = run(root)
    assert (second["model_version"], second["alias"], second["night"]["kind"]) == (1, "champion", "full")
    gc(root.path, publish__keep_releases=1, on_event=ignore_event)
    told = erase(root, ["user-11"])
    assert f"{root.tracking_uri}, where this root published before, was not searched" in told["remains"]
    assert versions(root.tracking_uri) == [1]


def test_a_copy_of_a_root_without_its_identity_lives_beside_the_first(root: Root, tmp_path: Path) -> None:
    first = run(root)
    copy = Root(tmp_path / "beside" / "root")
    shutil.copytree(root.path, copy.path)
    copy.identity.unlink()
    before = snapshot(root.path)
    deliver(copy, 2)
    second = run(copy)
    assert (second["alias"], second["night"]["base"]) == ("champion", first["release"])
    gc(copy.path, publish__keep_releases=1, on_event=ignore_event)
    erase(copy, ["user-11"])
    assert snapshot(root.path) == before
    assert read_root_id(copy) not in (None, read_root_id(root))
    deliver(root, 2)
    assert run(root)["model_version"] == 2
