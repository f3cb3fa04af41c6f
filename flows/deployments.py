"""Flows besides the night, which a person starts from Prefect's UI: rollback and forget."""

from pathlib import Path
from typing import Any

from prefect import flow

from surf2vec.flows.cli import roots, users
from surf2vec.flows.cli.options import Call
from surf2vec.flows.config import DEFAULT_CONFIG, PipelineConfig
from surf2vec.flows.progress import report_step
from surf2vec.tasks.forgetting.forget import describe_elsewhere
from surf2vec.trainer.errors import LeftElsewhereError


@flow(name="rollback", validate_parameters=True)
def rollback(root: Path, version: int | None = None, config: PipelineConfig = DEFAULT_CONFIG) -> dict[str, Any]:
    """Let the previous champion serve again, or another version that served. The next night continues from it."""
    with report_step("rollback") as on_event:
        return roots.rollback(Call(root, config, on_event), version)


@flow(name="forget", validate_parameters=True)
def forget(root: Path, ids_file: Path, config: PipelineConfig = DEFAULT_CONFIG) -> dict[str, Any]:
    """Remove the users in a file from every place that names them. Returns their number and the proof, without ids.

    Fails at the end if copies that others registered still have any of them.
    """
    with report_step("forget") as on_event:
        result = users.forget(Call(root, config, on_event), ids_file)
    if left := describe_elsewhere(result["elsewhere"]):
        raise LeftElsewhereError(left)
    return result
