"""SIGTERM, and for commands Ctrl-C, as a wish to stop well: a training commits at the next micro-partition's end and then ends.

All other work ends where it stands, as after a kill -9: what was committed is whole. A process can end with its parent, too.
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


def heed_signals() -> None:
    """Let SIGTERM raise KeyboardInterrupt, once; let Ctrl-C be SIGTERM, and a second Ctrl-C end the process at once.

    Where SIGINT is ignored, as for what a shell runs in the background, it stays so.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _pass_on)
    sys.unraisablehook = _send_again


def is_stopping() -> bool:
    """Whether a signal that `heed_signals` takes has come."""
    return _interrupted.is_set() or signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not _interrupted.is_set():  # a second one would interrupt the ending
        _interrupted.set()
        raise KeyboardInterrupt


def _pass_on(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


def _send_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Where a signal came in a destructor or callback, Python passes over what it raised: send it again a moment later."""
    if isinstance(unraisable.exc_value, (Exception, SystemExit, GeneratorExit)):
        sys.__unraisablehook__(unraisable)
        return
    _interrupted.clear()
    threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM)).start()


@contextmanager
def stop_on_sigterm(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """Yield an event, `stop` or a new one, that the first SIGTERM sets while the block runs; outside the main thread no signal
    sets it.
    """
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
    """Have this process get SIGTERM when its parent ends, however; at once, if that was not `parent` any more. Linux only."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
