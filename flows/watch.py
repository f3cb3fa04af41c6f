"""A look at what serves, once a day: an old champion is an alarm, whatever the nights before said of themselves."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from flows.alarms import tell_champion_old
from flows.config import PipelineConfig
from tasks.config import PublishConfig
from tasks.registry.pull import find_version
from tasks.root.identity import registry_uri
from tasks.root.run import Root

DEFAULT_CONFIG = PipelineConfig()


@flow(name="watch", validate_parameters=True, retries=3, retry_delay_seconds=60)
def watch(
    root: Path, config: PipelineConfig = DEFAULT_CONFIG, alert_days: Annotated[int, Field(ge=1)] = 3
) -> dict[str, Any]:
    """Say so when the release that serves is older than `alert_days`.

    1. Ask the registry for the champion and its age.
    2. Tell the server when it is too old.
    """
    champion = measure_champion(root, config.publish)
    if champion["age_days"] > alert_days:
        tell_champion_old(champion["release"], champion["age_days"])
    return champion


def measure_champion(root: Path, publish: PublishConfig) -> dict[str, Any]:
    """The release that serves, and how many days ago it was registered. Raises InputError when none does."""
    version = find_version(f"models:/{publish.model_name}@champion", registry_uri(Root(root), publish))
    age = datetime.now(UTC) - version.created_at
    return {
        "model_name": version.name,
        "model_version": version.number,
        "release": version.tags["release"],
        "age_days": round(age / timedelta(days=1), 3),
    }
