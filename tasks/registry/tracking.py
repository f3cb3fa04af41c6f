"""The one module that knows MLflow: runs, metrics, files, model versions, aliases, downloads.

Every function takes the tracking URI, is safe to call again, and ends in a SurfError when MLflow fails: a server
that is away must read like a sentence. Importing it takes some 3 seconds, so callers that may not need it import it late.
"""

import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tasks.root.credentials import mask_credentials
from tasks.root.identity import ROOT_TAG
from tasks.root.run import use_temporary_folder
from tasks.root.wording import shown
from trainer.errors import DamageError, ResourceError, SurfError, UnavailableError
from trainer.system.files import read_json, replace_file, sync_folder, sync_tree

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
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
    from mlflow.models import Model, ModelSignature
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import AnyType, Array
    from mlflow.utils.file_utils import local_file_uri_to_path
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
    from sqlalchemy.exc import SQLAlchemyError

RUN_TAG = "surf2vec_run_id"
PARENT_TAG = MLFLOW_PARENT_RUN_ID  # with the id of a run as its value, this run is shown below that one
MAX_BATCH_METRICS = 1000
MAX_BATCH_PARAMS = 100
MAX_PARAM_LENGTH = 6000
MODEL_CODE = Path(__file__).parent / "user_vectors_model.py"

_AWAY = re.compile(
    r"(error code|too many|status code|^)\W*(429|5\d\d)\b|connection refused|max retries exceeded", re.IGNORECASE
)

logging.getLogger("alembic").setLevel(logging.WARNING)
# MLflow tries ten times, doubling its waits, to open a database, even one whose password is wrong: 100 seconds.
mlflow.store.db.utils.MAX_RETRY_COUNT = 4


@dataclass(frozen=True)
class Point:
    """A value of a metric: `at_ms` milliseconds since 1970, `step` its place on the axis."""

    name: str
    value: float
    at_ms: int
    step: int = 0


@dataclass(frozen=True)
class Content:
    """What goes into a model: files and folders, copied under a name each; values that whoever loads it may set otherwise;
    and tags, by which the same content is found again."""

    artifacts: dict[str, Path]
    config: dict[str, str]
    tags: dict[str, str]


@dataclass(frozen=True)
class Version:
    """A version of a registered model; `is_copied`: it was made of another version, and has that one's tags.

    `made_of`: the id of the logged model that has its files, or where they are; `list_versions` says it of every version.
    """

    name: str
    number: int
    tags: dict[str, str]
    mlflow_run_id: str | None = None
    is_copied: bool = False
    made_of: str = field(default="", compare=False)

    @property
    def place(self) -> str:
        return f"models:/{self.name}/{self.number}"

    def uses(self, copy: "Copy") -> bool:
        """Whether the files of the version are those of this logged model."""
        return self.made_of == copy.model_id or f"{self.made_of}/".startswith(f"{copy.location.rstrip('/')}/")


@dataclass(frozen=True)
class Copy:
    """A logged model of an export, whoever made it, wherever its files are; an upload that was cut short is not ready."""

    model_id: str
    location: str
    tags: dict[str, str]
    is_ready: bool
    mlflow_run_id: str | None = None

    @property
    def folder(self) -> Path | None:
        """Where its files are, if they are on this machine."""
        is_local = self.location.startswith(("/", "file:"))
        return Path(local_file_uri_to_path(self.location)) if is_local else None


@dataclass(frozen=True)
class MlflowRun:
    """An MLflow run of a run of some root."""

    experiment: str
    tags: dict[str, str]


@dataclass(frozen=True)
class Registered:
    """What a registry has of a model: its versions, oldest first, and which of them its aliases name."""

    versions: list[Version]
    aliases: dict[str, int]

    @property
    def champion(self) -> Version | None:
        return next((one for one in self.versions if one.number == self.aliases.get("champion")), None)


@contextmanager
def connect(tracking_uri: str) -> Iterator[MlflowClient]:
    """A client of the tracking server and registry; what they raise becomes a ResourceError that says what to do."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _make_database(tracking_uri)
            yield MlflowClient(tracking_uri, tracking_uri)
    except SurfError:
        raise
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
        failure = UnavailableError if _is_away(error) else ResourceError
        raise failure(
            f"MLflow at {mask_credentials(tracking_uri)} failed: {_reason(error)}; see that the URI is right and has "
            "its password where it needs one, that the server is up and can be written to; the same command then goes on"
        ) from None


def _make_database(tracking_uri: str) -> None:
    """Make a sqlite database that is not there under a temporary name and rename it.

    MLflow makes dozens of tables one by one, and cannot open a database in which a kill left only some of them.
    """
    path = Path(tracking_uri.removeprefix("sqlite:///"))
    if tracking_uri.startswith("sqlite:///") and not path.exists():
        with replace_file(path) as temporary:
            MlflowClient(f"sqlite:///{temporary}").search_experiments(max_results=1)


def _is_away(error: BaseException) -> bool:
    """Whether it is the server's or the network's fault, and so may pass: refused, timed out, or answered with 5xx or 429."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, ConnectionError | TimeoutError) or _AWAY.search(str(at)):
            return True
        at = at.__cause__ or at.__context__
    return False


def _reason(error: BaseException) -> str:
    """The cause in a line: of a chain of exceptions the operating system's, for it is the plainest."""
    if isinstance(error, ImportError):
        return f"its database needs a driver that is not installed ({error})"
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError) and at.strerror:
            return f"{at.strerror}{f' ({at.filename})' if at.filename else ''}"
        at = at.__cause__ or at.__context__
    lines = [line for line in mask_credentials(str(error)).splitlines() if line.strip()]
    return lines[0][:300].rstrip(";:. ") if lines else type(error).__name__


def open_run(
    tracking_uri: str,
    artifacts: Path | None,
    experiment: str,
    run_id: str,
    tags: dict[str, str],
    params: dict[str, Any],
) -> str:
    """The id of the MLflow run of our run `run_id`: the one made for it before, else a new one. That of another root, by its
    tag, is none of ours, though the run has the same id.

    `artifacts` is the folder for artifacts where no server decides it. Params that are there stay as they are.
    """
    with connect(tracking_uri) as client:
        experiment_id = _open_experiment(client, experiment, artifacts)
        found = client.search_runs([experiment_id], f"tags.{RUN_TAG} = '{run_id}'")
        ours = [run for run in found if run.data.tags.get(ROOT_TAG) in (None, tags.get(ROOT_TAG))]
        if ours:  # one without the tag is from before there was one
            run = max(ours, key=lambda run: ROOT_TAG in run.data.tags)
            client.update_run(run.info.run_id, status="RUNNING")
        else:
            tags = {RUN_TAG: run_id, "mlflow.source.name": "surf2vec"} | tags
            run = client.create_run(experiment_id, tags=tags, run_name=run_id)
        missing = [
            Param(name, shown(mask_credentials(str(value)))[:MAX_PARAM_LENGTH])
            for name, value in params.items()
            if name not in run.data.params
        ]
        for start in range(0, len(missing), MAX_BATCH_PARAMS):
            client.log_batch(run.info.run_id, params=missing[start : start + MAX_BATCH_PARAMS])
        return run.info.run_id


def find_page(tracking_uri: str, mlflow_run_id: str) -> str | None:
    """The page of the run in MLflow's UI; None where there is no server, only its database."""
    if not tracking_uri.startswith("http"):
        return None
    with connect(tracking_uri) as client:
        experiment_id = client.get_run(mlflow_run_id).info.experiment_id
    return f"{mask_credentials(tracking_uri).rstrip('/')}/#/experiments/{experiment_id}/runs/{mlflow_run_id}"


def log_metrics(tracking_uri: str, mlflow_run_id: str, points: Sequence[Point]) -> None:
    """Log the points in batches. The same points again are no new ones."""
    metrics = [Metric(point.name, point.value, point.at_ms, point.step) for point in points]
    with connect(tracking_uri) as client:
        for start in range(0, len(metrics), MAX_BATCH_METRICS):
            client.log_batch(mlflow_run_id, metrics=metrics[start : start + MAX_BATCH_METRICS])


def log_files(
    tracking_uri: str, mlflow_run_id: str, files: Sequence[Path], documents: dict[str, dict[str, Any]]
) -> None:
    """Log small files, and JSON documents by name, as artifacts of the run."""
    with connect(tracking_uri) as client:
        for path in files:
            client.log_artifact(mlflow_run_id, str(path))
        for name, value in documents.items():
            client.log_dict(mlflow_run_id, value, name)


def read_document(tracking_uri: str, experiment: str, run_id: str, name: str) -> dict[str, Any]:
    """A JSON document that was logged to the MLflow run of our run. Raises DamageError when there is none."""
    what = f"{name} of run {run_id}"
    with connect(tracking_uri) as client, tempfile.TemporaryDirectory() as folder:
        there = client.get_experiment_by_name(experiment)
        found = (
            client.search_runs([there.experiment_id], f"tags.{RUN_TAG} = '{run_id}'", max_results=1) if there else []
        )
        if not found:
            raise DamageError(f"{what} is missing in the registry")
        return read_json(_download(tracking_uri, f"runs:/{found[0].info.run_id}/{name}", Path(folder), what))


def end_run(tracking_uri: str, mlflow_run_id: str, has_failed: bool = False) -> None:
    """Mark the MLflow run as finished, or as failed."""
    with connect(tracking_uri) as client:
        client.set_terminated(mlflow_run_id, "FAILED" if has_failed else "FINISHED")


def log_model(tracking_uri: str, mlflow_run_id: str, content: Content, requirements: list[str], temporary: Path) -> str:
    """Copy the content and the model's code into MLflow, once; returns the id of MLflow's logged model.

    MLflow first gathers a model in a temporary folder: `temporary`, for the system's own may be small. What an earlier
    call copied only in part goes; the tags tell whether a whole one is of this content.
    """
    with connect(tracking_uri) as client, _current(tracking_uri), use_temporary_folder(temporary):
        experiment_id = client.get_run(mlflow_run_id).info.experiment_id
        for model in client.search_logged_models([experiment_id], f"source_run_id = '{mlflow_run_id}'"):
            if str(model.status) != "READY":
                get_artifact_repository(model.artifact_location, tracking_uri).delete_artifacts()
                client.delete_logged_model(model.model_id)
            elif content.tags.items() <= model.tags.items():
                if _local(model.artifact_location):  # what made it was cut off, perhaps before all was on the disk
                    _fill_model(client, model, content, requirements)
                return model.model_id
        with mlflow.start_run(run_id=mlflow_run_id):
            logged = mlflow.pyfunc.log_model(name="user-vectors", tags=content.tags, **_parts(content, requirements))
        _sync_model(client, logged.model_id)
        return logged.model_id


def mend_model(tracking_uri: str, version: Version, content: Content, requirements: list[str], temporary: Path) -> None:
    """Copy the content and the model's code once more to where a version has them: its number and aliases stay."""
    with connect(tracking_uri) as client, _current(tracking_uri), use_temporary_folder(temporary):
        source = str(client.get_model_version(version.name, str(version.number)).source)
        model = client.get_logged_model(source.removeprefix("models:/"))
        _fill_model(client, model, content, requirements)
        client.set_logged_model_tags(model.model_id, content.tags)


def find_folder(tracking_uri: str, version: Version) -> Path | None:
    """The folder with the files of a version; None where they are not on this machine, or nobody but a server reaches them."""
    with connect(tracking_uri) as client:
        return _local(client.get_model_version_download_uri(version.name, str(version.number)))


def _fill_model(client: MlflowClient, model: Any, content: Content, requirements: list[str]) -> None:
    """Make the files of a logged model anew. Those there were go first: whoever has one mapped keeps it."""
    about = Model(model.artifact_location, model.source_run_id, model_uuid=model.model_id, model_id=model.model_id)
    with tempfile.TemporaryDirectory() as scratch:
        mlflow.pyfunc.save_model(f"{scratch}/model", mlflow_model=about, **_parts(content, requirements))
        get_artifact_repository(model.artifact_location).delete_artifacts()
        client.log_model_artifacts(model.model_id, f"{scratch}/model")
    _sync_model(client, model.model_id)


def _parts(content: Content, requirements: list[str]) -> dict[str, Any]:
    """What MLflow makes a model of."""
    return {
        "python_model": str(MODEL_CODE),
        "artifacts": {name: path.resolve().as_uri() for name, path in content.artifacts.items()},
        "model_config": content.config or None,
        "pip_requirements": requirements,
        "signature": _signature(),
        "input_example": (pd.DataFrame({"user_id": ["one-user", "another-user"]}), {"k": 0, "items": 0}),
    }


def _sync_model(client: MlflowClient, model_id: str) -> None:
    """Wait until the files of a logged model, and the folders down to them, are on the disk, where it is this machine's."""
    model = client.get_logged_model(model_id)
    folder, base = map(_local, (model.artifact_location, client.get_experiment(model.experiment_id).artifact_location))
    if folder and base:
        sync_tree(folder)
        for parent in folder.parents[: len(folder.parts) - len(base.parts) + 1]:
            sync_folder(parent)


def _local(location: str) -> Path | None:
    """The path of an artifact location on this machine; None for another."""
    return Path(local_file_uri_to_path(location)) if location.startswith(("/", "file:")) else None


def register(
    tracking_uri: str, model_name: str, model_id: str, mlflow_run_id: str, description: str, tags: dict[str, str]
) -> Version:
    """Make a version of the registered model of a logged model; its tags come with it, so that it can be found by them."""
    with connect(tracking_uri) as client, _current(tracking_uri):
        if not client.search_registered_models(f"name = '{model_name}'"):
            client.create_registered_model(model_name, description=description)
        return _as_version(
            client.create_model_version(
                model_name, f"models:/{model_id}", mlflow_run_id, tags=tags, description=description, model_id=model_id
            )
        )


def get_registered(tracking_uri: str, model_name: str) -> Registered:
    """The versions and aliases of the model; empty where there is no such model."""
    with connect(tracking_uri) as client:
        if not client.search_registered_models(f"name = '{model_name}'"):
            return Registered([], {})
        found = client.search_model_versions(f"name = '{model_name}'")
        aliases = client.get_registered_model(model_name).aliases
    versions = sorted((_as_version(one) for one in found), key=lambda version: version.number)
    return Registered(versions, {alias: int(number) for alias, number in sorted(aliases.items())})


def get_creation(tracking_uri: str, version: Version) -> datetime:
    """When the version was registered."""
    with connect(tracking_uri) as client:
        made_ms = client.get_model_version(version.name, str(version.number)).creation_timestamp
    return datetime.fromtimestamp(made_ms / 1000, UTC)


def list_models(tracking_uri: str) -> list[str]:
    """The names of the registered models (the first hundred)."""
    with connect(tracking_uri) as client:
        return sorted(model.name for model in client.search_registered_models())


def set_alias(tracking_uri: str, model_name: str, alias: str, version: int) -> None:
    """Move the alias to the version."""
    with connect(tracking_uri) as client:
        client.set_registered_model_alias(model_name, alias, str(version))


def set_tags(tracking_uri: str, version: Version, tags: dict[str, str | None]) -> None:
    """Set tags of a version; None takes one away."""
    with connect(tracking_uri) as client:
        for name, value in tags.items():
            if value is not None:
                client.set_model_version_tag(version.name, str(version.number), name, value)
            elif name in version.tags:
                client.delete_model_version_tag(version.name, str(version.number), name)


def delete_version(tracking_uri: str, version: Version) -> None:
    """Take a version out of the registry: nobody can load it any more. Its number is not given again; its run stays."""
    with connect(tracking_uri) as client:
        client.delete_model_version(version.name, str(version.number))


def list_versions(tracking_uri: str) -> list[Version]:
    """All versions of all registered models."""
    with connect(tracking_uri) as client:
        versions = [_as_version(one) for one in _gather(client.search_model_versions)]
        find = client.get_model_version_download_uri
        return [one if one.made_of else replace(one, made_of=find(one.name, str(one.number))) for one in versions]


def list_copies(tracking_uri: str) -> list[Copy]:
    """The logged models of all experiments that hold an export, or refer to one, or were to: those of other roots, too."""
    with connect(tracking_uri) as client:
        experiments = [one.experiment_id for one in _gather(client.search_experiments)]
        found = _gather(partial(client.search_logged_models, experiments)) if experiments else []
    return [
        Copy(
            model.model_id, model.artifact_location, dict(model.tags), str(model.status) == "READY", model.source_run_id
        )
        for model in found
        if {"manifest_sha256", "export_path"} <= model.tags.keys()
    ]


def list_runs(tracking_uri: str) -> dict[str, MlflowRun]:
    """The MLflow runs of runs of roots, by their id."""
    with connect(tracking_uri) as client:
        names = {one.experiment_id: one.name for one in _gather(client.search_experiments)}
        found = _gather(partial(client.search_runs, list(names), f"tags.{RUN_TAG} LIKE '%'")) if names else []
    return {run.info.run_id: MlflowRun(names[run.info.experiment_id], dict(run.data.tags)) for run in found}


def _gather(search: Callable[..., Any]) -> list[Any]:
    """All that a search of MLflow finds, page by page."""
    page = search()
    found = list(page)
    while page.token:
        page = search(page_token=page.token)
        found += page
    return found


def download_copied(tracking_uri: str, copy: Copy, path: str, folder: Path) -> Path:
    """A file of the export that a logged model holds, in `folder`. Raises DamageError when it is not there."""
    place = f"{copy.location.rstrip('/')}/{copy.tags['export_path']}/{path}"
    return _download(tracking_uri, place, folder, f"{path} of the logged model {copy.model_id}")


def delete_model(tracking_uri: str, model_id: str) -> None:
    """Delete a logged model and its files."""
    with connect(tracking_uri) as client:
        get_artifact_repository(client.get_logged_model(model_id).artifact_location, tracking_uri).delete_artifacts()
        client.delete_logged_model(model_id)


def download_file(tracking_uri: str, version: Version, path: str, target: Path) -> None:
    """Copy the file `path` of a model version to `target`. Raises DamageError when the version does not have it."""
    with connect(tracking_uri) as client, tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        location = client.get_model_version_download_uri(version.name, str(version.number))
        place, what = f"{location.rstrip('/')}/{path}", f"{path} of models:/{version.name}/{version.number}"
        os.replace(_download(tracking_uri, place, Path(scratch), what), target)


def _download(tracking_uri: str, place: str, folder: Path, what: str) -> Path:
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


def _open_experiment(client: MlflowClient, name: str, artifacts: Path | None) -> str:
    """The id of the experiment. One whose artifacts lie elsewhere (the root was copied or moved, and MLflow keeps
    absolute paths) is renamed aside: a run must not write into another root."""
    location = artifacts.as_uri() if artifacts else None
    experiment = client.get_experiment_by_name(name)
    if experiment and location and experiment.artifact_location not in (location, str(artifacts)):
        client.rename_experiment(
            experiment.experiment_id, f"{name} (before the root was moved, {experiment.experiment_id})"
        )
        experiment = None
    return experiment.experiment_id if experiment else client.create_experiment(name, location)


def _signature() -> ModelSignature:
    texts, numbers = Array(DataType.string), Array(DataType.double)
    outputs = {"vector": numbers, "neighbours": texts, "scores": numbers, "items": texts, "item_scores": numbers}
    optional = [ColSpec(kind, name, required=False) for name, kind in outputs.items()]
    return ModelSignature(
        # Any, not string: MLflow would turn away ids that pandas holds as numbers, and an empty frame.
        inputs=Schema([ColSpec(AnyType(), "user_id")]),
        outputs=Schema([ColSpec(AnyType(), "user_id"), *optional]),
        params=ParamSchema([ParamSpec("k", DataType.long, 0), ParamSpec("items", DataType.long, 0)]),
    )


def _as_version(version: Any) -> Version:
    source = str(version.source).removeprefix("models:/")  # the id of a logged model, or NAME/VERSION
    is_copied = source != version.source and "/" in source
    made_of = "" if source == version.source or is_copied else source
    return Version(version.name, int(version.version), dict(version.tags), version.run_id, is_copied, made_of)


@contextmanager
def _current(tracking_uri: str) -> Iterator[None]:
    """Some of MLflow learns where only from its process-wide setting, which is put back after."""
    before, environment = mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(tracking_uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before if environment is None else environment)
        if environment is None:
            os.environ.pop("MLFLOW_TRACKING_URI", None)
