"""MLflow runs: one for each run of a root, with its metrics, files and documents. Each function is safe to call again."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.registry.mlflow_connection import connect, download  # first: it settles how MLflow is imported

# isort: split
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from tasks.root.credentials import mask_credentials
from tasks.root.identity import ROOT_TAG
from tasks.root.wording import shown
from trainer.errors import DamageError
from trainer.system.files import read_json

RUN_TAG = "surf2vec_run_id"
PARENT_TAG = MLFLOW_PARENT_RUN_ID  # with the id of a run as its value, this run is shown below that one
MAX_BATCH_METRICS = 1000
MAX_BATCH_PARAMS = 100
MAX_PARAM_LENGTH = 6000


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


def log_metrics(tracking_uri: str, mlflow_run_id: str, metrics: Sequence[Metric]) -> None:
    """Log values of metrics in batches. The same values of the same times again are no new ones."""
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
        place = client.get_experiment_by_name(experiment)
        found = client.search_runs([place.experiment_id], f"tags.{RUN_TAG} = '{run_id}'") if place else []
        if not found:
            raise DamageError(f"{what} is missing in the registry")
        return read_json(download(tracking_uri, f"runs:/{found[0].info.run_id}/{name}", Path(folder), what))


def end_run(tracking_uri: str, mlflow_run_id: str, has_failed: bool = False) -> None:
    """Mark the MLflow run as finished, or as failed."""
    with connect(tracking_uri) as client:
        client.set_terminated(mlflow_run_id, "FAILED" if has_failed else "FINISHED")


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
