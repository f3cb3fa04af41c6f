"""What the runbook says to do when a run failed, did not start, or took too long; it then ends as if nothing had been."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from surf2vec.infra.deploy import apply_automations
from surf2vec.infra.stack import CODE, POOL
from tests.flows.test_nightly import generation, write_logs
from tests.infra.listener import Listener
from tests.infra.nights import Nights, patience, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Prefect's and MLflow's own
POLL_SECONDS = 15
"""A worker that is up has asked for runs within this time."""


def prefect(*arguments: str) -> str:
    """What a command prints that a person gives at a terminal."""
    command = [sys.executable, "-m", "prefect", *arguments]
    return subprocess.run(command, cwd=CODE, check=True, capture_output=True, timeout=120, text=True).stdout


@pytest.mark.long
def test_a_run_whose_cause_is_mended_is_retried(nights: Nights, listener: Listener, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "day.csv"
    run = nights.start_night(tmp_path / "root", log, epochs=2)
    nights.wait_for_state(run, "Failed", seconds=400)
    assert str(run.id) in listener.wait_for("run_failed", nights.name_of(run))["link"]
    wait_until(lambda: not nights.find_processes(run), 60, nights.worker_log)
    *_, last_line = prefect("flow-run", "logs", str(run.id)).splitlines()
    assert "InputError" in last_line, last_line
    write_logs(log)
    nights.retry(run)
    nights.wait_for_state(run, "Completed", seconds=400)


def test_a_run_that_did_not_start_begins_once_there_is_a_worker_its_pool_and_its_queue(
    nights: Nights, listener: Listener, tmp_path: Path
) -> None:
    """One run waits in a queue that is paused, one in the pool's own; the pool is paused, too, and has no worker."""
    prefect("work-queue", "create", "paused", "--pool", POOL)
    prefect("work-queue", "pause", "paused", "--pool", POOL)
    prefect("work-pool", "pause", POOL)
    nights.stack.services["worker"].stop()
    asked = {"root": str(tmp_path), "logs": ["/nowhere/*.csv"]}  # a run that begins fails at once
    in_queue, in_pool = (
        nights.start("nightly/nightly", queue="paused", **asked),
        nights.start("nightly/nightly", **asked),
    )
    assert "PAUSED" in prefect("work-pool", "inspect", POOL)
    for run in (in_queue, in_pool):
        listener.wait_for("not_started", run.name)
    nights.restart("worker")
    time.sleep(POLL_SECONDS)
    assert (nights.state(in_queue), nights.state(in_pool)) == ("Late", "Late")
    prefect("work-pool", "resume", POOL)
    nights.wait_for_state(in_pool, "Failed")
    assert nights.state(in_queue) == "Late"
    prefect("work-queue", "resume", "paused", "--pool", POOL)
    nights.wait_for_state(in_queue, "Failed")


@pytest.mark.long
def test_a_run_that_took_too_long_commits_and_resumes(nights: Nights, listener: Listener, tmp_path: Path) -> None:
    """It stands still, so that it is too slow on any machine."""
    root, log = tmp_path / "root", write_logs(tmp_path / "log.csv")
    apply_automations(listener.url, patience(silent_seconds=600, hours=40 / 3600))
    try:
        run = nights.start_night(root, log, "retrain", epochs=1_000, commit_seconds=1)
        wait_until(lambda: generation(root) > 0, 300, nights.worker_log)
        process = nights.find_processes(run)[-1]
        process.send_signal(signal.SIGSTOP)
        committed = generation(root)
        nights.wait_for_state(run, "Cancelling")
        process.send_signal(signal.SIGCONT)
        nights.wait_for_state(run, "Cancelled")
        assert str(run.id) in listener.wait_for("too_long", str(run.id))["text"]
    finally:
        apply_automations(listener.url, patience())
    wait_until(lambda: not nights.find_processes(run), 60, nights.worker_log)
    assert generation(root) > committed
    nights.retry(run)
    nights.wait_for_state(run, "Completed", seconds=400)
    assert "resumed" in str(nights.artifacts(run)["training"].description)
