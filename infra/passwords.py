"""The passwords of the stack: from the environment, or generated once and kept in a file that only its owner can read.

There is no default password. A stack that has data but has lost its passwords is an error: new ones would not open it.
"""

import json
import os
import re
import secrets
from pathlib import Path

from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.system.files import read_json, write_secret

NAMES = ("postgres", "prefect", "mlflow", "mlflow_session", "s3_key", "s3_secret")
LEAST_CHARACTERS = 12
"""MLflow accepts no shorter password."""
ALLOWED = re.compile(rf"[\w.~-]{{{LEAST_CHARACTERS},}}", re.ASCII)


def variable(name: str) -> str:
    """Return the environment variable of a password: `postgres` → `SURF2VEC_POSTGRES_PASSWORD`."""
    return f"SURF2VEC_{name.upper()}_PASSWORD"


def open_passwords(file: Path, has_data: bool) -> dict[str, str]:
    """Return the passwords by name. Those missing in the environment come from `file`, or are generated for a new stack.

    Raises ConfigError if a password is too short, or if a stack that has data lacks one.
    """
    kept = read_json(file) if file.exists() else {}
    found = {name: os.environ.get(variable(name)) or kept.get(name) for name in NAMES}
    missing = [name for name, value in found.items() if not value]
    if missing and has_data:
        raise ConfigError(
            f"{file} lacks the passwords of {', '.join(missing)}, and this stack has data that only they open: bring the "
            f"file back, or set {', '.join(variable(name) for name in missing)}"
        )
    passwords = {name: value or secrets.token_urlsafe(24) for name, value in found.items()}
    for name, value in passwords.items():
        if not ALLOWED.fullmatch(value):
            raise ConfigError(
                f"{variable(name)} has {len(value)} characters: it must have at least {LEAST_CHARACTERS}, all of them letters, "
                "digits, '-', '_', '.' or '~', as it becomes part of a URL"
            )
    write_secret(file, json.dumps(passwords, indent=1).encode())
    return passwords
