"""What a run says that it is about to do, and that it is refused before a training where its release could not be registered."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient

from surf2vec.tasks.night import steps
from surf2vec.tasks.night.config import PipelineConfig, load_config
from surf2vec.tasks.night.context import NightContext
from surf2vec.tasks.night.night import make_night
from surf2vec.tasks.night.preview import dry_run
from surf2vec.tasks.night.summary import announce_run
from surf2vec.tasks.registry import mlflow_runs
from surf2vec.tasks.registry.promotion import promote, rollback
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.root.records import RunRecord
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.errors import HeldBackError, ResourceError
from surf2vec.trainer.events import ignore_event
from tests.flows.test_nightly import write_logs
from tests.roots import nights
from tests.roots.nights import PUBLISH

BASE = {"release": "r1", "window_id": "w1", "space_id": "s1"}


@pytest.mark.parametrize(
    ("told", "steps", "base", "because"),
    [
        ("run r2 trains all users: there is no champion", [], None, "there is no champion"),
        ("run r2 continues from release r1: only users whose pages changed are trained", ["ingest"], BASE, None),
        (
            "resuming run r2, of 2026-11-24 03:10; done: corpus, train", ["ingest", "corpus", "train"], None,
            "there is no champion",
        ),
        (
            "nothing to do: run r2, of 2026-11-24 03:10, is complete already; its results follow",
            ["ingest", "corpus", "train", "register", "report"], None, "there is no champion",
        ),
        (
            "nothing to do: run r2, of 2026-11-24 03:10, found no user whose pages changed since release r1",
            ["ingest", "corpus", "unchanged"], BASE, None,
        ),
    ],
)  # fmt: skip
def test_a_run_says_what_is_so_now(
    told: str, steps: list[str], base: dict[str, str] | None, because: str | None
) -> None:
    values = {"unchanged": {"release": "r1"}}
    record = RunRecord.model_validate(
        {
            "run_id": "r2", "created_at": "2026-11-24T03:10:59+00:00", "base": base, "full_because": because,
            "steps": {name: {"digest": ""} | values.get(name, {}) for name in steps},
        }
    )  # fmt: skip
    assert announce_run(record) == told


@pytest.fixture
def night(tmp_path: Path) -> NightContext:
    """A root in which two releases served, the second by now, and the logs of a third."""
    root = Root(tmp_path / "root")
    root.path.mkdir()
    for release, gate in (("r1", nights.FIRST), ("r2", nights.PASSED)):
        nights.make_night(root, release, gate)
    (tmp_path / "day.csv").write_text("user_id,url,ts\n" + "".join(f"u{n % 9},/p{n % 7},{n}\n" for n in range(99)))
    return NightContext(root, None, None, PipelineConfig(publish=PUBLISH))


def begin(night: NightContext) -> None:
    make_night(night.root.path, [str(night.root.path.parent / "*.csv")], config=night.config)


def test_a_night_whose_champion_has_lost_its_alias_waits_for_a_person(night: NightContext) -> None:
    root = night.root
    MlflowClient(root.tracking_uri).delete_registered_model_alias(PUBLISH.model_name, "champion")
    refused = r"removed in the registry.* 2 \(r2\) served last. `surf2vec promote VERSION`"
    with pytest.raises(HeldBackError, match=refused):
        begin(night)
    with pytest.raises(HeldBackError, match=refused):
        dry_run(night, [], ignore_event)
    assert not list(root.path.glob("runs/[!r]*/run.json"))
    promote(root, PUBLISH, 2, None)
    assert read_registry(root, PUBLISH).serving == "r2"
    assert rollback(root, PUBLISH, None)["release"] == "r1"  # it is known still what served before


def test_an_alias_that_is_removed_while_a_night_trains_lets_nothing_serve(
    night: NightContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at the gate, nor where it goes after it: what was compared with nothing waits for a person."""
    client, root = MlflowClient(night.root.tracking_uri), night.root
    nights.make_night(root, "r3", nights.HELD)
    run = Run(root, "r3")
    run.update(config=night.config.model_dump(mode="json"))
    monkeypatch.setattr(steps, "select_window", lambda *_: SimpleNamespace(files=[]))
    client.delete_registered_model_alias(PUBLISH.model_name, "champion")
    refused = "removed in the registry.* `surf2vec promote VERSION`"
    with pytest.raises(HeldBackError, match=refused):
        steps._judge(night, run, ignore_event)
    with pytest.raises(HeldBackError, match=refused):
        nights.make_night(root, "r4", nights.FIRST | {"champion": None})
    assert read_registry(root, PUBLISH).serving is None
    promote(root, PUBLISH, 2, None)
    assert nights.make_night(root, "r4", nights.PASSED).alias == "champion"


def test_a_night_whose_experiment_was_deleted_does_not_train(night: NightContext) -> None:
    uri, experiment = night.root.tracking_uri, PUBLISH.experiment
    [found] = [one for one in MlflowClient(uri).search_experiments() if one.name == experiment]
    assert mlflow_runs.find_deleted(uri, experiment) == []
    MlflowClient(uri).delete_experiment(found.experiment_id)
    with pytest.raises(ResourceError, match=rf"deleted in MLflow .* restore --experiment-id {found.experiment_id}`"):
        begin(night)
    assert not list(night.root.path.glob("runs/[!r]*/run.json"))
    assert mlflow_runs.find_deleted(uri, experiment) == [found.experiment_id]  # as on a server


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_a_projection_of_another_size_begins_a_space_that_a_person_must_promote(tmp_path: Path, full: bool) -> None:
    settings = ["train.epochs=2", "train.vector_size=16", "train.threads=1", "evaluate.max_users=0"]
    logs = [str(tmp_path / "*.csv")]
    write_logs(tmp_path / "a.csv")
    make_night(tmp_path / "root", logs, config=load_config(None, [*settings, "export.pca_dim=8"]))
    (tmp_path / "b.csv").write_text("user_id,url,ts\n" + "".join(f"user-{n},/page/1,2026-01-06\n" for n in range(99)))
    config = load_config(None, [*settings, "export.pca_dim=4", "gate.newest_day_events=0"])
    result = make_night(tmp_path / "root", logs, config=config, full=full)
    assert result["night"]["space_id"] == result["run_id"]
    assert "space" in result["gate"]["held_by"]
