"""An MLflow server with basic authentication: `python -m surf2vec.infra.mlflow_server --host H --port P`.

MLflow reads the address of its users' database, including the password, only from a file. The file is written here from
$SURF2VEC_MLFLOW_USERS, readable only by its owner, and removed when the server ends.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from surf2vec.trainer.system.files import write_secret


def main(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--workers", "1", *arguments]
    with tempfile.TemporaryDirectory(prefix="surf2vec-mlflow-") as folder:
        settings = Path(folder) / "auth.ini"
        users = os.environ["SURF2VEC_MLFLOW_USERS"]
        text = f"[mlflow]\ndefault_permission = READ\nauth_cache_ttl_seconds = 60\ndatabase_uri = {users}\n"
        write_secret(settings, text.encode())
        server = subprocess.Popen(command, env=os.environ | {"MLFLOW_AUTH_CONFIG_PATH": str(settings)}, cwd=folder)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.terminate())
        return server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
