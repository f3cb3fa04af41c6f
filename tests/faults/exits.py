"""Processes that leave without a word before a given step of those that change the disk."""

import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from surf2vec.trainer.system import files

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["surf2vec.tasks.upkeep.gc", "surf2vec.tasks.upkeep.repartition"])
NEVER = 10**9


def run_dying(work: Callable[..., Any], *arguments: Any, step: int, syncs: bool = False) -> int | None:
    """Run `work(*arguments)`, a function of a module, in a process that dies before that step; answers 9, or 0 where it ends.

    syncs: each wait for the disk is a step, too.
    """
    process = processes.Process(target=_die, args=(work, arguments, step, syncs))
    process.start()
    process.join()
    return process.exitcode


def start(work: Callable[..., Any], *arguments: Any) -> Any:
    """A process that does `work(*arguments)`, for others to kill."""
    process = processes.Process(target=work, args=arguments)
    process.start()
    return process


def _die(work: Callable[..., Any], arguments: tuple[Any, ...], step: int, syncs: bool) -> None:
    left = step

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)
            return real(*arguments, **named)

        return call

    os.replace, np.save = dying(os.replace), dying(np.save)
    Path.unlink, shutil.rmtree = dying(Path.unlink), dying(shutil.rmtree)  # type: ignore[method-assign]
    if syncs:
        files.sync_path = dying(files.sync_path)
    work(*arguments)
    os._exit(0)
