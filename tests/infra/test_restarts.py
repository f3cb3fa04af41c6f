"""Nights outlast restarts of the servers, the worker and the machine: none is lost, and a person is told.

A stack of its own, as everything of it is killed here.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from surf2vec.infra.deploy import apply_automations, deploy
from surf2vec.infra.stack import Stack
from tests.infra.listener import Listener
from tests.infra.nights import Nights, patience, wait_until
from tests.infra.test_outages import prefect

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Prefect's and MLflow's own


@pytest.fixture(scope="module")
def machine(_environment: None, listener: Listener, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nights]:
    """A stack with the deployments, in a folder that PostgreSQL's account may enter."""
    folder = Path(tempfile.mkdtemp(prefix="surf2vec-stack-", dir="/tmp"))
    folder.chmod(0o711)
    stack = Stack(folder, patience_seconds=60)  # a process takes half a minute to start on busy cores
    settings = stack.client_environment
    server = {
        PREFECT_API_URL: settings["PREFECT_API_URL"],
        PREFECT_API_AUTH_STRING: settings["PREFECT_API_AUTH_STRING"],
    }
    try:
        with patch.dict(os.environ, settings), temporary_settings(server), stack.running():
            deploy(tmp_path_factory.mktemp("deployed") / "root", "/nowhere/*.csv", "30 2 * * *", "UTC")
            apply_automations(listener.url, patience())
            yield Nights(stack)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def night(machine: Nights, data_dir: Path, tmp_path: Path) -> Iterator[FlowRun]:
    """A night that trains until its process is killed; it is then removed, so that the next test finds a free slot."""
    run = machine.start_night(tmp_path / "root", data_dir / "wikispeedia_unfinished.parquet", epochs=10_000)
    machine.wait_for_step(run, "train", "Running")
    yield run
    machine.remove(run)


def test_a_night_keeps_its_slot_while_the_server_restarts(machine: Nights, night: FlowRun) -> None:
    """Its process renews the slot's lease every 225 s, and ends if the server does not know the lease."""
    machine.stack.services["prefect"].stop()
    machine.restart("prefect")
    with machine.client as client:
        state = client.read_flow_run(night.id).state
        assert state is not None
        lease = state.state_details.deployment_concurrency_lease_id
        assert lease is not None
        client.renew_concurrency_lease(lease, 300)


def start_empty(machine: Nights, root: Path, deployment: str = "retrain", command: str = "") -> FlowRun:
    """A night without logs, which fails as soon as it begins."""
    return machine.start(f"nightly/{deployment}", command=command, root=str(root), logs=["/nowhere/*.csv"])


def start_pending(machine: Nights, root: Path) -> FlowRun:
    """A night that a worker took and that has not begun: its process sleeps instead."""
    run = start_empty(machine, root, command="sleep 600")
    machine.wait_for_state(run, "Pending", "Submitting")  # two names of one type
    return run


def test_a_run_whose_worker_died_at_pending_ends_and_the_next_begins(
    machine: Nights, listener: Listener, tmp_path: Path
) -> None:
    """Also if the server restarts, which forgets the events before: the alarm comes nevertheless."""
    run = start_pending(machine, tmp_path)
    machine.kill_services("worker")
    machine.stack.services["prefect"].stop()
    machine.restart("prefect")
    machine.restart("worker")
    machine.wait_for_state(run, "Crashed")
    following = start_empty(machine, tmp_path)
    assert "is Crashed" in listener.wait_for("run_failed", run.name, seconds=120)["text"]
    machine.wait_for_state(following, "Failed", seconds=400)
    machine.remove(run)


def test_after_a_reboot_the_next_nights_run_and_a_person_knows(
    machine: Nights, listener: Listener, night: FlowRun, tmp_path: Path
) -> None:
    """All is killed with one run Running and one Pending. The night that ran is retried."""
    pending = start_pending(machine, tmp_path)
    names = list(machine.stack.services)
    machine.kill_services(*names)
    for name in names:
        machine.restart(name)
    rebooted = time.monotonic()
    following = [start_empty(machine, tmp_path, deployment) for deployment in ("nightly", "retrain")]
    for run in (night, pending):
        assert "is Crashed" in listener.wait_for("run_failed", machine.name_of(run), seconds=300)["text"]
    for run in following:
        machine.wait_for_state(run, "Failed", seconds=400)
    assert time.monotonic() - rebooted < 600
    wait_until(lambda: machine.state(night) == "Running", 300, machine.worker_log)  # it is Crashed until it is retried
    machine.remove(pending)


def test_a_slot_that_no_run_has_raises_an_alarm_and_is_freed(
    machine: Nights, listener: Listener, tmp_path: Path
) -> None:
    """By the command of the runbook."""
    with machine.client as client:
        limit = f"deployment:{client.read_deployment_by_name('forget/forget').id}"
    prefect("gcl", "update", limit, "--active-slots", "1")
    run = machine.start("forget/forget", root=str(tmp_path), ids_file=str(tmp_path / "nobody.txt"))
    machine.wait_for_state(run, "AwaitingConcurrencySlot")
    assert str(run.id) in listener.wait_for("no_slot", run.name, seconds=180)["link"]
    prefect("gcl", "update", limit, "--active-slots", "0")
    machine.wait_for_state(run, "Failed")
