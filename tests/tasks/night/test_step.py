"""A step where no flow runs: the retries while a server is away, and no import of Prefect. In a flow: test_artifacts.py."""

import time

import pytest

from surf2vec.tasks.night.step import WAITS, call_plainly, needs_server
from surf2vec.trainer.errors import InputError, UnavailableError
from tests.servers.python import run_python

AWAY = UnavailableError("MLflow did not respond")


@needs_server
def register(failures: list[Exception], doubled: int) -> int:
    """Fails as often as there are failures."""
    if failures:
        raise failures.pop()
    return 2 * doubled


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited, without waiting."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


def test_what_needs_a_server_is_called_again_while_it_is_away(
    waited: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call_plainly(register, [AWAY] * 3, 21) == 42
    assert waited == WAITS[:3]
    assert capsys.readouterr().err.count("MLflow did not respond; trying again, for 10 minutes in all") == 3


def test_it_fails_in_the_end_and_at_once_by_another_error_or_where_no_server_is_needed(waited: list[float]) -> None:
    def ingest(failures: list[Exception], doubled: int) -> int:
        return register(failures, doubled)

    with pytest.raises(UnavailableError):
        call_plainly(register, [AWAY] * 20, 21)
    assert waited == WAITS
    for failing, error in ((register, InputError("no such file")), (ingest, AWAY)):
        failures: list[Exception] = [error, error]
        with pytest.raises(type(error)):
            call_plainly(failing, failures, 21)
        assert len(failures) == 1
    assert waited == WAITS


@pytest.mark.parametrize(
    ("module", "slow"),
    [("surf2vec.tasks.night.night", {"prefect", "ray"}), ("surf2vec.flows.cli", {"prefect", "pydantic", "numpy"})],
)
def test_a_night_needs_no_prefect_and_the_help_nothing_slow(module: str, slow: set[str]) -> None:
    code = f"import sys, {module}; print({slow} & {{*sys.modules}})"
    assert run_python("-c", code) == "set()\n"
