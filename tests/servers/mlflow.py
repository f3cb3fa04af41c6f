"""MLflow's server as a process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surf2vec.infra.services import Service, find_port, responds
from surf2vec.infra.stack import QUIET


@contextmanager
def serve_mlflow(folder: Path, database_uri: str, artifacts: Path | None = None) -> Iterator[Service]:
    """A server of this registry that answers; its name is its address. Artifacts go through it to the folder, if one is given."""
    url = f"http://127.0.0.1:{find_port(None)}"
    command = [
        *(
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            url.rpartition(":")[2],
            "--workers",
            "1",
        ),
        *("--backend-store-uri", database_uri, *(["--artifacts-destination", str(artifacts)] if artifacts else [])),
    ]
    server = Service(url, command, folder / "server.log", lambda: responds(f"{url}/health"), QUIET)
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.stop()
