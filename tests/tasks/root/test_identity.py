"""Which registry a call goes to, that a root remembers it, and that another one is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry import mlflow_runs, tracking
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.registry.versions import read_tags
from surf2vec.tasks.root.identity import (
    ENVIRONMENT,
    ROOT_TAG,
    claim_registry,
    has_registry,
    is_own_registry,
    is_same_registry,
    list_earlier,
    read_root_id,
    registry_uri,
)
from surf2vec.tasks.root.run import Root, open_root
from surf2vec.trainer.errors import ConfigError, DamageError
from surf2vec.trainer.system.files import read_json, write_json
from tests.roots.releases import make_release, write_run_record

SERVER, OTHER = "http://mlflow.example:5000", "http://other.example"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)


def ask(root: Root, setting: str | None = None) -> str:
    return registry_uri(root, PublishConfig(tracking_uri=setting))


def remember(root: Root, uri: str | None) -> None:
    write_json(root.identity, {"root_id": "me", "tracking_uri": uri})


def tell_registered(root: Root, run_id: str, uri: str, setting: str | None, created_at: str) -> None:
    record: dict[str, Any] = {"run_id": run_id, "created_at": created_at, "steps": {"register": {"tracking_uri": uri}}}
    write_json(root.run(run_id) / "run.json", record | {"config": {"publish": {"tracking_uri": setting}}})


def test_a_root_that_knows_none_takes_the_setting_then_the_environment_then_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(tmp_path)
    assert ask(root) == root.tracking_uri
    assert not has_registry(root, PublishConfig())
    monkeypatch.setenv(ENVIRONMENT, SERVER)
    assert (ask(root), ask(root, OTHER)) == (SERVER, OTHER)
    assert has_registry(root, PublishConfig())
    assert list(tmp_path.iterdir()) == []


def test_a_root_remembers_and_takes_credentials_from_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root(tmp_path)
    root_id = claim_registry(root, PublishConfig(tracking_uri="http://me:hunter2@mlflow.example:5000/"))
    assert read_json(root.identity) == {"root_id": root_id, "tracking_uri": SERVER, "path": str(tmp_path.resolve())}
    assert ask(root) == SERVER
    monkeypatch.setenv(ENVIRONMENT, "http://me:new@mlflow.example:5000")
    assert ask(root) == "http://me:new@mlflow.example:5000"
    assert claim_registry(root, PublishConfig()) == root_id == read_root_id(root)


def test_another_registry_is_refused_with_both_names_and_the_way_to_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(tmp_path)
    remember(root, SERVER)
    with pytest.raises(ConfigError) as refused:
        ask(root, "http://me:hunter2@other.example")
    assert f"publishes to {SERVER}, but publish.tracking_uri names http://***@other.example" in str(refused.value)
    assert f'change "tracking_uri" in {root.identity}' in str(refused.value)
    monkeypatch.setenv(ENVIRONMENT, OTHER)
    assert ask(root, SERVER) == SERVER  # the setting goes first
    with pytest.raises(ConfigError, match=f"but MLFLOW_TRACKING_URI names {OTHER}"):
        ask(root)
    remember(root, OTHER)  # as the message says
    assert (ask(root), read_root_id(root)) == (OTHER, "me")


@pytest.mark.parametrize("name", ["what?", "a%20b"])
def test_a_folder_that_mlflow_would_read_as_another_is_refused_for_a_registry(tmp_path: Path, name: str) -> None:
    root = Root(tmp_path / name)
    with pytest.raises(ConfigError, match="MLflow cannot keep a registry in .*: rename the folder"):
        registry_uri(root, PublishConfig())
    assert registry_uri(root, PublishConfig(tracking_uri="http://mlflow.example")) == "http://mlflow.example"


def test_a_root_that_publishes_to_its_own_keeps_it_where_it_is_moved_to(tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    root.path.mkdir()
    claim_registry(root, PublishConfig(tracking_uri=root.tracking_uri))
    assert read_json(root.identity)["tracking_uri"] is None
    moved = Root(shutil.move(root.path, tmp_path / "moved"))
    assert ask(moved) == moved.tracking_uri
    assert is_own_registry(moved, PublishConfig(tracking_uri=moved.tracking_uri))
    with pytest.raises(ConfigError):
        ask(moved, SERVER)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("http://mlflow", "HTTP://me:pw@MLFLOW:80/"),
        ("https://mlflow/base", "https://mlflow:443/base/"),
        ("sqlite:///{cwd}/a/mlflow.db", "sqlite:///a/mlflow.db"),
        ("sqlite:///{cwd}/a/mlflow.db", "sqlite:///{cwd}/b/../a/mlflow.db"),
        ("postgresql://me:pw@db/mlflow", "postgresql://db/mlflow"),
        ("file://{cwd}/mlruns", "./mlruns"),
    ],
)
def test_one_registry_written_in_two_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_same_registry(first.format(cwd=tmp_path), second.format(cwd=tmp_path))


@pytest.mark.parametrize("other", ["http://mlflow:81", "https://mlflow", "http://mlflow/base", "sqlite:///mlflow"])
def test_two_registries(other: str) -> None:
    assert not is_same_registry("http://mlflow", other)


def test_all_that_is_registered_says_by_which_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, shared = Root(tmp_path / "root"), f"sqlite:///{tmp_path}/shared.db"
    make_release(root)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ENVIRONMENT, "sqlite:///shared.db")
    told = publish_release(root, PublishConfig(), write_run_record(), root.export("r1"))
    root_id = read_root_id(root)
    assert root_id
    assert read_json(root.identity)["tracking_uri"] == shared
    client = tracking.MlflowClient(shared, shared)
    run = client.get_run(told.mlflow_run_id)
    [logged] = client.search_logged_models([run.info.experiment_id])
    [version] = client.search_model_versions()
    assert [one[ROOT_TAG] for one in (run.data.tags, logged.tags, read_tags(version.tags))] == [root_id] * 3
    monkeypatch.delenv(ENVIRONMENT)
    assert read_registry(root, PublishConfig()).serving == "r1"  # a bare command looks there
    assert not (root.path / "mlflow.db").exists()


def test_a_root_that_was_moved_says_where_it_published_before(tmp_path: Path) -> None:
    root = Root(tmp_path)
    tell_registered(root, "r1", SERVER, SERVER, "2026-01-01")
    tell_registered(root, "r2", SERVER, SERVER, "2026-01-02")
    tell_registered(root, "r3", OTHER, OTHER, "2026-01-03")
    remember(root, OTHER)
    assert list_earlier(root, PublishConfig()) == [SERVER]


@pytest.mark.slow
def test_runs_of_one_experiment_are_told_apart_by_root(tmp_path: Path) -> None:
    publish = PublishConfig(tracking_uri=f"sqlite:///{tmp_path}/shared.db")
    roots = [open_root(tmp_path / name) for name in ("ours", "theirs")]
    first, again = ([mlflow_runs.open_run(root, publish, "r1", {}, {}) for root in roots] for _ in range(2))
    assert first == again
    assert first[0] != first[1]


def test_what_is_no_identity_is_named(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.identity.write_text('{"tracking_uri": 5}')
    with pytest.raises(DamageError, match=r"root\.json is not"):
        ask(root)
