"""Prefect's temporary server outlives a run that was killed with -9; the next run ends it.

A server of ours carries the process id of its run in its environment, so nobody else's server is ever touched.
"""

import os

import psutil

MARK = "SURF2VEC_RUN_PROCESS"


def mark_children() -> None:
    """From now on child processes carry our process id."""
    os.environ[MARK] = str(os.getpid())


def end_orphans() -> int:
    """End the marked processes of this user whose run is no more; answers how many."""
    num_ended = 0
    for process in psutil.process_iter():
        try:
            owner = process.environ().get(MARK)
            if owner and owner.isdecimal() and not psutil.pid_exists(int(owner)):
                process.terminate()
                num_ended += 1
        except (psutil.Error, OSError):  # another user's, or gone in the meantime
            continue
    return num_ended
