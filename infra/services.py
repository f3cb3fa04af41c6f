"""A server process of the stack: started with its secrets in the environment, waited for, and stopped in order.

Nothing secret stands on a command line, which `ps` shows to everybody.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trainer.errors import ResourceError

START_SECONDS = 180.0
STOP_SECONDS = 30.0
SHOWN_LINES = 15


@dataclass
class Service:
    """One server: how it is started, how it is known to be up, and which signal ends it well.

    `environment` is added to what every child of the stack gets; `user` is the account it runs as. With `stops_children`
    the signal goes to what it started as well: a training then commits.
    """

    name: str
    argv: list[str]
    log: Path
    is_up: Callable[[], bool]
    environment: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stops_children: bool = False
    folder: Path | None = None
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start the process; `wait` tells when it is up."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder, user=self.user,
                group=self.user, extra_groups=[] if self.user else None, env=os.environ | self.environment,
                start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Return when it is up. Raises ResourceError with its last lines when it ends, or does not come up."""
        end = time.monotonic() + START_SECONDS
        while not self.is_up():
            ended = self.process is None or self.process.poll() is not None
            if ended or time.monotonic() > end:
                lines = self.log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
                what = "ended" if ended else f"was not up within {START_SECONDS:.0f} s"
                raise ResourceError(f"{self.name} {what}; its log {self.log} ends:\n" + "\n".join(lines))
            time.sleep(0.2)

    def stop(self) -> None:
        """End it and all it started: in order, and by force where that takes too long."""
        if self.process is None:
            return
        if self.process.poll() is None:
            if self.stops_children:
                os.killpg(self.process.pid, self.stop_signal)
            else:
                self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # workers of a server that was killed
        self.process = None


def find_port(wanted: int | None) -> int:
    """The wanted port where it is free on loopback, else one that is."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("127.0.0.1", wanted or 0))
        except OSError:
            held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def answers(url: str) -> bool:
    """Whether the URL answers with success."""
    import httpx

    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False
