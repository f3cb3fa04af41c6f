"""Roots that share a registry: forgetting in one takes away only what that one registered, and names what others still have."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.pull import pull
from surf2vec.tasks.registry.releases import read_model
from surf2vec.tasks.root.run import Root, Run
from tests.roots.releases import read_users
from tests.roots.serving import champion_vectors, register
from tests.roots.training import prepare, train_root
from tests.servers.mlflow import serve_mlflow
from tests.tasks.forgetting.test_forget import GOING, erase, others

WINDOW: list[str] = []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A trained root that has registered nothing."""
    root, window_id = prepare(tmp_path_factory.mktemp("trained") / "root", 4, 60)
    train_root(root, window_id, seed=1)
    WINDOW[:] = [window_id]
    return root


class Shared:
    """Roots of the same users on one registry."""

    def __init__(self, folder: Path, trained: Root, uri: str | None = None) -> None:
        self.folder, self.trained = folder, trained
        self.uri = uri or f"sqlite:///{folder}/shared.db"
        tracking.read(self.uri)

    @property
    def client(self) -> Any:
        return tracking.MlflowClient(self.uri, self.uri)

    def publish(self, name: str, **settings: Any) -> PublishConfig:
        return PublishConfig(tracking_uri=self.uri, experiment=name, model_name=name, **settings)

    def add(self, folder: str, publish: PublishConfig) -> Root:
        """A root whose release r1 is registered."""
        root = Root(self.folder / folder)
        shutil.copytree(self.trained.path, root.path)
        register(root, "r1", WINDOW[0], publish)
        return root

    def versions(self, name: str) -> list[int]:
        return [version.number for version in read_model(self.uri, name).versions]

    def pulled(self, uri: str) -> set[str]:
        """The users of a release, as whoever pulls it gets them."""
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        pull(uri, out, self.uri)
        return set(read_users(out))

    def list_runs(self) -> list[str]:
        with tracking.connect(self.uri) as client:
            experiments = [one.experiment_id for one in client.search_experiments()]
            return [run.info.run_id for run in client.search_runs(experiments, "tags.surf2vec_run_id LIKE '%'")]


@pytest.fixture
def shared(tmp_path: Path, trained: Root, monkeypatch: pytest.MonkeyPatch) -> Shared:
    monkeypatch.chdir(tmp_path)  # artifacts go to ./mlruns
    return Shared(tmp_path, trained)


def test_the_other_roots_champion_stays_and_is_named(shared: Shared) -> None:
    publish, theirs = shared.publish("ours"), shared.publish("theirs")
    root, other = shared.add("a", publish), shared.add("b", theirs)
    vectors = champion_vectors(root, publish)
    told = erase(root, publish=publish)
    assert (told["found"], told["model_version"], shared.versions("ours")) == (0, 2, [2])
    [left] = told["elsewhere"]
    assert (left["found"], left["used_by"]) == (2, ["models:/theirs/1"])
    assert shared.pulled("models:/theirs@champion") == set(vectors)
    assert shared.pulled("models:/ours@champion") == set(others(vectors))
    assert erase(other, publish=theirs)["elsewhere"] == []
    assert erase(root, publish=publish)["elsewhere"] == []
    assert shared.pulled("models:/theirs@champion") == set(others(vectors))


@pytest.mark.long
def test_two_roots_with_one_model_name_and_the_same_release(shared: Shared) -> None:
    publish = shared.publish("users")
    root, other = shared.add("a", publish), shared.add("b", publish)
    assert shared.versions("users") == [1, 2]
    assert len(shared.list_runs()) == 2
    told = erase(root, publish=publish)
    # Of two releases with one name the first keeps serving, here without the users.
    assert (told["model_version"], told["found"], shared.versions("users")) == (3, 0, [2, 3])
    assert [left["used_by"] for left in told["elsewhere"]] == [["models:/users/2"]]
    assert not shared.pulled("models:/users@champion") & {"user-11", "user-33"}
    assert not (root.path / "export" / "r1").exists()
    told = erase(other, publish=publish)
    assert (told["release"], told["found"], told["elsewhere"], shared.versions("users")) == (None, 0, [], [3])


@pytest.mark.long
def test_a_version_that_somebody_made_of_ours_keeps_its_files(shared: Shared) -> None:
    publish = shared.publish("ours")
    root = shared.add("a", publish)
    shared.client.copy_model_version("models:/ours/1", "prod")
    told = erase(root, publish=publish)
    assert (told["found"], shared.versions("ours"), shared.versions("prod")) == (0, [2], [1])
    assert [(left["found"], left["used_by"]) for left in told["elsewhere"]] == [(2, ["models:/prod/1"])]
    assert shared.pulled("models:/prod/1") >= {"user-11", "user-33"}
    shared.client.delete_model_version("prod", "1")
    told = erase(root, publish=publish)
    assert (len(told["removed"]), told["elsewhere"]) == (1, [])


@pytest.mark.slow
def test_all_versions_of_ours_go_whatever_the_models_name(shared: Shared) -> None:
    publish, renamed = (
        shared.publish("ours"),
        PublishConfig(tracking_uri=shared.uri, experiment="ours", model_name="renamed"),
    )
    root = shared.add("a", publish)
    publish_release(root, renamed, Run(root, "r1").record(), root.export("r1"))
    told = erase(root, publish=renamed)
    assert (told["found"], told["elsewhere"]) == (0, [])
    assert (shared.versions("ours"), shared.versions("renamed")) == ([], [2])


@pytest.mark.long
def test_what_another_root_refers_to_is_searched_where_it_is(shared: Shared) -> None:
    publish, theirs = shared.publish("ours"), shared.publish("theirs", copy_below="0")
    root, other = shared.add("a", publish), shared.add("b", theirs)
    told = erase(root, ["user-11"], publish)
    assert [(left["found"], left["used_by"]) for left in told["elsewhere"]] == [(1, ["models:/theirs/1"])]
    shutil.move(other.path, shared.folder / "away")
    told = erase(root, GOING, publish)
    assert told["elsewhere"] == []
    assert any("is not ours and could not be searched" in line for line in told["remains"])


@pytest.mark.slow
def test_a_copied_root_removes_nothing_of_the_first(shared: Shared) -> None:
    publish = PublishConfig()
    root = shared.add("a", publish)
    copied = Root(shared.folder / "copied")
    shutil.copytree(root.path, copied.path, ignore=shutil.ignore_patterns("mlartifacts"))
    before = sorted(root.artifacts.rglob("*"))
    told = erase(copied, publish=publish)
    assert (told["found"], [left["found"] for left in told["elsewhere"]]) == (0, [2])
    assert sorted(root.artifacts.rglob("*")) == before
    assert set(champion_vectors(root, publish)) >= {"user-11", "user-33"}


@pytest.mark.long
def test_on_a_server_that_only_the_root_remembers(
    tmp_path: Path, trained: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Artifacts go through MLflow's server, whose address stands in no setting and not in the environment."""
    with serve_mlflow(tmp_path, f"sqlite:///{tmp_path}/server.db", tmp_path / "artifacts") as server:
        shared = Shared(tmp_path, trained, server.name)
        bare = {name: PublishConfig(model_name=name, experiment=name) for name in "ab"}
        root, other = shared.add("a", shared.publish("a")), shared.add("b", shared.publish("b"))
        shared.client.copy_model_version("models:/b/1", "prod")
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        told = erase(root, publish=bare["a"])
        assert (told["found"], [left["used_by"] for left in told["elsewhere"]]) == (
            0,
            [["models:/b/1", "models:/prod/1"]],
        )
        assert shared.pulled("models:/b@champion") >= {"user-11", "user-33"}
        told = erase(other, publish=bare["b"])
        assert (told["found"], [left["used_by"] for left in told["elsewhere"]]) == (0, [["models:/prod/1"]])
        assert not {"user-11", "user-33"} & shared.pulled("models:/b@champion")
        assert not (root.path / "mlflow.db").exists()
