"""A night that is complete is found to be, without Prefect; whatever is missing, new or damaged lets the night run."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.night.context import NightContext
from surf2vec.tasks.night.night import make_night
from surf2vec.tasks.night.summary import find_finished, summarize_finished
from surf2vec.tasks.root.run import Root, Run
from tests.flows.test_nightly import FAST, snapshot, write_logs

SETTINGS = [value for value in FAST if "=" in value]
Changes = Callable[[NightContext], Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[NightContext, list[str], dict[str, Any]]:
    """A complete night, its logs, and what it returned."""
    folder = tmp_path_factory.mktemp("summary")
    write_logs(folder / "logs" / "one.csv")
    night = NightContext(Root(folder / "root"), None, None, load_config(None, SETTINGS))
    logs = [f"{folder}/logs/*.csv"]
    return night, logs, make_night(night.root.path, logs, config=night.config)


def test_a_complete_night_is_found_and_returns_the_same(made: tuple[NightContext, list[str], dict[str, Any]]) -> None:
    night, logs, result = made
    before = snapshot(night.root.path)
    for given in (logs, []):
        run = find_finished(night, given)
        assert run is not None
        assert json.loads(json.dumps(summarize_finished(run, night.config.publish))) == json.loads(json.dumps(result))
    assert snapshot(night.root.path) == before


def test_other_calls_are_not_complete(made: tuple[NightContext, list[str], dict[str, Any]]) -> None:
    night, logs, _ = made

    def set_to(*settings: str) -> NightContext:
        return replace(night, config=load_config(None, [*SETTINGS, *settings]))

    assert find_finished(set_to("resources.host_memory=3GB"), logs) is not None
    assert find_finished(set_to("gate.kept=0.5"), logs) is None
    assert find_finished(set_to("train.epochs=3"), logs) is None
    assert find_finished(set_to('publish.stores=["parquet:///nowhere"]'), logs) is None
    assert find_finished(replace(night, is_full=True), logs) is None
    assert find_finished(replace(night, until=date(2026, 1, 1)), logs) is None


@pytest.mark.parametrize("what", ["log", "new log", "events", "export", "copy", "lock", "forgetting"])
def test_what_is_new_gone_or_damaged_lets_the_night_run(
    made: tuple[NightContext, list[str], dict[str, Any]], tmp_path: Path, what: str
) -> None:
    night, logs, result = made
    root = night.root
    with ExitStack() as undo:

        def change(path: Path, content: bytes | None) -> None:
            old, stamp = (path.read_bytes(), path.stat()) if path.exists() else (None, None)

            def restore() -> None:
                path.unlink(missing_ok=True)
                if old is not None and stamp is not None:
                    path.write_bytes(old)
                    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

            undo.callback(restore)
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)

        if what == "new log":
            change(Path(logs[0]).parent / "two.csv", b"user_id,url,ts\n")
        elif what == "events":
            change(next(root.events.rglob("*.parquet")), b"damaged")
        elif what == "export":
            change(Path(result["export_dir"]) / "manifest.json", None)
        elif what == "copy":
            change(next(root.artifacts.rglob("users.faiss")), b"damaged")
        elif what == "forgetting":
            change(root.forgetting, b"{}")
        elif what == "lock":
            held = undo.enter_context(open(root.path / ".lock", "r+b"))
            fcntl.flock(held, fcntl.LOCK_EX)
        else:  # last, as its time of change is another then
            logs = [str(write_logs(tmp_path / "one.csv", 150))]
        assert find_finished(night, logs) is None
    assert Run(root, result["run_id"]).record().steps.report


@pytest.mark.slow
def test_the_command_imports_neither_prefect_nor_mlflow_nor_torch(
    made: tuple[NightContext, list[str], dict[str, Any]],
) -> None:
    night, logs, result = made
    code = """
import json, sys
import surf2vec
import surf2vec.flows.cli
result = surf2vec.run(sys.argv[2], sys.argv[1], config=surf2vec.load_config(None, sys.argv[3:]))
print(json.dumps({"run_id": result["run_id"], "slow": sorted({"prefect", "mlflow", "torch"} & sys.modules.keys())}))
"""
    command = [sys.executable, "-c", code, str(night.root.path), logs[0], *SETTINGS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"run_id": result["run_id"], "slow": []}
    assert "nothing to do" in done.stderr
