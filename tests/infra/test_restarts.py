"""Nights outlast restarts of the servers, the worker and the machine: none is lost, and a person is told.

A stack of its own, as everything of it is killed here.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from surf2vec.infra.deploy import apply_automations, deploy
from surf2vec.infra.stack import Stack
from tests.infra.listener import Listener
from tests.infra.nights import Nights, patience

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Prefect's and MLflow's own


@pytest.fixture(scope="module")
def machine(_environment: None, listener: Listener, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nights]:
    """A stack with the deployments, in a folder that PostgreSQL's account may enter."""
    folder = Path(tempfile.mkdtemp(prefix="surf2vec-stack-", dir="/tmp"))
    folder.chmod(0o711)
    stack = Stack(folder)
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
