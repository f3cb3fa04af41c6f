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

import psutil

from tasks.root.run import open_root, private_files
from trainer.errors import ResourceError, SurfError
from trainer.system.signals import end_with_parent

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

MARK, PLACE = "SURF2VEC_RUN_PROCESS", "SURF2VEC_RUN_FOLDER"
"""What a server of ours has in its environment: the process that started it, and the folder it works for."""


def marks(folder: Path) -> dict[str, str]:
    """The environment of what this process starts to work for a folder."""
    return {MARK: str(os.getpid()), PLACE: str(folder.resolve())}


def end_orphans(folder: Path) -> int:
    """End this user's marked processes of the folder that outlived a run, or a stack, killed with -9; return how many.

    Nobody else's server is touched: no other folder's, and no other user's.
    """
    num_ended = 0
    for process in psutil.process_iter():
        try:
            environment = process.environ() if process.uids().real == os.getuid() else {}
            owner = environment.get(MARK, "")
            if owner.isdecimal() and environment[PLACE] == str(folder.resolve()) and _is_gone(int(owner), process):
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


class ServerEndedError(SurfError):
    """The run's own Prefect server ended, or did not come up."""

    code = "server_ended"


class Server:
    """A server that is being started in the root's home, until `running`, which waits for it, and the end of this process."""

    def __init__(self, root: Path) -> None:
        opened = open_root(root)
        self.home, self.is_ending = opened.path.resolve() / HOME, False
        self.log = self.home / LOG
        end_orphans(root)
        with private_files(opened):
            try:
                self.home.mkdir(mode=0o700, exist_ok=True)
                self._starting = open(self.home / ".lock", "a", encoding="ascii")  # noqa: SIM115 (held until it is up)
            except OSError as error:
                raise ResourceError(f"cannot write to {self.home}, for the Prefect server: {error.strerror}") from None
            fcntl.flock(self._starting, fcntl.LOCK_EX)  # two at once would both make the database
            login = f"surf2vec:{secrets.token_urlsafe(24)}"
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self._health = urllib.request.Request(f"http://127.0.0.1:{listener.getsockname()[1]}/api/health")
                self._health.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
                self.process = self._start(listener.fileno(), login)
        for name in FOREIGN:
            os.environ.pop(name, None)
        os.environ |= {  # Prefect reads them when it is imported
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self._health.full_url.removesuffix("/health"),
            "PREFECT_API_AUTH_STRING": login,
            "PREFECT_CLIENT_MAX_RETRIES": "2",  # one that is on this machine and does not answer will not
        }
        atexit.register(self.stop)  # before Prefect is imported, so after Prefect has told the server all

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
        """Wait until it is up; in the block its end is that of what runs there: SIGTERM, and then ServerEndedError.

        Raises ServerEndedError when it ends before, or does not come up.
        """
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        end = time.monotonic() + START_SECONDS
        while self.process.poll() is None and (left := end - time.monotonic()) > 0:
            try:
                direct.open(self._health, timeout=left).close()  # the socket listens; it answers once it is up
                break
            except OSError:  # it ended
                time.sleep(0.05)
        else:
            raise self._last_words()
        self._starting.close()
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            yield
        except BaseException:
            if self.process.poll() is not None:
                raise self._last_words() from None
            raise

    def _watch(self) -> None:
        self.process.wait()
        if not self.is_ending:
            os.kill(os.getpid(), signal.SIGTERM)

    def _last_words(self) -> ServerEndedError:
        code = self.process.poll()
        ended = f"was not up within {START_SECONDS:.0f} s" if code is None else f"ended with {code}"
        output = self.log.read_bytes()[self._log_start :].decode(errors="replace").splitlines()
        last_lines = [line.strip() for line in output if line.strip() and not line.startswith(" ")][-3:] or ["nothing"]
        return ServerEndedError(
            f"the Prefect server of this run {ended}; its last lines: {' / '.join(last_lines)} (all in {self.log}). The same "
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
