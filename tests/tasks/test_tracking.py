"""MLflow that is away, broken or half made: what a person reads, and what is left behind."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import tracking
from trainer.errors import ResourceError


def test_a_server_that_is_away_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: whoever calls is refused
        away = f"http://me:secret@127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ResourceError, match=r"MLflow at http://\*\*\*@127.* failed: Connection refused") as caught:
            tracking.list_models(away)
    assert "secret" not in str(caught.value)


def test_a_database_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking.mlflow.store.db.utils, "MAX_RETRY_COUNT", 1)
    (tmp_path / "mlflow.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(ResourceError, match="file is not a database"):
        tracking.list_models(f"sqlite:///{tmp_path}/mlflow.db")


def test_a_kill_while_the_database_is_made_leaves_none(tmp_path: Path) -> None:
    """MLflow makes its tables one by one; a child that dies amid them must not leave a half-made mlflow.db."""
    child = f"""
import os, sqlalchemy
from sqlalchemy import event
from sqlalchemy.engine import Engine
made = []
@event.listens_for(Engine, "after_cursor_execute")
def die(connection, cursor, statement, *rest):
    made.append("CREATE TABLE" in statement)
    if sum(made) == 20:
        os._exit(9)
from tasks import tracking
tracking.list_models("sqlite:///{tmp_path}/mlflow.db")
"""
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", child], cwd=root, check=False, capture_output=True).returncode == 9
    assert not (tmp_path / "mlflow.db").exists()
    assert tracking.list_models(f"sqlite:///{tmp_path}/mlflow.db") == []
