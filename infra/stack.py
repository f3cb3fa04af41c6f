"""The stack on one machine, without containers: `python -m infra.stack FOLDER`, ended by Ctrl-C or SIGTERM.

PostgreSQL (Debian's binaries, a cluster of its own), a Prefect server and an MLflow server with basic authentication on it,
artifacts in a folder or on S3, and a worker that runs the deployments. All state is in FOLDER, all servers listen on
127.0.0.1 unless told otherwise, and FOLDER/client.env has what a client needs: `set -a; . FOLDER/client.env; set +a`.
"""

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flows.orphans import end_orphans, marks
from infra.bucket import BUCKET, make_bucket
from infra.deploy import CODE, POOL
from infra.passwords import as_shell, open_passwords, write_secret
from infra.postgres import find_postgres, is_ready, make_cluster, run
from infra.services import Service, answers, find_port
from trainer.errors import ConfigError, SurfError
from trainer.system.files import read_json, write_json

DATABASES = ("prefect", "mlflow", "mlflow_auth")
QUIET = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # jobs of its GenAI part
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


@dataclass
class Stack:
    """The servers of one folder. `artifacts` is a folder or s3://bucket/prefix; None: a folder in `folder`.

    `try_s3` starts an S3 server that keeps its objects in memory: to try things on, and in tests.
    """

    folder: Path
    host: str = "127.0.0.1"
    artifacts: str | None = None
    try_s3: bool = False
    services: dict[str, Service] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.binaries = find_postgres()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.passwords = open_passwords(self.folder / "passwords.json", has_data=self.cluster.exists())
        self.ports = self._choose_ports()

    @property
    def cluster(self) -> Path:
        return self.folder / "postgres"

    @property
    def client_environment(self) -> dict[str, str]:
        """What a process needs to reach both servers."""
        return {
            "PREFECT_API_URL": f"http://127.0.0.1:{self.ports['prefect']}/api",
            "PREFECT_API_AUTH_STRING": f"admin:{self.passwords['prefect']}",
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.ports['mlflow']}",
            "MLFLOW_TRACKING_USERNAME": "admin",
            "MLFLOW_TRACKING_PASSWORD": self.passwords["mlflow"],
            # Else MLflow sends clients to S3 themselves, which they may not reach.
            "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
            "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
        }

    @contextmanager
    def running(self) -> Iterator["Stack"]:
        """All servers, up when the block begins, ended in order when it ends."""
        end_orphans(self.folder)
        os.environ |= marks(self.folder)
        try:
            self._start_postgres()
            self._start_servers()
            yield self
        finally:
            for service in reversed(self.services.values()):
                service.stop()

    def restart(self, name: str) -> None:
        """Start a server again that was stopped, at its port; the S3 server has lost its objects."""
        self.services[name].start()
        self.services[name].wait()
        if name == "s3":
            make_bucket(self._s3_environment())

    def _choose_ports(self) -> dict[str, int]:
        file = self.folder / "ports.json"
        kept = read_json(file) if file.exists() else {}
        ports: dict[str, int] = {}
        for name in ("postgres", "prefect", "mlflow", "s3"):
            port = find_port(kept.get(name))
            while port in ports.values():
                port = find_port(None)
            ports[name] = port
        write_json(file, ports)
        return ports

    def _database(self, name: str, driver: str = "postgresql") -> str:
        return f"{driver}://surf2vec:{self.passwords['postgres']}@127.0.0.1:{self.ports['postgres']}/{name}"

    def _start_postgres(self) -> None:
        account = "postgres" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        if not (self.cluster / "PG_VERSION").exists():
            make_cluster(self.binaries, self.cluster, account, self.passwords["postgres"])
        port = str(self.ports["postgres"])
        service = Service(
            "postgres",
            [str(self.binaries / "postgres"), "-D", str(self.cluster), "-h", "127.0.0.1", "-p", port, "-k", ""],
            self.folder / "logs" / "postgres.log", lambda: is_ready(self.binaries, self.ports["postgres"]), user=account,
            stop_signal=signal.SIGINT, folder=self.cluster,
        )  # fmt: skip
        self._start(service).wait()
        self._make_databases()

    def _make_databases(self) -> None:
        psql = [str(self.binaries / "psql"), "-h", "127.0.0.1", "-p", str(self.ports["postgres"]), "-U", "surf2vec",
                "-d", "postgres", "-qtA", "-v", "ON_ERROR_STOP=1"]  # fmt: skip
        environment = os.environ | {"PGPASSWORD": self.passwords["postgres"]}
        there = run([*psql, "-c", "select datname from pg_database"], environment).split()
        for name in DATABASES:
            if name not in there:
                run([*psql, "-c", f"create database {name}"], environment)

    def _start_servers(self) -> None:
        started = [self._start(service) for service in (self._s3(), self._prefect(), self._mlflow()) if service]
        for service in started:
            service.wait()
        if self.try_s3:
            make_bucket(self._s3_environment())
        write_secret(self.folder / "client.env", as_shell(self.client_environment))
        self._start(self._worker()).wait()

    def _start(self, service: Service) -> Service:
        self.services[service.name] = service
        service.start()
        return service

    def _s3(self) -> Service | None:
        if not self.try_s3:
            return None
        port = self.ports["s3"]
        return Service(
            "s3", [sys.executable, "-m", "moto.server", "-H", self.host, "-p", str(port)],
            self.folder / "logs" / "s3.log", lambda: listens(port), QUIET,
        )  # fmt: skip

    def _s3_environment(self) -> dict[str, str]:
        """What an S3 client needs; for a server of somebody else's it is in the stack's own environment already."""
        if not self.try_s3:
            return {}
        return {
            "MLFLOW_S3_ENDPOINT_URL": f"http://127.0.0.1:{self.ports['s3']}",
            "AWS_ACCESS_KEY_ID": self.passwords["s3_key"],
            "AWS_SECRET_ACCESS_KEY": self.passwords["s3_secret"],
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def _prefect(self) -> Service:
        port = self.ports["prefect"]
        return Service(
            "prefect", [sys.executable, "-m", "prefect", "server", "start", "--host", self.host, "--port", str(port)],
            self.folder / "logs" / "prefect.log", lambda: answers(f"http://127.0.0.1:{port}/api/health"),
            {
                "PREFECT_HOME": str(self.folder / "prefect"),
                "PREFECT_SERVER_DATABASE_CONNECTION_URL": self._database("prefect", "postgresql+asyncpg"),
                "PREFECT_SERVER_API_AUTH_STRING": f"admin:{self.passwords['prefect']}",
                "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",  # older than 7 and 90 days
            } | self.client_environment | QUIET,
        )  # fmt: skip

    def _mlflow(self) -> Service:
        port = self.ports["mlflow"]
        destination = f"s3://{BUCKET}/artifacts" if self.try_s3 else self.artifacts or str(self.folder / "artifacts")
        return Service(
            "mlflow",
            [sys.executable, "-m", "infra.mlflow_server", "--host", self.host, "--port", str(port)],
            self.folder / "logs" / "mlflow.log", lambda: answers(f"http://127.0.0.1:{port}/health"),
            {
                "MLFLOW_BACKEND_STORE_URI": self._database("mlflow"),
                "MLFLOW_ARTIFACTS_DESTINATION": destination,
                "SURF2VEC_MLFLOW_USERS": self._database("mlflow_auth"),
                "MLFLOW_AUTH_ADMIN_USERNAME": "admin",
                "MLFLOW_AUTH_ADMIN_PASSWORD": self.passwords["mlflow"],
                "MLFLOW_FLASK_SERVER_SECRET_KEY": self.passwords["mlflow_session"],
            } | self._s3_environment() | QUIET,
            folder=CODE,
        )  # fmt: skip

    def _worker(self) -> Service:
        log = self.folder / "logs" / "worker.log"
        before = log.stat().st_size if log.exists() else 0
        return Service(
            "worker",
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", "native"],
            log, lambda: b"started!" in log.read_bytes()[before:], self.client_environment | QUIET,
            stops_children=True, folder=CODE,
        )  # fmt: skip


def listens(port: int) -> bool:
    """Whether something takes connections at the port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def main() -> int:
    """Start the stack, say where it is, and wait for Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.stack", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where all state is kept")
    parser.add_argument("--host", default="127.0.0.1", help="address that Prefect and MLflow listen on (127.0.0.1)")
    parser.add_argument(
        "--artifacts",
        help="MLflow's artifacts: a folder, or s3://bucket/prefix with AWS_* and MLFLOW_S3_ENDPOINT_URL set",
    )
    parser.add_argument("--try-s3", action="store_true", help="an S3 server in memory, to try things on")
    asked = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell started us with SIGINT ignored
        signal.signal(number, lambda *_: ended.set())
    try:
        if asked.try_s3 and asked.artifacts:
            raise ConfigError("--artifacts and --try-s3 are two places for the same: give one")
        with Stack(asked.folder, asked.host, asked.artifacts, asked.try_s3).running() as stack:
            print(f"Prefect  http://127.0.0.1:{stack.ports['prefect']}\nMLflow   http://127.0.0.1:{stack.ports['mlflow']}\n"
                  f"for clients: set -a; . {stack.folder / 'client.env'}; set +a", flush=True)  # fmt: skip
            ended.wait()
    except SurfError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
