"""MLflow: a client whose failures become SurfErrors, downloads, and the MLflow run that each run of a root has.

All calls of MLflow go through `connect` and can be repeated. Importing MLflow takes about 3 seconds, so callers that may not
need it import this folder late.
"""

import glob
import json
import logging
import os
import re
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.identity import ROOT_TAG, artifacts_folder, claim_registry, is_own_registry, registry_uri
from surf2vec.tasks.root.records import CorpusStep
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.errors import DamageError, ResourceError, SurfError, UnavailableError
from surf2vec.trainer.system.files import (
    TEMPORARY_SUFFIX,
    lock,
    make_folder,
    read_json,
    replace_file,
    sync_path,
    user_cache,
)

# MLflow reads these when it is imported. A person's own settings win.
for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # failures are shown as one SurfError, without a traceback
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}.items():
    os.environ.setdefault(_name, _value)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow 3.17 warns of its own type hints when it is imported
    import mlflow.pyfunc
    import mlflow.store.db.utils
    from mlflow import MlflowClient
    from mlflow.artifacts import download_artifacts
    from mlflow.entities import Dataset, DatasetInput, InputTag, Param
    from mlflow.entities import Metric as Metric  # exported: only this folder imports mlflow
    from mlflow.exceptions import MlflowException
    from mlflow.tracking.context.registry import resolve_tags
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME, MLFLOW_RUN_NOTE, MLFLOW_USER
    from sqlalchemy.exc import SQLAlchemyError

RUN_TAG = "surf2vec_run_id"
NAME_TAG = MLFLOW_RUN_NAME  # its value is the name that MLflow's pages show
KIND_TAG, KIND = "mlflow.experimentKind", "custom_model_development"  # otherwise MLflow opens a page about agents
VIEW = "?workflowType=machine_learning"  # since MLflow 3.17 a link chooses the view, the kind does not
PARENT_TAG = MLFLOW_PARENT_RUN_ID  # its value is the id of the parent run
MAX_BATCH_METRICS = 1000
MAX_BATCH_PARAMS = 100
MAX_PARAM_LENGTH = 6000
_AWAY = re.compile(
    r"(error code|too many|status code|^)\W*(429|5\d\d)\b|connection refused|max retries exceeded|database is locked",
    re.IGNORECASE,
)
_ADVICE = {  # what to do about a failure, by a part of its reason
    "database is locked": "another program holds it, which `fuser FILE` names: wait until it ends, or end it",
    "must be in the 'active' state": "restore it by `mlflow experiments restore`, or name another by publish.experiment",
    "": "see that the URI is right and has its password where it needs one, that the server is up and can be written to",
}

logging.getLogger("alembic").setLevel(logging.WARNING)
# MLflow tries ten times, doubling its waits, to open a database, even one whose password is wrong: 100 seconds.
mlflow.store.db.utils.MAX_RETRY_COUNT = 4


@contextmanager
def connect(tracking_uri: str) -> Iterator[MlflowClient]:
    """Yield a client of the tracking server and registry. Its errors become a ResourceError that says what to do."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path, is_file = Path(tracking_uri.removeprefix("sqlite:///")), tracking_uri.startswith("sqlite:///")
            if is_file and not path.exists():
                _make_database(path)
            yield MlflowClient(tracking_uri, tracking_uri)
            if is_file:
                # SQLite ends a transaction by removing its journal: if that name came back, it would undo what was done.
                sync_path(path.parent)
    except SurfError:
        raise
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
        # The server or the network failed, so a retry may help: refused, timed out, or a status of 5xx or 429.
        is_away = any(
            isinstance(one, ConnectionError | TimeoutError) or _AWAY.search(str(one)) for one in _chain(error)
        )
        failure, reason = UnavailableError if is_away else ResourceError, _reason(error)
        advice = next((text for found, text in _ADVICE.items() if found in reason), _ADVICE[""])
        raise failure(
            f"MLflow at {mask_credentials(tracking_uri)} failed: {reason}; {advice}; then run the same command again"
        ) from None


def _make_database(path: Path) -> None:
    """Make an empty database of MLflow, whole: it makes dozens of tables one by one, and cannot open one that has only some.

    That takes two seconds, so the user's cache keeps an empty one of this version of MLflow, which is copied. Two processes do
    not make the same database, as the second would replace the first. What a killed one left is removed.
    """
    template = user_cache() / f"mlflow-{mlflow.__version__}.db"
    make_folder(path.parent)
    with lock(path.with_name(f".{path.name}.lock")):
        if path.exists():
            return
        # Unfinished files, and SQLite's journals of them.
        for left in path.parent.glob(f".{glob.escape(path.name)}.*{TEMPORARY_SUFFIX}*"):
            left.unlink()
        with replace_file(path) as temporary:
            if template.exists():
                shutil.copyfile(template, temporary)
                if _is_whole(temporary):
                    return
                temporary.unlink()
            MlflowClient(f"sqlite:///{temporary}").search_experiments(max_results=1)
            with suppress(OSError), replace_file(template) as copy:
                shutil.copyfile(temporary, copy)
                # MLflow makes the first experiment again, for its own folder.
                with closing(sqlite3.connect(copy)) as con, con:
                    con.execute("delete from experiments")


def _is_whole(path: Path) -> bool:
    """Return whether a file is a database of MLflow without damage."""
    try:
        with closing(sqlite3.connect(path)) as con:
            [version] = con.execute("select count(*) from alembic_version").fetchall()
            return [version, *con.execute("pragma quick_check")] == [(1,), ("ok",)]
    except sqlite3.Error:
        return False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: BaseException) -> str:
    """Return the cause in one line: the error of the operating system if there is one, as it is the plainest."""
    if isinstance(error, ImportError):
        return f"its database needs a driver that is not installed ({error})"
    for one in _chain(error):
        if isinstance(one, OSError) and one.strerror:
            return f"{one.strerror}{f' ({one.filename})' if one.filename else ''}"
    # SQLAlchemy first says where it met the error, then what it is.
    lines = [line for line in mask_credentials(str(error)).splitlines() if line.strip() and "autoflush" not in line]
    return lines[0][:300].rstrip(";:. ") if lines else type(error).__name__


@contextmanager
def use_uri(tracking_uri: str) -> Iterator[None]:
    """Set MLflow's process-wide URI, which some of its functions need, and restore it afterwards."""
    before, environment = mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(tracking_uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before if environment is None else environment)
        if environment is None:
            os.environ.pop("MLFLOW_TRACKING_URI", None)


def gather(search: Callable[..., Any]) -> list[Any]:
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
            found = download_artifacts(artifact_uri=place, dst_path=str(folder), tracking_uri=tracking_uri)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST" and "404" not in str(error):
                raise
            raise DamageError(f"{what} is missing in the registry") from None
    return Path(found)


@contextmanager
def let_others_make() -> Iterator[None]:
    """Let it pass that another root has just made what the block makes."""
    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def open_run(
    root: Root,
    publish: PublishConfig,
    run_id: str,
    tags: dict[str, str],
    params: dict[str, Any],
    started_ms: int | None = None,
) -> str:
    """Return the id of the MLflow run for our run `run_id`; create the MLflow run, with the root's tag, if there is none.

    Runs with the tag of another root are ignored. The artifacts of the root's own registry are nowhere else than in its folder.
    Existing params are not changed. started_ms: when our run began, since 1970; now by default.
    """
    root_id, uri, experiment = claim_registry(root, publish), registry_uri(root, publish), publish.experiment
    artifacts = artifacts_folder(root, uri)
    with connect(uri) as client:
        place, location = client.get_experiment_by_name(experiment), artifacts.as_uri() if artifacts else None
        if place and is_own_registry(root, publish) and place.artifact_location not in (location, str(artifacts)):
            aside = f"{experiment} (outside of the root, {place.experiment_id})"
            client.rename_experiment(place.experiment_id, aside)
            place = None
        if place is None:
            with let_others_make():
                client.create_experiment(experiment, location)
            place = client.get_experiment_by_name(experiment)
            assert place, f"MLflow has no experiment {experiment!r}, which was just created"
        experiment_id = place.experiment_id
        if KIND_TAG not in place.tags:
            client.set_experiment_tag(experiment_id, KIND_TAG, KIND)
        found = client.search_runs([experiment_id], f"tags.{RUN_TAG} = '{run_id}'")
        ours = [run for run in found if run.data.tags.get(ROOT_TAG) == root_id]
        if ours:
            run = ours[0]
            client.update_run(run.info.run_id, status="RUNNING")
        else:
            user = resolve_tags().get(MLFLOW_USER, "")  # "Created by": the model's card says to ask them
            own = {RUN_TAG: run_id, ROOT_TAG: root_id, "mlflow.source.name": "surf2vec", MLFLOW_USER: user}
            tags = own | {NAME_TAG: run_id} | tags
            run = client.create_run(experiment_id, started_ms, tags, tags[NAME_TAG])
        missing = [
            Param(name, shown(mask_credentials(str(value)))[:MAX_PARAM_LENGTH])
            for name, value in params.items()
            if name not in run.data.params
        ]
        for start in range(0, len(missing), MAX_BATCH_PARAMS):
            client.log_batch(run.info.run_id, params=missing[start : start + MAX_BATCH_PARAMS])
        return run.info.run_id


def find_deleted(tracking_uri: str, experiment: str) -> list[str]:
    """Return the id of the experiment of this name if it was deleted; else nothing."""
    with connect(tracking_uri) as client:
        place = client.get_experiment_by_name(experiment)
    return [place.experiment_id] if place and place.lifecycle_stage == "deleted" else []


def find_page(tracking_uri: str, mlflow_run_id: str) -> str | None:
    """Return the URL of the run in MLflow's UI; None if there is no server, only a database."""
    if not tracking_uri.startswith("http"):
        return None
    with connect(tracking_uri) as client:
        experiment_id = client.get_run(mlflow_run_id).info.experiment_id
    return f"{mask_credentials(tracking_uri).rstrip('/')}/#/experiments/{experiment_id}/runs/{mlflow_run_id}{VIEW}"


def log_run(
    tracking_uri: str,
    mlflow_run_id: str,
    metrics: Sequence[Metric] = (),
    files: Sequence[Path] = (),
    documents: Mapping[str, dict[str, Any]] = {},
    note: str | None = None,
    status: str | None = None,
) -> None:
    """Log to a run: its description in Markdown, values of metrics, small files, JSON documents by name. End it with `status`.

    Logging the same values and times again adds nothing.
    """
    with connect(tracking_uri) as client:
        if note is not None:
            client.set_tag(mlflow_run_id, MLFLOW_RUN_NOTE, note)
        for start in range(0, len(metrics), MAX_BATCH_METRICS):
            client.log_batch(mlflow_run_id, metrics=metrics[start : start + MAX_BATCH_METRICS])
        for path in files:
            client.log_artifact(mlflow_run_id, str(path))
        for name, value in documents.items():
            client.log_dict(mlflow_run_id, value, name)
        if status:
            client.set_terminated(mlflow_run_id, status)


def log_corpus(tracking_uri: str, mlflow_run_id: str, folder: Path, corpus: CorpusStep) -> None:
    """Log the corpus of a run as its dataset. Its digest is the corpus's id, which is a digest of events and settings."""
    profile = corpus.model_dump_json(include={"num_users", "num_items", "num_tokens", "since", "until"})
    dataset = Dataset("corpus", folder.name, "local", json.dumps({"uri": folder.absolute().as_uri()}), profile=profile)
    with connect(tracking_uri) as client:
        client.log_inputs(mlflow_run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def read_document(tracking_uri: str, experiment: str, run_id: str, name: str) -> dict[str, Any]:
    """Return a JSON document that was logged to the MLflow run of `run_id`. Raises DamageError when there is none."""
    what = f"{name} of run {run_id}"
    with connect(tracking_uri) as client, tempfile.TemporaryDirectory() as folder:
        place = client.get_experiment_by_name(experiment)
        found = client.search_runs([place.experiment_id], f"tags.{RUN_TAG} = '{run_id}'") if place else []
        if not found:
            raise DamageError(f"{what} is missing in the registry")
        return read_json(download(tracking_uri, f"runs:/{found[0].info.run_id}/{name}", Path(folder), what))
