"""A server process of the stack: started with its secrets in the environment, waited for, and stopped in order; and what
PostgreSQL, by Debian's programs, needs before: a cluster of its own.

Nothing secret stands on a command line, which `ps` shows to everybody.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
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


def responds(url: str) -> bool:
    """Whether the URL answers with success."""
    import httpx

    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def find_postgres() -> Path:
    """The folder of PostgreSQL's programs: the newest of Debian's, else the one on the path. Raises ResourceError."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    found = str(debian[-1]) if debian else shutil.which("postgres")
    if not found:
        raise ResourceError("PostgreSQL's programs are not here: on Debian, apt-get install postgresql")
    return Path(found).parent


def make_cluster(binaries: Path, cluster: Path, account: str | None, password: str) -> None:
    """A new PostgreSQL cluster in the folder `cluster`, with one superuser, `surf2vec`, and no access without password.

    Made beside and renamed: one that was cut short is made anew. Raises ResourceError with initdb's last words when it fails.
    """
    unfinished, word = cluster.with_name(".postgres"), cluster.with_name(".postgres-password")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    try:
        word.touch(mode=0o600)
        word.write_text(password)
        if account:
            shutil.chown(unfinished, account, account)
            shutil.chown(word, account, account)
        done = subprocess.run(
            [str(binaries / "initdb"), "-D", str(unfinished), "-U", "surf2vec", "--auth=scram-sha-256", f"--pwfile={word}",
             "--encoding=UTF8", "--locale=C.UTF-8"],
            user=account, group=account, cwd="/", capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        word.unlink(missing_ok=True)
    if done.returncode:
        output = " ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        hint = f"; see that {account} may enter every folder above {unfinished}" if account else ""
        raise ResourceError(f"initdb failed: {output}{hint}")
    unfinished.rename(cluster)


def is_ready(binaries: Path, port: int) -> bool:
    """Whether the server at the port takes queries; for a moment after its start, and longer after a crash, it only listens."""
    command: list[str | Path] = [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    return subprocess.run(command, check=False).returncode == 0


def make_databases(address: str, names: tuple[str, ...]) -> None:
    """Make those databases that are not there. Raises ResourceError with PostgreSQL's words."""
    import psycopg2

    try:
        connection = psycopg2.connect(address)
        connection.autocommit = True
        with closing(connection), connection.cursor() as cursor:
            cursor.execute("select datname from pg_database")
            for name in {*names} - {row[0] for row in cursor.fetchall()}:
                cursor.execute(f"create database {name}")
    except psycopg2.Error as error:
        raise ResourceError(f"cannot make the databases of the stack: {error}") from None
