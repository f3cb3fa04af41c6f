"""`python -m tests.faults.faulty_trainer FAULT ARGUMENTS...`: `python -m surf2vec.trainer ARGUMENTS...` under a fault.

FAULT is one of

    none            none
    steps           for each number n on standard input one trainer, which leaves by os._exit(9) before the nth thing that it
                    does to the disk; returns its exit code on standard output
    told            says on standard error when a commit begins and when it has ended, so that a kill can be aimed
    clock           each look at the clock finds it an hour earlier than the last
    unprivileged    root, too, writes only where the permissions let it

All but the last count what the process itself holds as PROCESS_BYTES: the same budget then makes the same plan each time.
"""

import contextlib
import ctypes
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import surf2vec.trainer.__main__
import surf2vec.trainer.store.writer
import surf2vec.trainer.training.preparation
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import pick_kernel
from surf2vec.trainer.training.slots import Slots
from surf2vec.trainer.training.warm_up import warm_up

SAYS_BEGIN, SAYS_END = "a commit begins", "a commit has ended"
PROCESS_BYTES = 150 * 10**6
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2


def die_at_step(number: int) -> None:
    """From now on this process ends before its nth write, fsync, rename or removal; of a file, half is then written."""
    left = itertools.count(number - 1, -1)

    def dying(real: Callable[..., Any], written: Callable[..., Path] | None = None) -> Callable[..., Any]:
        """`real`, or at its turn the end; `written` finds among its arguments the file that it writes."""

        def step(*arguments: Any, **named: Any) -> Any:
            if next(left) == 0:
                if written:
                    real(*arguments, **named)
                    path = written(*arguments)
                    os.truncate(path, path.stat().st_size // 2)
                os._exit(9)
            return real(*arguments, **named)

        return step

    surf2vec.trainer.store.writer.write_image = dying(
        surf2vec.trainer.store.writer.write_image, lambda path, image: path
    )
    Path.write_text = dying(Path.write_text, lambda path, text: path)  # type: ignore[method-assign]
    os.replace, os.fsync, Path.unlink = dying(os.replace), dying(os.fsync), dying(Path.unlink)  # type: ignore[method-assign]


def answer_steps() -> None:
    """A forked trainer for each number on standard input. Compiled code is loaded once, before; no threads are begun here."""
    config = TrainConfig(parts="interest", vector_size=1, bias=0, threads=1)
    warm_up(pick_kernel("cpu", config), config)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            die_at_step(int(line))
            with contextlib.redirect_stdout(sys.stderr):
                code = surf2vec.trainer.__main__.main()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def tell_commits() -> None:
    """Say on standard error when a commit begins, with what changed in memory, and when its manifest is on disk."""
    begin, end = Slots.commit, Slots._commit

    def told_begin(self: Slots, *arguments: Any) -> None:
        self.wait_for_commit()
        print(SAYS_BEGIN, file=sys.stderr, flush=True)
        begin(self, *arguments)

    def told_end(self: Slots, *arguments: Any) -> None:
        end(self, *arguments)
        print(SAYS_END, file=sys.stderr, flush=True)

    Slots.commit, Slots._commit = told_begin, told_end  # type: ignore[method-assign]


def set_clock_back() -> None:
    """Each call of time.time answers an hour less than the one before."""
    hours = itertools.count(1)
    started = time.time()
    time.time = lambda: started - 3600 * next(hours)
    time.time_ns = lambda: int(time.time() * 1e9)


def drop_privileges() -> None:
    """Become `python -m surf2vec.trainer` without root's right to write where permissions forbid it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH) if os.geteuid() == 0 else ():
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot give up root's rights")
    os.execv(sys.executable, [sys.executable, "-m", "surf2vec.trainer", *sys.argv[1:]])


def main() -> int:
    """Bring about the fault, and train."""
    fault = sys.argv.pop(1)
    surf2vec.trainer.training.preparation.private_bytes = lambda: PROCESS_BYTES
    if fault == "steps":
        answer_steps()
        return 0
    {"none": lambda: None, "told": tell_commits, "clock": set_clock_back, "unprivileged": drop_privileges}[fault]()
    return surf2vec.trainer.__main__.main()


if __name__ == "__main__":
    sys.exit(main())
