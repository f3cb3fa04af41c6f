"""A look at what serves, once a day: an old champion is an alarm, whatever the nights before said of themselves."""

from pathlib import Path
from typing import Any

from prefect import flow

from flows.alarms import tell_champion_old
from flows.config import PipelineConfig

DEFAULT_CONFIG = PipelineConfig()


@flow(name="watch", validate_parameters=True, retries=3, retry_delay_seconds=60)
def watch(root: Path, config: PipelineConfig = DEFAULT_CONFIG) -> dict[str, Any]:
    """Say so when the release that serves is older than alarms.alert_days.

    1. Ask the registry for the champion and its age.
    2. Tell the server when it is too old.
    """
    from flows.operations import measure_champion

    champion = measure_champion(root, config)
    if champion["age_days"] > config.alarms.alert_days:
        tell_champion_old(champion["release"], champion["age_days"])
    return champion
