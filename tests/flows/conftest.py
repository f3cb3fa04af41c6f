"""What tests of flows share: a Prefect server of their own, which takes seconds to start."""

import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def _server() -> Iterator[str]:
    """The address of a server with an empty database, until the last test of flows has run; a flow runs in the test's process."""
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    with (
        warnings.catch_warnings(),
        prefect_test_harness(server_startup_timeout=180),
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        warnings.simplefilter("ignore")
        yield PREFECT_API_URL.value()


@pytest.fixture
def _prefect(_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server, for the test and the commands that it starts, which are flow runs there."""
    monkeypatch.setenv("PREFECT_API_URL", _server)
