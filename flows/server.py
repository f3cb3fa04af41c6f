"""The Prefect server of a command: the root's own, in ROOT/.prefect, on loopback, with a password, gone when the command ends.

Nothing of the user's own Prefect (~/.prefect, profiles, another version's database) is read or written. Who names a server by
PREFECT_API_URL, as the stack's client.env does, uses that one. The server is in a session of its own: Ctrl-C in a terminal is for
the command alone, which tells the server how the run ended, and then ends it.
"""

import atexit
import base64
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.orphans import end_orphans, marks
from tasks.root.run import open_root, private_files
from trainer.errors import ResourceError, SurfError
from trainer.system.parent import end_with_parent

HOME, LOG = ".prefect", "server.log"
START_SECONDS, STOP_SECONDS = 180.0, 5.0
MAX_LOG_BYTES = 1_000_000
KEPT_DAYS = 30
SETTINGS = {
    "PREFECT_UI_ENABLED": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",  # at each start, and every hour
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(KEPT_DAYS * 86_400),
} | {
    f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false"  # nothing is scheduled, and nobody else asks for work
    for name in ("SCHEDULER", "LATE_RUNS", "FOREMAN", "CANCELLATION_CLEANUP", "PAUSE_EXPIRATIONS", "TRIGGERS")
}
FOREIGN = ("PREFECT_PROFILE", "PREFECT_PROFILES_PATH", "PREFECT_API_KEY")
"""What would have this process look for another server, or for a profile that the root's home does not have."""


class ServerEndedError(SurfError):
    """The run's own Prefect server ended, or did not come up."""

    code = "server_ended"


class Server:
    """A server that is being started in the root's home, until `running`, which waits for it, and the end of this process."""

    def __init__(self, root: Path) -> None:
        self.root = open_root(root)
        self.home = self.root.path.resolve() / HOME
        self.log = self.home / LOG
        self.is_ending = False
        end_orphans(root)
        try:
            with private_files(self.root):
                self.home.mkdir(mode=0o700, exist_ok=True)
                self._starting = open(self.home / ".lock", "a", encoding="ascii")  # noqa: SIM115 (held until it is up)
        except OSError as error:
            raise ResourceError(f"cannot write to {self.home}, for the Prefect server: {error.strerror}") from None
        fcntl.flock(self._starting, fcntl.LOCK_EX)  # two at once would both make the database
        password = secrets.token_urlsafe(24)
        with private_files(self.root), socket.create_server(("127.0.0.1", 0)) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            self._set_client(f"surf2vec:{password}")
            self.process = self._start(listener.fileno(), f"surf2vec:{password}")
        atexit.register(self.stop)  # before Prefect is imported, so after Prefect has told the server all

    def _set_client(self, login: str) -> None:
        """Have Prefect, which reads the environment when it is imported, use this server."""
        for name in FOREIGN:
            os.environ.pop(name, None)
        os.environ |= {
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self.url,
            "PREFECT_API_AUTH_STRING": login,
            "PREFECT_CLIENT_MAX_RETRIES": "2",  # one that is on this machine and does not answer will not
        }
        self._authorization = "Basic " + base64.b64encode(login.encode()).decode()

    def _start(self, listener: int, login: str) -> "subprocess.Popen[bytes]":
        code, given = str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")
        others = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        environment = others | SETTINGS | marks(self.home.parent) | {
            "PREFECT_HOME": str(self.home), "PREFECT_SERVER_API_AUTH_STRING": login, "DO_NOT_TRACK": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (code, given))), "PYTHONSAFEPATH": "1",
        }  # fmt: skip
        is_long = self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES
        with open(self.log, "wb" if is_long else "ab") as log:
            self._log_start = log.tell()
            return subprocess.Popen(
                [sys.executable, "-m", "flows.server", str(listener), str(os.getpid())], env=environment, cwd=self.home,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[listener], start_new_session=True,
            )  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[None]:
        """Wait until it is up; in the block its end is that of what runs there: SIGTERM, and then ServerEndedError."""
        self._wait()
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            yield
        except BaseException:
            if self.process.poll() is not None:
                raise self._last_words() from None
            raise

    def _wait(self) -> None:
        """Return when it is up. Raises ServerEndedError when it ends, or does not come up."""
        asked = urllib.request.Request(f"{self.url}/health", headers={"Authorization": self._authorization})
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        end = time.monotonic() + START_SECONDS
        while self.process.poll() is None and (left := end - time.monotonic()) > 0:
            try:
                with direct.open(asked, timeout=left):  # the socket listens; it answers once it is up
                    self._starting.close()
                    return
            except OSError:  # it ended
                time.sleep(0.05)
        raise self._last_words()

    def _watch(self) -> None:
        self.process.wait()
        if not self.is_ending:
            os.kill(os.getpid(), signal.SIGTERM)

    def _last_words(self) -> ServerEndedError:
        code = self.process.poll()
        ended = f"was not up within {START_SECONDS:.0f} s" if code is None else f"ended with {code}"
        said = self.log.read_bytes()[self._log_start :].decode(errors="replace").splitlines()
        words = [line.strip() for line in said if line.strip() and not line.startswith(" ")][-3:] or ["nothing"]
        return ServerEndedError(
            f"the Prefect server of this run {ended}; at last it said: {' / '.join(words)} (all of it: {self.log}). The same "
            f"command goes on from the last commit; where the server does not start, remove {self.home} first, which has "
            "nothing but what Prefect noted of runs before"
        )

    def stop(self) -> None:
        """End it."""
        self.is_ending = True
        self._starting.close()
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve(listener: int, parent: int) -> None:
    """Be the server, on a socket that listens already, until SIGTERM or the end of the parent."""
    end_with_parent(parent)
    import uvicorn
    from prefect.server.api.server import create_app

    with socket.socket(fileno=listener) as listening:
        uvicorn.Server(uvicorn.Config(create_app(), log_level="error", lifespan="on")).run(sockets=[listening])


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
