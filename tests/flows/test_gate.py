"""Three nights by the real command: one that serves, one half delivered that is held back, and a person's word."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import get_client

from flows.config import load_config
from flows.nightly import nightly
from tasks.config import PublishConfig
from tasks.promotion import read_registry
from tasks.run import Root, Run
from tasks.tracking import MlflowClient
from tests.flows.test_cli import COMMAND
from trainer.store import open_pinned

pytestmark = pytest.mark.filterwarnings("default")  # Prefect's and MLflow's own
SETTINGS = ["train.epochs=10", "train.vector_size=16", "train.threads=1", "train.alpha=0.1", "publish.keep_releases=1"]
NUM_USERS, NUM_DAYS = 300, 7


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file a day, in which each user opens a page of the topic that is the user's; the last one is half a day."""
    folder = tmp_path_factory.mktemp("logs")
    rng = np.random.default_rng(3)
    for day in range(1, NUM_DAYS + 1):
        users = range(NUM_USERS if day < NUM_DAYS else NUM_USERS // 2)
        lines = [f"u{user},/page/{4 * rng.integers(0, 15) + user % 4},2026-06-{day:02}T10:00:00Z" for user in users]
        (folder / f"day-{day}.csv").write_text("\n".join(["user_id,url,ts", *lines]) + "\n")
    return folder


def call(root: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """A command of its own process; its exit code and its one object."""
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [*COMMAND, *arguments, "--root", str(root), "--json", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def state_of(root: Path) -> tuple[dict[str, int], list[dict[str, str]]]:
    """Aliases and every version's tags."""
    there = read_registry(Root(root), PublishConfig())
    return there.aliases, [version.tags for version in there.versions]


@pytest.mark.slow
@pytest.mark.usefixtures("_prefect")
def test_a_night_half_delivered_is_held_back_until_a_person_lets_it_through(logs: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    nights = [[str(logs / f"day-{day}.csv") for day in days] for days in (range(1, 6), [6])]
    first, second = (nightly(root=root, logs=files, config=load_config(None, SETTINGS)) for files in nights)
    assert [first["gate"]["verdict"], second["gate"]["verdict"]] == ["first", "passed"]
    assert [first["alias"], second["alias"]] == ["champion", "champion"]
    compared = Run(Root(root), second["run_id"]).story()["steps"]["evaluate"]["comparison"]
    assert (compared["champion"], compared["num_users"] >= 100) == (first["release"], True)

    night = ("run", "--logs", str(logs / "day-7.csv"))
    code, held = call(root, *night)
    assert (code, held["alias"], held["gate"]["held_by"]) == (3, "challenger", ["newest_day_events"])
    assert state_of(root)[0] == {"challenger": 3, "champion": 2}
    assert "held back, 10.0 % on the wrong side" in str(held["gate"]["table"])
    report = Path(held["report"]).read_text()
    assert "Held back by newest_day_events: the champion keeps serving." in report
    assert {path.stem for path in (root / "store" / "pinned").iterdir()} == {
        result["release"] for result in (first, second, held)
    }
    with get_client(sync_client=True) as client:
        artifacts = [one for one in client.read_artifacts() if one.key == "gate"]
    assert any("held back, 10.0 %" in str(artifact.data) for artifact in artifacts)
    metrics = find_metrics(root, held["run_id"])
    assert (metrics["gate_passes"], metrics["gate_newest_day_events"]) == (0.0, 0.5)

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


@pytest.mark.slow
@pytest.mark.usefixtures("_prefect")
def test_other_settings_of_the_gate_judge_the_same_run_again(logs: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    nightly(root=root, logs=[str(logs / f"day-{day}.csv") for day in range(1, 7)], config=load_config(None, SETTINGS))
    night = {"root": root, "logs": [str(logs / "day-7.csv")]}
    held = nightly(**night, config=load_config(None, SETTINGS))
    assert (held["alias"], held["gate"]["verdict"]) == ("challenger", "held")
    passed = nightly(**night, config=load_config(None, [*SETTINGS, "gate.newest_day_events=0.4"]))
    assert (passed["alias"], passed["gate"]["verdict"]) == ("champion", "passed")
    assert (passed["run_id"], passed["model_version"]) == (held["run_id"], held["model_version"])
    assert passed["seconds"]["train"] == held["seconds"]["train"]
    aliases, tags = state_of(root)
    assert (aliases, tags[1]["gate"], "held_by" in tags[1]) == ({"challenger": 2, "champion": 2}, "passed", False)
    assert "Registered as champion, version 2" in Path(passed["report"]).read_text()


def find_metrics(root: Path, run_id: str) -> dict[str, float]:
    client = MlflowClient(Root(root).tracking_uri)
    [found] = client.search_runs(["1"], f"tags.surf2vec_run_id = '{run_id}'")
    return found.data.metrics
