"""What a killed run leaves behind is ended by the next, and nothing else is."""

import os
import subprocess
import sys

from flows.orphans import MARK, end_orphans

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_only_processes_of_dead_runs_are_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    environment = {key: value for key, value in os.environ.items() if key != MARK}
    orphan, ours, strangers = (
        subprocess.Popen(SLEEP, env=environment | extra)
        for extra in ({MARK: str(dead.pid)}, {MARK: str(os.getpid())}, {})
    )
    try:
        assert end_orphans() >= 1
        assert orphan.wait(10) != 0
        assert ours.poll() is None
        assert strangers.poll() is None
    finally:
        for process in (orphan, ours, strangers):
            process.kill()
            process.wait()
