"""Nights whose vectors several workers train: killed in the middle, gone on with, and followed by another night."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from prefect.client.orchestration import get_client

from surf2vec.flows.nightly import nightly
from surf2vec.operations import doctor
from surf2vec.tasks.night.config import load_config
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.store.generation import read_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST
from surf2vec.trainer.store.writer import lock_store
from surf2vec.trainer.system.files import read_json
from tests.flows.test_cli import COMMAND, as_options
from tests.flows.test_night_after_night import FAST, first_days, second_day, vectors_of

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]  # Prefect's and MLflow's own warnings
SETTINGS = [*FAST, "resources.workers=2", "train.epochs=100"]
PATIENCE_SECONDS = 120


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Return once it is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def run(root: Path) -> dict[str, Any]:
    return nightly(root=root, logs=[str(root.parent / "logs" / "*.csv")], config=load_config(None, SETTINGS))


def die_twice(root: Path) -> None:
    """Start a night; kill a worker, and once the workers went on the night's own process; return when all have gone."""
    settings = as_options([*SETTINGS, "train.commit_seconds=0"])
    logs = str(root.parent / "logs" / "*.csv")
    arguments = [*COMMAND, "run", "--root", str(root), "--logs", logs, *settings]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:

        def num_processes() -> int:
            assert process.poll() is None, process.stderr and process.stderr.read()
            path = root / "store" / STORE_MANIFEST
            return read_manifest(path)["num_processes"] if path.exists() else 0

        wait_until(lambda: num_processes() == 1, "the first commit")
        children = psutil.Process(process.pid).children(recursive=True)
        workers = [
            child
            for child in children
            if "--job" in child.cmdline() and "surf2vec.tasks.training.loopback_agent" not in child.cmdline()
        ]
        assert len(workers) == 2
        workers[1].kill()
        wait_until(lambda: num_processes() == 2, "a commit of the workers that were started again")
        with pytest.raises(ResourceError, match="is training on the store"), lock_store(root / "store"):
            pass
        children = psutil.Process(process.pid).children(recursive=True)
        trainers = [child for child in children if child.is_running() and "--job" in child.cmdline()]
        process.kill()
    assert psutil.wait_procs(trainers, timeout=30)[1] == [], "workers do not outlive the night"


@pytest.mark.long
@pytest.mark.usefixtures("_prefect")
def test_killed_workers_and_nights_end_with_a_release_and_the_next_night_goes_on_from_it(tmp_path: Path) -> None:
    root, logs = tmp_path / "root", tmp_path / "logs"
    histories = first_days(logs)
    die_twice(root)
    first = run(root)
    record = read_json(root / "runs" / first["run_id"] / "run.json")["steps"]["train"]
    assert first["alias"] == "champion"
    assert first["metrics"]["hit_at_10"] > 1.2 * first["metrics"]["popularity_hit_at_10"]
    assert record["num_processes"] == 3
    assert len(record["workers"]) == 2
    assert "<h3>Workers</h3>" in Path(first["report"]).read_text()
    with get_client(sync_client=True) as client:
        [artifact] = [artifact for artifact in client.read_artifacts() if artifact.key == "surf2vec-users-workers"]
    assert [row["worker"] for row in json.loads(str(artifact.data))] == ["0", "1"]
    assert str(artifact.description).startswith("2 workers, ")

    changed, new = second_day(logs, histories)
    before, second = vectors_of(first), run(root)
    after = vectors_of(second)
    assert (second["night"]["kind"], second["night"]["base"]) == ("incremental", first["release"])
    assert {user for user in before if np.array_equal(before[user], after[user])} == set(before) - changed
    assert set(after) == set(before) | new
    told = read_json(root / "runs" / second["run_id"] / "run.json")["steps"]["train"]
    assert len(told["workers"]) == 2
    assert told["tokens"] < record["tokens"] / 20, "few users, and the epochs of a night"
    assert [one for one in doctor(root)["findings"] if one["level"] != "ok"] == []
