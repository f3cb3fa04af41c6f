"""What a killed stack leaves behind is ended by the next of the same folder, and nothing else is."""

import os
import subprocess
import sys
from pathlib import Path

from surf2vec.infra.orphans import MARK, end_orphans, marks

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_only_processes_of_dead_stacks_of_this_folder_are_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    here, there = marks(tmp_path), marks(tmp_path / "another")
    environment = {key: value for key, value in os.environ.items() if key not in here}
    orphan, others, ours, strangers = (
        subprocess.Popen(SLEEP, env=environment | extra)
        for extra in (here | {MARK: str(dead.pid)}, there | {MARK: str(dead.pid)}, here, {})
    )
    try:
        assert end_orphans(tmp_path) == 1
        assert orphan.wait(10) != 0
        assert [process.poll() for process in (others, ours, strangers)] == [None, None, None]
    finally:
        for process in (orphan, others, ours, strangers):
            process.kill()
            process.wait()
