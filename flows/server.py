"""The temporary Prefect server of a command: in ROOT/.prefect, on loopback, with a password; it ends with the command.

The user's own Prefect (~/.prefect, profiles, another version's database) is not read or written. If PREFECT_API_URL is set, as
in the stack's client.env, that server is used instead. The temporary server has a session of its own, so Ctrl-C in a terminal
reaches only the command, which reports the end of the run to the server and then stops it.
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
    f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false"  # nothing is scheduled, and there are no workers
    for name in ("SCHEDULER", "LATE_RUNS", "FOREMAN", "CANCELLATION_CLEANUP", "PAUSE_EXPIRATIONS", "TRIGGERS")
}
FOREIGN = ("PREFECT_PROFILE", "PREFECT_PROFILES_PATH", "PREFECT_API_KEY")
"""Variables that would direct this process to another server, or to a profile that is not in the root's home."""

MARK, PLACE = "SURF2VEC_RUN_PROCESS", "SURF2VEC_RUN_FOLDER"
"""Environment variables of our server: the id of the process that started it, and the folder it works for."""


def marks(folder: Path) -> dict[str, str]:
    """Returns the environment that marks a child process of this one as working for a folder."""
    return {MARK: str(os.getpid()), PLACE: str(folder.resolve())}


def end_orphans(folder: Path) -> int:
    """End the marked processes of the folder that outlived a run, or a stack, killed with -9. Returns their number.

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
    """Returns whether the process `owner`, which started this one, has ended; a younger process may have its id by now."""
    try:
        return psutil.Process(owner).create_time() > process.create_time()
    except psutil.NoSuchProcess:
        return True


class ServerEndedError(SurfError):
    """The run's own Prefect server ended, or did not come up."""

    code = "server_ended"


class Server:
    """A server in the root's home. It starts at construction; `running` waits for it; it ends with this process."""

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
            fcntl.flock(self._starting, fcntl.LOCK_EX)  # two servers at once would both create the database
            login = f"surf2vec:{secrets.token_urlsafe(24)}"
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self._health = urllib.request.Request(f"http://127.0.0.1:{listener.getsockname()[1]}/api/health")
                self._health.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
                self.process = self._start(listener.fileno(), login)
        for name in FOREIGN:
            os.environ.pop(name, None)
        os.environ |= {  # Prefect reads them at import
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self._health.full_url.removesuffix("/health"),
            "PREFECT_API_AUTH_STRING": login,
            "PREFECT_CLIENT_MAX_RETRIES": "2",  # a local server that does not respond has ended
        }
        atexit.register(self.stop)  # before Prefect is imported, so called after Prefect's last report to the server

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
        """Wait until the server is up. If it ends during the block, the block gets SIGTERM, then ServerEndedError is raised.

        Raises ServerEndedError if it ends before, or does not come up.
        """
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        end = time.monotonic() + START_SECONDS
        while self.process.poll() is None and (left := end - time.monotonic()) > 0:
            try:
                direct.open(self._health, timeout=left).close()  # the socket listens; it responds once it is up
                break
            except OSError:  # the server ended
                time.sleep(0.05)
        else:
            raise self._describe_end()
        self._starting.close()
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            yield
        except BaseException:
            if self.process.poll() is not None:
                raise self._describe_end() from None
            raise

    def _watch(self) -> None:
        self.process.wait()
        if not self.is_ending:
            os.kill(os.getpid(), signal.SIGTERM)

    def _describe_end(self) -> ServerEndedError:
        code = self.process.poll()
        ended = f"was not up within {START_SECONDS:.0f} s" if code is None else f"ended with {code}"
        output = self.log.read_bytes()[self._log_start :].decode(errors="replace").splitlines()
        last_lines = [line.strip() for line in output if line.strip() and not line.startswith(" ")][-3:] or ["nothing"]
        return ServerEndedError(
            f"the Prefect server of this run {ended}; its last lines: {' / '.join(last_lines)} (all in {self.log}). The same "
            f"command goes on from the last commit; if the server does not start, remove {self.home} first, which contains "
            "only Prefect's records of earlier runs"
        )

    def stop(self) -> None:
        """End the server."""
        self.is_ending = True
        self._starting.close()
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve(listener: int, parent: int) -> None:
    """Run the server on a socket that listens already, until SIGTERM or the end of the parent."""
    end_with_parent(parent)
    import uvicorn
    from prefect.server.api.server import create_app

    with socket.socket(fileno=listener) as listening:
        uvicorn.Server(uvicorn.Config(create_app(), log_level="error", lifespan="on")).run(sockets=[listening])


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
