"""A server outlives a run, or a stack, that was killed with -9, where the system does not end it; the next one ends it.

A server of ours carries in its environment the process that started it and the folder it works for, so nobody else's server is
ever touched: no other folder's, and no other user's.
"""

import os
from pathlib import Path

import psutil

MARK = "SURF2VEC_RUN_PROCESS"
PLACE = "SURF2VEC_RUN_FOLDER"


def marks(folder: Path) -> dict[str, str]:
    """The environment of what this process starts to work for a folder."""
    return {MARK: str(os.getpid()), PLACE: str(folder.resolve())}


def end_orphans(folder: Path) -> int:
    """End this user's marked processes of the folder whose run is no more; return how many."""
    num_ended = 0
    for process in psutil.process_iter():
        try:
            if process.uids().real != os.getuid():
                continue
            environment = process.environ()
            owner = environment.get(MARK, "")
            if owner.isdecimal() and environment.get(PLACE) == str(folder.resolve()) and _is_gone(int(owner), process):
                process.terminate()
                num_ended += 1
        except (psutil.Error, OSError):  # gone in the meantime
            continue
    return num_ended


def _is_gone(owner: int, process: psutil.Process) -> bool:
    """Whether the process that started this one has ended; a younger process may have its number by now."""
    try:
        return psutil.Process(owner).create_time() > process.create_time()
    except psutil.NoSuchProcess:
        return True
