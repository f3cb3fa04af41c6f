"""Starts, awaits and stops the server processes of the stack, and makes the PostgreSQL cluster with Debian's programs.

Secrets are passed in the environment, never on a command line, which `ps` shows to all users.
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
from importlib.util import find_spec
from pathlib import Path

from surf2vec.tasks.root.wording import install_command
from surf2vec.trainer.errors import ResourceError

START_SECONDS = 180.0
STOP_SECONDS = 30.0
SHOWN_LINES = 15


@dataclass
class Service:
    """One server: its command, the check that it is up, and the signal that ends it properly.

    `environment` is added to that of every child of the stack. `user` is the account it runs as. With `stops_children`
    its child processes get the signal too, so that a training commits.
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
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            self.log.chmod(0o600)  # an error may show a password
            self.process = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder, user=self.user,
                group=self.user, extra_groups=[] if self.user else None, env=os.environ | self.environment,
                start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until the server is up. Raises ResourceError with its last lines if it ends, or does not come up."""
        end = time.monotonic() + START_SECONDS
        while not self.is_up():
            ended = self.process is None or self.process.poll() is not None
            if ended or time.monotonic() > end:
                lines = self.log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
                what = "ended" if ended else f"was not up within {START_SECONDS:.0f} s"
                raise ResourceError(f"{self.name} {what}; its log {self.log} ends:\n" + "\n".join(lines))
            time.sleep(0.2)

    def stop(self) -> None:
        """End the server and its child processes: by the signal, and by force if that takes too long."""
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
    """Return the wanted port if it is free on loopback, else another free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted or 0))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def responds(url: str) -> bool:
    import httpx

    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def find_postgres() -> Path:
    """Return the folder of PostgreSQL's programs: Debian's newest, else that on the path. Raises ResourceError if there is none,
    or if the packages of the extra `stack` are missing.
    """
    if missing := [name for name in ("boto3", "flask_wtf", "psycopg2") if find_spec(name) is None]:
        raise ResourceError(f"the stack needs {', '.join(missing)}: {install_command('stack')}")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    program = str(debian[-1]) if debian else shutil.which("postgres")
    if not program:
        raise ResourceError("PostgreSQL's programs were not found: on Debian, apt-get install postgresql")
    return Path(program).parent


def make_cluster(binaries: Path, cluster: Path, account: str | None, password: str) -> None:
    """Make a PostgreSQL cluster in the folder `cluster`, with one superuser, `surf2vec`, and no access without password.

    It is made beside `cluster` and renamed, so an incomplete one is made again. Raises ResourceError with initdb's last lines.
    """
    unfinished, secret = cluster.with_name(".postgres"), cluster.with_name(".postgres-password")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    try:
        secret.touch(mode=0o600)
        secret.write_text(password)
        if account:
            shutil.chown(unfinished, account, account)
            shutil.chown(secret, account, account)
        done = subprocess.run(
            [str(binaries / "initdb"), "-D", str(unfinished), "-U", "surf2vec", "--auth=scram-sha-256", f"--pwfile={secret}",
             "--encoding=UTF8", "--locale=C.UTF-8"],
            user=account, group=account, cwd="/", capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        secret.unlink(missing_ok=True)
    if done.returncode:
        output = " ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        hint = f"; see that {account} may enter every folder above {unfinished}" if account else ""
        raise ResourceError(f"initdb failed: {output}{hint}")
    unfinished.rename(cluster)


def is_ready(binaries: Path, port: int) -> bool:
    """Return whether the server at the port accepts queries. After its start, and longer after a crash, it only listens."""
    command: list[str | Path] = [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    return subprocess.run(command, check=False).returncode == 0


def make_databases(address: str, names: tuple[str, ...]) -> None:
    """Make the missing databases. Raises ResourceError with PostgreSQL's message."""
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
