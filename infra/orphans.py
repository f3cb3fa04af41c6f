"""Ends the servers of a stack that was killed, and of no other."""

import os
from pathlib import Path

import psutil

MARK, PLACE = "SURF2VEC_RUN_PROCESS", "SURF2VEC_RUN_FOLDER"
"""Environment variables of the stack's servers: the id of the process that started them, and its folder."""


def marks(folder: Path) -> dict[str, str]:
    """Return the environment that marks the child processes of this one as working for a folder."""
    return {MARK: str(os.getpid()), PLACE: str(folder.resolve())}


def end_orphans(folder: Path) -> int:
    """End the marked processes of the folder that outlived a stack killed with -9. Returns their number.

    Processes of other folders and other users are not touched.
    """
    num_ended = 0
    for process in psutil.process_iter():
        try:
            environment = process.environ() if process.uids().real == os.getuid() else {}
            owner = environment.get(MARK, "")
            if owner.isdecimal() and environment[PLACE] == str(folder.resolve()) and _is_gone(int(owner), process):
                process.terminate()
                num_ended += 1
        except (psutil.Error, OSError):  # it ended in the meantime
            continue
    return num_ended


def _is_gone(owner: int, process: psutil.Process) -> bool:
    """Return whether the process `owner`, which started this one, has ended; a younger process may have its id by now."""
    try:
        return psutil.Process(owner).create_time() > process.create_time()
    except psutil.NoSuchProcess:
        return True
