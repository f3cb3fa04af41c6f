"""Registered models in MLflow: their files, versions, aliases and tags, and the logged models that hold copies.

Every function takes the tracking URI, is safe to call again, and raises a SurfError when MLflow fails.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

# This import comes first: it sets environment variables that MLflow reads when it is imported.
from surf2vec.tasks.registry.mlflow_runs import connect, download, gather, let_others_make, use_uri

# isort: split
import mlflow.pyfunc
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput
from mlflow.models import Model, ModelSignature
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType, Array

from surf2vec.tasks.registry.versions import Version, as_time, is_copied, local_folder, read_tags, store_tags
from surf2vec.tasks.root.run import use_temporary_folder
from surf2vec.trainer.system.files import sync_path, sync_tree

MODEL_CODE = Path(__file__).parent / "user_vectors_model.py"
MODEL_MODULES = tuple(
    Path(__file__).parents[1] / "release" / f"{name}.py" for name in ("release_reader", "trail_sums", "url_rules")
)
REQUIREMENTS = ("mlflow", "numpy", "pandas", "pyarrow", "faiss-cpu", "ada-url")
mlflow.utils.requirements_utils._check_requirement_satisfied = lambda requirement_str: None  # that took a second


@dataclass(frozen=True)
class Content:
    """The content of a model: files and folders, each copied under a name; configuration, which a reader may override; tags,
    which identify the content; and the column that its example shows beside the users: `pages` if there is a trail, or `seen`."""

    artifacts: dict[str, Path]
    config: dict[str, str]
    tags: dict[str, str]
    column: str


@dataclass(frozen=True)
class Copy:
    """A logged model of an export, possibly of another root. After an interrupted upload it is not ready."""

    model_id: str
    location: str
    tags: dict[str, str]
    is_ready: bool

    @property
    def folder(self) -> Path | None:
        return local_folder(self.location)

    def is_used_by(self, version: Version) -> bool:
        return version.location == self.model_id or f"{version.location}/".startswith(f"{self.location.rstrip('/')}/")


def log_model(tracking_uri: str, mlflow_run_id: str, content: Content, temporary: Path) -> str:
    """Copy the content and the model's code into MLflow, unless it is there. Returns the id of MLflow's logged model.

    MLflow first gathers a model in a temporary folder: `temporary`, as the system's may be small. Incomplete copies of earlier
    calls are removed. A complete copy is recognised by its tags.
    """
    with connect(tracking_uri) as client, use_uri(tracking_uri), use_temporary_folder(temporary):
        run = client.get_run(mlflow_run_id)
        experiment_id = run.info.experiment_id
        for model in client.search_logged_models([experiment_id], f"source_run_id = '{mlflow_run_id}'"):
            if str(model.status) != "READY":
                _delete_model(client, model, tracking_uri)
            elif content.tags.items() <= model.tags.items():
                if local_folder(model.artifact_location):  # an interrupted call may have left files that are not synced
                    _fill_model(client, model, content)
                return model.model_id
        # Not mlflow.pyfunc.log_model, which runs the example: that reads all items into memory.
        model = client.create_logged_model(experiment_id, "user-vectors", mlflow_run_id, content.tags, run.data.params)
        client.log_outputs(mlflow_run_id, [LoggedModelOutput(model.model_id, step=0)])
        _fill_model(client, model, content)
        client.finalize_logged_model(model.model_id, "READY")
        return model.model_id


def repair_copy(tracking_uri: str, version: Version, content: Content, temporary: Path) -> None:
    """Replace the files of a version with the content and the model's code. Its number and aliases stay."""
    with connect(tracking_uri) as client, use_uri(tracking_uri), use_temporary_folder(temporary):
        source = str(client.get_model_version(version.name, str(version.number)).source)
        model = client.get_logged_model(source.removeprefix("models:/"))
        _fill_model(client, model, content)
        client.set_logged_model_tags(model.model_id, content.tags)


def _fill_model(client: MlflowClient, model: Any, content: Content) -> None:
    """Delete the files of a logged model and write them again. Processes that have mapped a deleted file keep it."""
    about = Model(model.artifact_location, model.source_run_id, model_uuid=model.model_id, model_id=model.model_id)
    folder = local_folder(model.artifact_location)
    with tempfile.TemporaryDirectory() as scratch, find_modules():
        mlflow.pyfunc.save_model(f"{scratch}/model", mlflow_model=about, **_parts(content))
        get_artifact_repository(model.artifact_location).delete_artifacts()
        if folder:  # on the same disk that is a new name, not another copy
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(f"{scratch}/model", folder)
        else:
            client.log_model_artifacts(model.model_id, f"{scratch}/model")
    base = local_folder(client.get_experiment(model.experiment_id).artifact_location)
    if folder and base:
        sync_tree(folder)
        for parent in folder.parents[: len(folder.parts) - len(base.parts) + 1]:
            sync_path(parent)


@contextmanager
def find_modules() -> Iterator[None]:
    """Let the model's code find its modules, as in a process that loads it: MLflow runs it when it is saved, too."""
    folder = str(MODEL_MODULES[0].parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _parts(content: Content) -> dict[str, Any]:
    texts, numbers = Array(DataType.string), Array(DataType.double)
    outputs = {"vector": numbers, "neighbours": texts, "scores": numbers, "items": texts, "item_scores": numbers}
    optional = [ColSpec(kind, name, required=False) for name, kind in outputs.items()]
    optional.append(ColSpec(DataType.long, "unknown_pages", required=False))
    # Any, not string: MLflow would refuse ids that pandas holds as numbers, and an empty frame.
    # Nor lists of strings: the model says in words what is wrong with them.
    inputs = [ColSpec(AnyType(), name, required=False) for name in ("user_id", "pages", "seen")]
    counts = [ParamSpec(name, DataType.long, 0) for name in ("k", "items")]
    words = [ParamSpec(name, DataType.string, default) for name, default in (("part", ""), ("seen", "leave out"))]
    example = pd.DataFrame({"user_id": ["one-user", "another-user"], content.column: [["https://shop.example/a"], []]})
    return {
        "python_model": str(MODEL_CODE),
        "code_paths": [str(path) for path in MODEL_MODULES],
        "artifacts": {name: path.resolve().as_uri() for name, path in content.artifacts.items()},
        "model_config": content.config or None,
        "pip_requirements": pin_requirements(),
        "signature": ModelSignature(Schema([*inputs]), Schema([inputs[0], *optional]), ParamSchema([*counts, *words])),
        "input_example": (example, {"k": 0, "items": 0, "seen": "leave out"}),
    }


def pin_requirements() -> list[str]:
    """Return the model's requirements, pinned to the installed versions."""
    # A local part such as +cpu names a build that the package index does not have.
    return [f"{name}=={installed_version(name).split('+')[0]}" for name in REQUIREMENTS]


def register(
    tracking_uri: str, model_name: str, model_id: str, mlflow_run_id: str, cards: tuple[str, str], tags: dict[str, str]
) -> Version:
    """Register a logged model as a version. It is created with its tags, so that it can always be found by them.

    cards: the descriptions of the model and of the version. A description of the model that a person wrote stays.
    """
    model_card, description = cards
    with connect(tracking_uri) as client, use_uri(tracking_uri):
        if not client.search_registered_models(f"name = '{model_name}'"):
            with let_others_make():
                client.create_registered_model(model_name, description=model_card)
        source = f"models:/{model_id}"
        stored: dict[str, Any] = store_tags({}, tags)
        created = client.create_model_version(
            model_name, source, mlflow_run_id, tags=stored, description=description, model_id=model_id
        )
        return _as_version(created)


def read(tracking_uri: str, model_name: str | None = None) -> tuple[list[Version], dict[str, dict[str, int]]]:
    """Return the versions of a model, or of all models, and the aliases of each model."""
    name = f"name = '{model_name}'" if model_name else None
    with connect(tracking_uri) as client:
        models = gather(partial(client.search_registered_models, name))
        # After the aliases: so it has the versions that they name.
        versions = [_as_version(one) for one in gather(partial(client.search_model_versions, name))]
        find = client.get_model_version_download_uri
        versions = [one if one.location else replace(one, location=find(one.name, str(one.number))) for one in versions]
    return versions, {one.name: {alias: int(number) for alias, number in one.aliases.items()} for one in models}


def set_alias(tracking_uri: str, model_name: str, alias: str, version: int) -> None:
    with connect(tracking_uri) as client:
        client.set_registered_model_alias(model_name, alias, str(version))


def set_tags(tracking_uri: str, version: Version, tags: Mapping[str, str | None]) -> None:
    """Set tags of a version; None removes a tag."""
    with connect(tracking_uri) as client:
        for name, value in store_tags(version.tags, tags).items():
            if value is not None:
                client.set_model_version_tag(version.name, str(version.number), name, value)
            elif name in version.tags:
                client.delete_model_version_tag(version.name, str(version.number), name)


def delete_version(tracking_uri: str, version: Version) -> None:
    """Delete a version from the registry: it can no longer be loaded. Its number is not used again; its run stays."""
    with connect(tracking_uri) as client:
        client.delete_model_version(version.name, str(version.number))


def list_copies(tracking_uri: str) -> list[Copy]:
    """Return the logged models with an export or a reference to one, also incomplete ones and those of other roots."""
    with connect(tracking_uri) as client:
        experiments = [one.experiment_id for one in gather(client.search_experiments)]
        found = gather(partial(client.search_logged_models, experiments)) if experiments else []
    return [
        Copy(one.model_id, one.artifact_location, dict(one.tags), str(one.status) == "READY")
        for one in found
        if {"manifest_sha256", "export_path"} <= one.tags.keys()
    ]


def delete_model(tracking_uri: str, model_id: str) -> None:
    with connect(tracking_uri) as client:
        _delete_model(client, client.get_logged_model(model_id), tracking_uri)


def _delete_model(client: MlflowClient, model: Any, tracking_uri: str) -> None:
    get_artifact_repository(model.artifact_location, tracking_uri).delete_artifacts()
    client.delete_logged_model(model.model_id)
    if folder := local_folder(model.artifact_location):
        with suppress(OSError):  # MLflow leaves the empty folder of the model
            folder.parent.rmdir()


def download_file(tracking_uri: str, version: Version, path: str, target: Path) -> None:
    """Copy the file `path` of a model version to `target`. Raises DamageError when the version does not have it."""
    with connect(tracking_uri) as client, tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        location = client.get_model_version_download_uri(version.name, str(version.number)).rstrip("/")
        os.replace(download(tracking_uri, f"{location}/{path}", Path(scratch), f"{path} of {version.place}"), target)


def _as_version(version: Any) -> Version:
    source, copied = str(version.source), is_copied(str(version.source))
    model_id = "" if copied or not source.startswith("models:/") else source.removeprefix("models:/")
    created_at = as_time(version.creation_timestamp)
    return Version(version.name, int(version.version), read_tags(version.tags), copied, model_id, created_at)
