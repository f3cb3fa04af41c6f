"""Three nights by the real command: one that serves, one half delivered that is held back, and a person's word."""

import json
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.night import steps
from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.night.night import make_night
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.promotion import promote, rollback
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.registry.tracking import MlflowClient
from surf2vec.tasks.root.records import EvaluateStep
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.store.writer import open_pinned
from surf2vec.trainer.system.files import read_json
from tests.flows.test_cli import COMMAND, as_options
from tests.roots.ingest import write_log

pytestmark = pytest.mark.filterwarnings("default")  # Prefect's and MLflow's own
SETTINGS = ["train.epochs=10", "train.vector_size=16", "train.threads=1", "train.alpha=0.1", "publish.keep_releases=1"]
LENIENT = ["gate.newest_day_events=0", "gate.hit_at_10_drop=1"]
NUM_USERS, NUM_DAYS = 300, 7


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file a day, in which each user opens a page of the topic that is the user's; the last one is half a day."""
    folder = tmp_path_factory.mktemp("logs")
    rng = np.random.default_rng(3)
    for day in range(1, NUM_DAYS + 1):
        users = range(NUM_USERS if day < NUM_DAYS else NUM_USERS // 2)
        lines = [f"u{user},/page/{4 * rng.integers(0, 15) + user % 4},2026-06-{day:02}T10:00:00Z" for user in users]
        write_log(folder / f"day-{day}.csv", *lines)
    return folder


def call(root: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """A command of its own process; its exit code and its one object."""
    command = [*COMMAND, *arguments, "--root", str(root), "--json", *as_options(SETTINGS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def state_of(root: Path) -> tuple[dict[str, int], list[dict[str, str]]]:
    """Aliases and every version's tags."""
    there = read_registry(Root(root), PublishConfig())
    return there.aliases, [version.tags for version in there.versions]


@pytest.mark.slow
def test_a_night_half_delivered_is_held_back_until_a_person_lets_it_through(logs: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    nights = [[str(logs / f"day-{day}.csv") for day in days] for days in (range(1, 6), [6])]
    first, second = (make_night(root, files, config=load_config(None, SETTINGS)) for files in nights)
    assert [first["gate"]["verdict"], second["gate"]["verdict"]] == ["first", "passed"]
    assert [first["alias"], second["alias"]] == ["champion", "champion"]
    compared = Run(Root(root), second["run_id"]).record().require(EvaluateStep).comparison
    assert compared
    assert (compared.champion, (compared.num_users or 0) >= 100) == (first["release"], True)

    night = ("run", "--logs", str(logs / "day-7.csv"))
    code, held = call(root, *night)
    assert (code, held["alias"], held["gate"]["held_by"]) == (3, "challenger", ["newest_day_events"])
    assert state_of(root)[0] == {"challenger": 3, "champion": 2}
    assert "10.0 % past the limit" in str(held["gate"]["table"])
    report = Path(held["report"]).read_text()
    assert "Held by newest_day_events: the champion keeps serving." in report
    assert {path.stem for path in (root / "store" / "pinned").iterdir()} == {
        result["release"] for result in (first, second, held)
    }
    metrics = find_metrics(root, held["run_id"])
    assert (metrics["gate/passes"], metrics["gate/newest_day_events"]) == (0.0, 0.5)

    before = state_of(root)
    code, again = call(root, *night)
    assert (code, again) == (3, held)
    assert state_of(root) == before

    code, promoted = call(root, "promote", "--override", "a holiday")
    assert (code, promoted["model_version"], promoted["champion_before"]) == (0, 3, 2)
    code, back = call(root, "rollback")
    assert (code, back["model_version"], back["changed"]) == (0, 2, True)
    code, again = call(root, *night)  # the same finished run: it does not bring version 3 back
    assert (code, again["model_version"], again["gate"]["overridden"]) == (0, 3, "a holiday")
    aliases, tags = state_of(root)
    assert aliases == {"challenger": 3, "champion": 2}
    assert [one["gate"] for one in tags] == ["first", "passed", "overridden"]
    assert open_pinned(root / "store", second["release"]).manifest["partitions"] == 8


@pytest.mark.long
def test_other_settings_of_the_gate_judge_the_same_run_again(logs: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    make_night(root, [str(logs / f"day-{day}.csv") for day in range(1, 7)], config=load_config(None, SETTINGS))
    night = {"root": root, "logs": [str(logs / "day-7.csv")]}
    held = make_night(**night, config=load_config(None, SETTINGS))
    assert (held["alias"], held["gate"]["verdict"]) == ("challenger", "held")
    passed = make_night(**night, config=load_config(None, [*SETTINGS, "gate.newest_day_events=0.4"]))
    assert (passed["alias"], passed["gate"]["verdict"]) == ("champion", "passed")
    assert (passed["run_id"], passed["model_version"]) == (held["run_id"], held["model_version"])
    assert passed["seconds"]["train"] == held["seconds"]["train"]
    aliases, tags = state_of(root)
    assert (aliases, tags[1]["gate"], "held_by" in tags[1]) == ({"challenger": 2, "champion": 2}, "passed", False)
    assert "Registered as champion, version 2" in Path(passed["report"]).read_text()


@pytest.mark.long
def test_what_was_rolled_back_comes_back_by_no_night(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The champion moves while a night trains, after it was judged, and while it is registered."""
    root = Root(tmp_path / "root")
    config = load_config(None, [*SETTINGS, "publish.keep_releases=5", *LENIENT])
    publish = config.publish

    def night(*days: int) -> dict[str, Any]:
        return make_night(root.path, [str(logs / f"day-{day}.csv") for day in days], config=config)

    full = {"side_effect": ResourceError("the disk is full")}
    first, second = night(1, 2, 3, 4), night(5)
    assert (second["alias"], second["night"]["base"]) == ("champion", first["release"])
    with mock.patch.object(steps, "train", **full), pytest.raises(ResourceError):
        night(6)
    rollback(root, publish, None)
    with mock.patch.object(tracking, "log_model", **full), pytest.raises(ResourceError):
        night(6)
    [record] = [one for one in records(root) if "gate" in one["steps"] and "register" not in one["steps"]]
    assert (record["base"]["release"], record["steps"]["gate"]["verdict"]) == (first["release"], "passed")

    promote(root, publish, 2, "it was not its fault")
    third = night(6)
    assert (third["run_id"], third["alias"]) == (record["run_id"], "challenger")
    assert (third["gate"]["passes"], third["gate"]["held_by"]) == (False, ["champion"])
    assert "Held by champion" in Path(third["report"]).read_text()
    aliases, tags = state_of(root.path)
    assert (aliases, tags[2]["gate"], tags[2]["held_by"]) == ({"challenger": 3, "champion": 2}, "held", "champion")
    assert night(6) == third

    register = tracking.register

    def register_late(*arguments: Any) -> Any:
        promote(root, publish, 3, "it is good")
        return register(*arguments)

    monkeypatch.setattr(tracking, "register", register_late)
    fourth = night(7)
    assert (fourth["night"]["base"], fourth["alias"]) == (second["release"], "challenger")
    assert fourth["gate"]["held_by"] == ["champion"]
    assert state_of(root.path)[0] == {"challenger": 4, "champion": 3}
    assert promote(root, publish, None, "so is this")["model_version"] == 4


@pytest.mark.slow
def test_a_second_root_does_not_take_the_alias_of_the_first(logs: Path, tmp_path: Path) -> None:
    config = load_config(None, [*SETTINGS, f"publish.tracking_uri=sqlite:///{tmp_path}/mlflow.db"])
    nights = [
        make_night(tmp_path / name, [str(logs / f"day-{day}.csv") for day in days], config=config)
        for name, days in (("one", (1, 2, 3)), ("two", (1, 2, 3, 4)))
    ]
    assert [one["alias"] for one in nights] == ["champion", "challenger"]
    assert [one["gate"]["held_by"] for one in nights] == [[], ["space"]]


def records(root: Root) -> list[dict[str, Any]]:
    return [read_json(path) for path in sorted(root.path.glob("runs/*/run.json"))]


def find_metrics(root: Path, run_id: str) -> dict[str, float]:
    client = MlflowClient(Root(root).tracking_uri)
    [found] = client.search_runs(["1"], f"tags.surf2vec_run_id = '{run_id}'")
    return found.data.metrics
