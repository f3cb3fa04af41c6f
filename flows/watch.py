"""Checks the champion once a day: raises an alarm if it is too old, even if no night reported a failure."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from surf2vec.flows.config import DEFAULT_CONFIG, PipelineConfig
from surf2vec.flows.progress import CHAMPION_OLD, raise_alarm
from surf2vec.tasks.registry.pull import find_version
from surf2vec.tasks.root.identity import registry_uri
from surf2vec.tasks.root.run import Root


@flow(name="watch", validate_parameters=True, retries=3, retry_delay_seconds=60)
def watch(
    root: Path, config: PipelineConfig = DEFAULT_CONFIG, alert_days: Annotated[int, Field(ge=1)] = 3
) -> dict[str, Any]:
    """Raise an alarm if the champion is older than `alert_days`. Raises InputError if there is no champion.

    1. Read the champion and its age from the registry.
    2. Send an event to the server if it is too old.
    """
    version = find_version(f"models:/{config.publish.model_name}@champion", registry_uri(Root(root), config.publish))
    age_days = (datetime.now(UTC) - version.created_at) / timedelta(days=1)
    release = {"model_version": version.number, "release": version.tags["release"], "age_days": round(age_days, 3)}
    if age_days > alert_days:
        raise_alarm(CHAMPION_OLD, version.tags["release"], age_days=f"{age_days:.1f}")
    return {"model_name": version.name} | release
