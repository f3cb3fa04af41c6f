"""Handles SIGTERM, and in commands Ctrl-C: a training commits at the end of the micro-partition, then stops.

Other work stops immediately, as after kill -9; commits stay intact. A process can also be stopped when its parent ends.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_SECONDS = 0.1
PR_SET_PDEATHSIG = 1
_interrupted = threading.Event()


def install_handlers() -> None:
    """Make SIGTERM raise KeyboardInterrupt once, Ctrl-C send SIGTERM, and a second Ctrl-C end the process at once.

    An ignored SIGINT stays ignored, as in a shell's background jobs.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _pass_on)
    sys.unraisablehook = _send_again


def is_stopping() -> bool:
    """Return whether a signal handled by `install_handlers` was received."""
    return _interrupted.is_set() or signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not _interrupted.is_set():  # a second one would interrupt the shutdown
        _interrupted.set()
        raise KeyboardInterrupt


def _pass_on(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


def _send_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Send a signal again, a moment later, whose exception Python ignored in a destructor or callback."""
    if isinstance(unraisable.exc_value, (Exception, SystemExit, GeneratorExit)):
        sys.__unraisablehook__(unraisable)
        return
    _interrupted.clear()
    threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM)).start()


@contextmanager
def stop_on_sigterm(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """Yield an event, `stop` or a new one, which the first SIGTERM during the block sets; outside the main thread none does."""
    stop = stop or threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(number, lambda number, frame: None)  # a second one would wait for the lock that the first holds
        stop.set()

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_parent(parent: int | None = None) -> None:
    """Send this process SIGTERM when its parent ends; at once if its parent is not `parent` any more. Linux only."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
