"""Another registry than the root's, and a Prefect server that is away, are refused before anything is written."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from surf2vec.flows.cli import app
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.system.files import write_json
from tests.flows.test_cli import call


@pytest.mark.parametrize("command", ["run", "backfill"])
def test_a_night_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    write_json(tmp_path / "root.json", {"root_id": "me", "tracking_uri": "http://mlflow.example"})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://other.example")
    told = CliRunner().invoke(app, [command, "--root", str(tmp_path)])
    assert isinstance(told.exception, ConfigError)
    assert "publishes to http://mlflow.example, but MLFLOW_TRACKING_URI names http://other.example" in str(
        told.exception
    )
    assert [path.name for path in tmp_path.iterdir()] == ["root.json"]


def test_a_prefect_server_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("user_id,url,ts\nu1,/p1,1\n")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    told = call("run", "--root", str(tmp_path / "root"), "--logs", str(tmp_path / "day.csv"), "--json")
    error = json.loads(told.stdout)["error"]
    assert (told.returncode, error["code"]) == (1, "unavailable")
    assert (
        "the Prefect server at http://127.0.0.1:9/api, which PREFECT_API_URL names, does not answer" in error["message"]
    )
    assert not (tmp_path / "root").exists()
