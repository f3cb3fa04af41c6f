"""SIGTERM as a wish to stop: any number of them, as fast as they come."""

import os
import signal
import subprocess
import sys
import threading

from surf2vec.trainer.system.signals import stop_on_sigterm

FLOODED = """
import os, signal, subprocess, sys
from surf2vec.trainer.system.signals import stop_on_sigterm
FLOOD = "import os, signal, sys\\nfor _ in range(20_000): os.kill(int(sys.argv[1]), signal.SIGTERM)"
with stop_on_sigterm() as stop:
    other = subprocess.Popen([sys.executable, "-c", FLOOD, str(os.getpid())])
    while other.poll() is None:
        sum(range(100))
    print(stop.is_set())
"""

SWALLOWED = """
import os, signal, time
from surf2vec.trainer.system.signals import install_handlers

class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(1 for _ in range(1000))

install_handlers()
Dying()
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("stopped")
"""


def test_a_signal_in_a_destructor_is_not_lost() -> None:
    told = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, timeout=50, check=True)
    assert (told.stdout, told.stderr) == ("stopped\n", "")


def test_a_flood_of_signals_is_one_wish() -> None:
    """As from a parent with many threads that is killed (surf2vec.trainer.system.signals): it sends one for each of them."""
    told = subprocess.run([sys.executable, "-c", FLOODED], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert told.stdout == "True\n"


def test_what_sigterm_did_before_it_does_again() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with stop_on_sigterm() as stop:
            assert not stop.is_set()
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.is_set()
            assert received == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_nothing_sets_it() -> None:
    handlers = []

    def look() -> None:
        with stop_on_sigterm() as stop:
            handlers.append((signal.getsignal(signal.SIGTERM), stop.is_set()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [(signal.getsignal(signal.SIGTERM), False)]
