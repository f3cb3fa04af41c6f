"""MLflow that is away, broken or half made: what a person reads, and what is left behind."""

import socket
import sqlite3
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry import mlflow_runs, tracking
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import ResourceError, UnavailableError


def test_a_server_that_is_away_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: whoever calls is refused
        away = f"http://me:secret@127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(
            UnavailableError, match=r"MLflow at http://\*\*\*@127.* failed: Connection refused"
        ) as caught:
            tracking.read(away)
    assert "secret" not in str(caught.value)


@contextmanager
def server_that_answers(status: int, password: str = "") -> Iterator[str]:
    """The URL of a server that has nothing but this answer, and for the user `me` with the password an empty registry."""
    let_in = b"Basic " + b64encode(f"me:{password}".encode())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"{}" if self.headers.get("Authorization", "").encode() == let_in else b""
            self.send_response(200 if body else status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "may_pass"), [(500, True), (502, True), (503, True), (429, True), (401, False), (403, False)]
)
def test_only_what_may_pass_is_worth_another_try(status: int, may_pass: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that fails may do better later; one that refuses will refuse again."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with server_that_answers(status) as url, pytest.raises(ResourceError) as caught:
        tracking.read(url)
    assert isinstance(caught.value, UnavailableError) == may_pass, caught.value


def test_the_right_password_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    with server_that_answers(401, "right") as url:
        with pytest.raises(ResourceError, match="401"):
            tracking.read(url)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "right")
        assert tracking.read(url) == ([], {})


def test_a_database_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_runs.mlflow.store.db.utils, "MAX_RETRY_COUNT", 1)
    (tmp_path / "mlflow.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(ResourceError, match="file is not a database"):
        tracking.read(f"sqlite:///{tmp_path}/mlflow.db")


def test_a_database_that_another_program_holds_is_worth_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_runs.mlflow.store.db.utils, "MAX_RETRY_COUNT", 1)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tracking.read(uri)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as other:
        other.execute("begin exclusive")
        with pytest.raises(
            UnavailableError, match=r"database is locked; another program holds it, which `fuser FILE` names"
        ):
            tracking.read(uri)


def test_the_cause_is_named_and_not_where_sqlalchemy_met_it(tmp_path: Path) -> None:
    text = (
        "(raised as a result of Query-invoked autoflush; consider using a session.no_autoflush block)\n"
        "(sqlite3.OperationalError) attempt to write a readonly database\n[SQL: INSERT INTO experiments]"
    )
    with (
        pytest.raises(
            ResourceError, match=r"failed: \(sqlite3.OperationalError\) attempt to write a readonly database;"
        ),
        mlflow_runs.connect("http://127.0.0.1:1"),
    ):
        raise mlflow_runs.MlflowException(text)


@pytest.fixture
def no_template(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's cache without an empty database to copy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache := tmp_path_factory.mktemp("cache")))
    return cache


@pytest.mark.slow
@pytest.mark.usefixtures("no_template")
def test_a_kill_while_the_database_is_made_leaves_nothing(tmp_path: Path) -> None:
    """MLflow makes its tables one by one. A child that dies amid them leaves no mlflow.db; the next call removes the rest."""
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
from surf2vec.tasks.registry import tracking
tracking.read("sqlite:///{tmp_path}/mlflow.db")
"""
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", child], cwd=root, check=False, capture_output=True).returncode == 9
    assert not (tmp_path / "mlflow.db").exists()
    assert len(list(tmp_path.glob(".mlflow.db.*.tmp"))) == 1
    (tmp_path / ".mlflow.db.0a1b2c3d.99.tmp-journal").write_bytes(b"of a transaction that was cut off")
    assert tracking.read(f"sqlite:///{tmp_path}/mlflow.db") == ([], {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mlflow.db.lock", "mlflow.db"]


@pytest.mark.usefixtures("no_template")
def test_a_database_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands that find none at the same moment: neither replaces the one that the other already uses."""
    uri, make = f"sqlite:///{tmp_path}/mlflow.db", mlflow_runs.MlflowClient
    second_makes, first_used = threading.Event(), threading.Event()

    def make_late(place: str, *rest: str) -> object:
        if place != uri and threading.current_thread() is second:
            second_makes.set()
            assert first_used.wait(60)
        elif place != uri:
            second.start()
            second_makes.wait(1)
        return make(place, *rest)

    def create(name: str) -> None:
        with mlflow_runs.connect(uri) as client:
            client.create_experiment(name)

    monkeypatch.setattr(mlflow_runs, "MlflowClient", make_late)
    second = threading.Thread(target=create, args=("second",))
    create("first")
    first_used.set()
    second.join()
    with mlflow_runs.connect(uri) as client:
        assert {"first", "second"} <= {one.name for one in client.search_experiments()}


def test_what_another_root_has_just_made_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look whether there is an experiment, or a model, and its making, another night makes it."""
    uri, root = f"sqlite:///{tmp_path}/mlflow.db", Root(tmp_path)
    first = mlflow_runs.open_run(root, PublishConfig(), "r1", {}, {})
    client = mlflow_runs.MlflowClient
    find = client.get_experiment_by_name
    seen: list[str] = []

    def find_late(self: object, name: str) -> object:
        seen.append(name)
        return None if len(seen) == 1 else find(self, name)

    monkeypatch.setattr(client, "get_experiment_by_name", find_late)
    second = mlflow_runs.open_run(root, PublishConfig(), "r2", {}, {})
    with mlflow_runs.connect(uri) as there:
        assert len({there.get_run(run).info.experiment_id for run in (first, second)}) == 1
        with mlflow_runs.let_others_make():
            there.create_registered_model("users")
            there.create_registered_model("users")
        with pytest.raises(Exception, match="name"), mlflow_runs.let_others_make():
            there.create_registered_model("")


def test_the_next_database_is_a_copy_with_an_experiment_of_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_template: Path
) -> None:
    locations = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with mlflow_runs.connect(f"sqlite:///{tmp_path}/{name}.db") as client:
            [default] = client.search_experiments()
            locations.append((default.experiment_id, default.artifact_location))
    assert locations == [("0", f"{tmp_path}/{name}/mlruns/0") for name in ("first", "second")]
    [template] = (no_template / "surf2vec").iterdir()
    template.write_bytes((tmp_path / "first.db").read_bytes())
    mlflow_runs._make_database(tmp_path / "third.db")
    assert (tmp_path / "third.db").read_bytes() == template.read_bytes()


@pytest.mark.parametrize(
    "damage", [lambda good: b"", lambda good: good[:5000], lambda good: good[:9000] + bytes(60_000) + good[69_000:]]
)
def test_a_damaged_copy_in_the_cache_is_made_anew(
    tmp_path: Path, no_template: Path, damage: Callable[[bytes], bytes]
) -> None:
    mlflow_runs._make_database(tmp_path / "first.db")
    [template] = (no_template / "surf2vec").iterdir()
    good = template.read_bytes()
    template.write_bytes(damage(good))
    assert tracking.read(f"sqlite:///{tmp_path}/second.db") == ([], {})
    assert len(template.read_bytes()) == len(good)


def test_a_cache_that_cannot_be_written_to_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert tracking.read(f"sqlite:///{tmp_path}/mlflow.db") == ([], {})
