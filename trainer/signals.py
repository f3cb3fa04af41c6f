"""SIGTERM as a wish to stop well: the training commits at the next micro-partition's end and then ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
    """Yield an event that the first SIGTERM sets while the block runs; outside the main thread nothing sets it."""
    stop = threading.Event()
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
