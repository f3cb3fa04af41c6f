"""Flows that a person starts besides nights, from Prefect's UI: to roll back, and to forget users; or where parts go to other
machines, which tell Prefect of each: to infer.
"""

from pathlib import Path
from typing import Any

from prefect import flow

from flows.cli import roots, users
from flows.cli.options import Call
from flows.config import DEFAULT_CONFIG, PipelineConfig
from flows.progress import report_step
from tasks.forgetting.forget import describe_elsewhere
from trainer.errors import LeftElsewhereError


@flow(name="rollback", validate_parameters=True)
def rollback(root: Path, version: int | None = None, config: PipelineConfig = DEFAULT_CONFIG) -> dict[str, Any]:
    """Let the champion before serve again, or another version that served; the next night goes on from it."""
    with report_step("rollback") as on_event:
        return roots.rollback(Call(root, config, on_event), version)


@flow(name="forget", validate_parameters=True)
def forget(root: Path, ids_file: Path, config: PipelineConfig = DEFAULT_CONFIG) -> dict[str, Any]:
    """Take the users of a file out of every place that names them. Return how many, and the proof, without their ids.

    Fails, after all is done, where copies that others registered still have any of them.
    """
    with report_step("forget") as on_event:
        result = users.forget(Call(root, config, on_event), ids_file)
    if left := describe_elsewhere(result["elsewhere"]):
        raise LeftElsewhereError(left)
    return result


@flow(name="infer", validate_parameters=True)
def infer(root: Path, logs: list[str], out: Path, config: PipelineConfig = DEFAULT_CONFIG) -> dict[str, Any]:
    """Vectors of the users in `logs` in the file `out`, by the release that serves."""
    with report_step("infer") as on_event:
        return users.infer_vectors(Call(root, config, on_event), logs, out)
