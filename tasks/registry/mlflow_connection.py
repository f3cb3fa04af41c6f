"""A client of MLflow whose failures become SurfErrors, downloads, and searches page by page.

Every call of MLflow goes through `connect`. Importing MLflow takes some 3 seconds, so callers that may not need it import this
folder late.
"""

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.root.credentials import mask_credentials
from trainer.errors import DamageError, ResourceError, SurfError, UnavailableError
from trainer.system.files import replace_file

# MLflow reads these when it is imported. A person's own settings win.
for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # failures reach the person as one SurfError, not as a traceback as well
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}.items():
    os.environ.setdefault(_name, _value)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow 3.17 warns of its own type hints when it is imported
    import mlflow.artifacts
    import mlflow.pyfunc
    import mlflow.store.db.utils
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

_AWAY = re.compile(
    r"(error code|too many|status code|^)\W*(429|5\d\d)\b|connection refused|max retries exceeded", re.IGNORECASE
)

logging.getLogger("alembic").setLevel(logging.WARNING)
# MLflow tries ten times, doubling its waits, to open a database, even one whose password is wrong: 100 seconds.
mlflow.store.db.utils.MAX_RETRY_COUNT = 4


@contextmanager
def connect(tracking_uri: str) -> Iterator[MlflowClient]:
    """A client of the tracking server and registry; what they raise becomes a ResourceError that says what to do."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(tracking_uri.removeprefix("sqlite:///"))
            if tracking_uri.startswith("sqlite:///") and not path.exists():
                # MLflow makes dozens of tables one by one, and cannot open a database in which a kill left only some of them.
                with replace_file(path) as temporary:
                    MlflowClient(f"sqlite:///{temporary}").search_experiments(max_results=1)
            yield MlflowClient(tracking_uri, tracking_uri)
    except SurfError:
        raise
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
        failure = UnavailableError if _is_away(error) else ResourceError
        raise failure(
            f"MLflow at {mask_credentials(tracking_uri)} failed: {_reason(error)}; see that the URI is right and has "
            "its password where it needs one, that the server is up and can be written to; the same command then goes on"
        ) from None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, its cause, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_away(error: BaseException) -> bool:
    """Whether the server or the network is at fault, so that it may pass: refused, timed out, or a status of 5xx or 429."""
    return any(isinstance(one, ConnectionError | TimeoutError) or _AWAY.search(str(one)) for one in _chain(error))


def _reason(error: BaseException) -> str:
    """The cause in a line: of a chain of exceptions the operating system's, for it is the plainest."""
    if isinstance(error, ImportError):
        return f"its database needs a driver that is not installed ({error})"
    for one in _chain(error):
        if isinstance(one, OSError) and one.strerror:
            return f"{one.strerror}{f' ({one.filename})' if one.filename else ''}"
    lines = [line for line in mask_credentials(str(error)).splitlines() if line.strip()]
    return lines[0][:300].rstrip(";:. ") if lines else type(error).__name__


@contextmanager
def use_uri(tracking_uri: str) -> Iterator[None]:
    """Some of MLflow learns where only from its process-wide setting, which is put back after."""
    before, environment = mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(tracking_uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before if environment is None else environment)
        if environment is None:
            os.environ.pop("MLFLOW_TRACKING_URI", None)


def gather(search: Callable[..., Any]) -> list[Any]:
    """All that a search of MLflow finds, page by page."""
    page = search()
    found = list(page)
    while page.token:
        page = search(page_token=page.token)
        found += page
    return found


def download(tracking_uri: str, place: str, folder: Path, what: str) -> Path:
    """Copy an artifact into the folder. Raises DamageError when there is none."""
    with connect(tracking_uri):
        try:
            found = mlflow.artifacts.download_artifacts(
                artifact_uri=place, dst_path=str(folder), tracking_uri=tracking_uri
            )
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST" and "404" not in str(error):
                raise
            raise DamageError(f"{what} is missing in the registry") from None
    return Path(found)
