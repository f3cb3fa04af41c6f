"""The stack on one machine, without containers: `python -m surf2vec.infra.stack FOLDER`, ended by Ctrl-C or SIGTERM.

It runs PostgreSQL (Debian's binaries, a cluster of its own), a Prefect server and an MLflow server that store their data in it,
both with basic authentication, a worker that runs the deployments, and a watcher of their runs. Artifacts are in a folder or on
S3. All state is in FOLDER. All servers listen on 127.0.0.1 by default. Clients read FOLDER/client.env:
`set -a; . FOLDER/client.env; set +a`.
"""

import argparse
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from surf2vec.infra import CODE, PATIENCE_SECONDS, POOL
from surf2vec.infra.orphans import end_orphans, marks
from surf2vec.infra.passwords import open_passwords
from surf2vec.infra.services import Service, find_port, find_postgres, is_ready, make_cluster, make_databases, responds
from surf2vec.trainer.errors import SurfError
from surf2vec.trainer.system.files import read_json, write_json, write_secret

DATABASES = ("prefect", "mlflow", "mlflow_auth")
LEASES = "prefect.server.concurrency.lease_storage.filesystem"
"""Where the Prefect server keeps who has a slot: in PREFECT_HOME. In memory, a restart would end the night that runs."""
QUIET = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # only for its GenAI features
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


class Stack:
    """The servers of one folder. `artifacts` is a folder or s3://bucket/prefix; None: a folder in `folder`."""

    def __init__(
        self,
        folder: Path,
        host: str = "127.0.0.1",
        artifacts: str | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.folder, self.host, self.patience_seconds = folder.resolve(), host, patience_seconds
        self.artifacts = artifacts or str(self.folder / "artifacts")
        self.services: dict[str, Service] = {}
        self.binaries, self.cluster = find_postgres(), self.folder / "postgres"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.passwords = open_passwords(self.folder / "passwords.json", has_data=self.cluster.exists())
        file = self.folder / "ports.json"
        kept = read_json(file) if file.exists() else {}
        self.ports: dict[str, int] = {}
        for name in ("postgres", "prefect", "mlflow"):
            port = find_port(kept.get(name))
            while port in self.ports.values():
                port = find_port(None)
            self.ports[name] = port
        write_json(file, self.ports)

    @property
    def client_environment(self) -> dict[str, str]:
        """The environment that a process needs to reach both servers."""
        return {
            "PREFECT_API_URL": f"http://127.0.0.1:{self.ports['prefect']}/api",
            "PREFECT_API_AUTH_STRING": f"admin:{self.passwords['prefect']}",
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.ports['mlflow']}",
            "MLFLOW_TRACKING_USERNAME": "admin",
            "MLFLOW_TRACKING_PASSWORD": self.passwords["mlflow"],
            # Otherwise MLflow redirects clients to S3, which they may not reach.
            "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
            "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
        }

    @contextmanager
    def running(self) -> Iterator["Stack"]:
        """Start all servers and wait until they are up; end them in reverse order after the block."""
        end_orphans(self.folder)
        os.environ |= marks(self.folder)
        try:
            self._start_postgres()
            for service in (self._start_prefect(), self._start_mlflow()):
                service.wait()
            variables = (f"{name}={shlex.quote(value)}\n" for name, value in self.client_environment.items())
            write_secret(self.folder / "client.env", "".join(variables).encode())
            for service in (self._start_worker(), self._start_watcher()):
                service.wait()
            yield self
        finally:
            for service in reversed(self.services.values()):
                service.stop()

    def _start(
        self, name: str, argv: list[str], is_up: Callable[[], bool], environment: dict[str, str], **how: Any
    ) -> Service:
        log = self.folder / "logs" / f"{name}.log"
        self.services[name] = Service(name, argv, log, is_up, environment, **how)
        self.services[name].start()
        return self.services[name]

    def _database(self, name: str, driver: str = "postgresql") -> str:
        return f"{driver}://surf2vec:{self.passwords['postgres']}@127.0.0.1:{self.ports['postgres']}/{name}"

    def _start_postgres(self) -> None:
        account = "postgres" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        if not (self.cluster / "PG_VERSION").exists():
            make_cluster(self.binaries, self.cluster, account, self.passwords["postgres"])
        port = self.ports["postgres"]
        argv = [str(self.binaries / "postgres"), "-D", str(self.cluster), "-h", "127.0.0.1", "-p", str(port), "-k", ""]
        how = {"user": account, "stop_signal": signal.SIGINT, "folder": self.cluster}
        self._start("postgres", argv, partial(is_ready, self.binaries, port), {}, **how).wait()
        make_databases(self._database("postgres"), DATABASES)

    def _start_prefect(self) -> Service:
        port = self.ports["prefect"]
        argv = [sys.executable, "-m", "prefect", "server", "start", "--host", self.host, "--port", str(port)]
        environment = {
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": self._database("prefect", "postgresql+asyncpg"),
            "PREFECT_SERVER_API_AUTH_STRING": f"admin:{self.passwords['prefect']}",
            "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",  # older than 7 and 90 days
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": LEASES,
        }
        is_up = partial(responds, f"http://127.0.0.1:{port}/api/health")
        return self._start("prefect", argv, is_up, environment | self.client_environment | QUIET)

    def _start_mlflow(self) -> Service:
        port = self.ports["mlflow"]
        argv = [sys.executable, "-m", "surf2vec.infra.mlflow_server", "--host", self.host, "--port", str(port)]
        environment = {
            "MLFLOW_BACKEND_STORE_URI": self._database("mlflow"),
            "MLFLOW_ARTIFACTS_DESTINATION": self.artifacts,
            "SURF2VEC_MLFLOW_USERS": self._database("mlflow_auth"),
            "MLFLOW_AUTH_ADMIN_USERNAME": "admin",
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.passwords["mlflow"],
            "MLFLOW_FLASK_SERVER_SECRET_KEY": self.passwords["mlflow_session"],
        }
        is_up = partial(responds, f"http://127.0.0.1:{port}/health")
        return self._start("mlflow", argv, is_up, environment | QUIET, folder=CODE)

    def _start_worker(self) -> Service:
        command = f"prefect worker start --pool {POOL} --type process --name native"
        return self._start_client("worker", command, b"started!", stops_children=True)

    def _start_watcher(self) -> Service:
        command = f"surf2vec.infra.watcher --patience-seconds {self.patience_seconds:g}"
        return self._start_client("watcher", command, b"watching")

    def _start_client(self, name: str, command: str, started: bytes, **how: Any) -> Service:
        """Start a client of both servers, which is up once its log says so."""
        log = self.folder / "logs" / f"{name}.log"
        before = log.stat().st_size if log.exists() else 0
        argv = [sys.executable, "-m", *command.split()]
        environment = self.client_environment | QUIET
        return self._start(name, argv, lambda: started in log.read_bytes()[before:], environment, folder=CODE, **how)


def main() -> int:
    """Start the stack, print its addresses, and wait for Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m surf2vec.infra.stack", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where all state is kept")
    parser.add_argument("--host", default="127.0.0.1", help="address that Prefect and MLflow listen on (127.0.0.1)")
    place_help = "MLflow's artifacts: a folder, or s3://bucket/prefix with AWS_* and MLFLOW_S3_ENDPOINT_URL set"
    parser.add_argument("--artifacts", help=place_help)
    arguments = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # also if a shell started this process with SIGINT ignored
        signal.signal(number, lambda *_: ended.set())
    try:
        with Stack(**vars(arguments)).running() as stack:
            print(
                f"Prefect  http://127.0.0.1:{stack.ports['prefect']}\nMLflow   http://127.0.0.1:{stack.ports['mlflow']}\n"
                f"log in as admin, with the passwords that this sets: set -a; . {stack.folder / 'client.env'}; set +a",
                flush=True,
            )
            ended.wait()
    except SurfError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
