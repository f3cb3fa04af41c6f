"""Another registry than the root's is refused before anything is written."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from surf2vec.flows.cli import app
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.system.files import write_json


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
