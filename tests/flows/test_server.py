"""A command's Prefect server: the root's own, closed to others, bounded, and heard when it dies."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.flows.test_cli import call
from tests.flows.test_nightly import FAST, write_logs
from tests.flows.test_stopping import Night, list_ours, wait_for_none

ONE_FLOW = """
import os, sys
from pathlib import Path
from flows.server import Server

server = Server(Path(sys.argv[1]))
from prefect import flow

with server.running():
    print(os.environ["PREFECT_API_URL"], server.process.pid, flush=True)
    flow(lambda: "done", name="one", log_prints=False)()
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_server_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose own Prefect is of another version: what is in their home is not to be touched."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    home = tmp_path / "home"
    (home / ".prefect").mkdir(parents=True)
    (home / ".prefect" / "prefect.db").write_text("of another version")
    (home / ".prefect" / "profiles.toml").write_text(
        'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PREFECT_PROFILE", "mine")


def start_flow(root: Path) -> "subprocess.Popen[str]":
    """A process that runs a flow on a server of its own and keeps both until its stdin is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", ONE_FLOW, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def check_closed(process: "subprocess.Popen[str]") -> None:
    """The server that a process starts is in a session of its own, on loopback, and lets nobody in without the password."""
    assert process.stdout is not None
    url, pid = process.stdout.readline().split()
    assert url.startswith("http://127.0.0.1:")
    assert os.getsid(int(pid)) == int(pid)
    listening = {one.laddr.ip for one in psutil.Process(int(pid)).net_connections() if one.status == "LISTEN"}
    assert listening == {"127.0.0.1"}
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"{url}/admin/version", timeout=60)
    refused.value.close()


@pytest.mark.long
def test_two_servers_of_a_root_side_by_side_with_passwords_and_old_runs_go(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with start_flow(root) as one, start_flow(root) as two:
        for process in (one, two):
            check_closed(process)
    assert (one.returncode, two.returncode) == (0, 0)
    database = root / ".prefect" / "prefect.db"
    with sqlite3.connect(database) as connection:
        assert connection.execute("select count(*) from flow_run").fetchone() == (2,)
        connection.execute("update flow_run set end_time = '2020-01-01 00:00:00.000000'")
    connection.close()
    with start_flow(root) as third:
        third.communicate(timeout=120)
    with sqlite3.connect(database) as connection:
        assert connection.execute("select count(*) from flow_run").fetchone() == (1,)
    connection.close()
    assert (tmp_path / "home" / ".prefect" / "prefect.db").read_text() == "of another version"
    assert [path for path in root.rglob("*") if path.stat().st_mode & 0o077] == []
    wait_for_none(root)


@pytest.mark.long
def test_a_server_that_does_not_start_is_heard_and_starts_once_its_folder_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / ".prefect").mkdir(parents=True)
    (root / ".prefect" / "prefect.db").write_text("no database")
    command = ["run", "--root", str(root), "--json", "--logs", str(write_logs(tmp_path / "logs.csv")), *FAST]
    result = call(*command)
    assert result.returncode == 1
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "server_ended"
    assert "file is not a database" in error["message"]
    assert f"remove {root / '.prefect'}" in error["message"]
    assert "file is not a database" in (root / ".prefect" / "server.log").read_text()
    assert "Traceback" not in result.stderr
    shutil.rmtree(root / ".prefect")
    assert call(*command).returncode == 0


@pytest.mark.slow
def test_a_server_that_dies_ends_the_run_which_commits(tmp_path: Path) -> None:
    root = tmp_path / "root"
    logs = write_logs(tmp_path / "logs.csv")
    night = Night(root, "--logs", str(logs), *FAST, "--set", "train.epochs=10000")
    night.wait_for_line(" of 80,000 micro-partitions")  # something is trained that can be committed
    (server,) = [
        process for process in psutil.Process(night.process.pid).children() if "flows.server" in process.cmdline()
    ]
    server.send_signal(signal.SIGKILL)
    code, printed = night.end(in_seconds=90)  # Prefect tries a server that is gone again
    assert code == 1
    assert json.loads(printed)["error"]["code"] == "server_ended"
    assert "Traceback" not in night.told.read_text()
    assert (root / "store" / "MANIFEST.json").exists()
    assert list_ours(root) == []


def test_what_is_refused_starts_no_server(tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert call("run", "--root", str(root), "--logs", str(tmp_path / "none*.csv")).returncode == 2
    assert not root.exists()
