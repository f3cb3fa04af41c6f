"""The nights of past days as a Prefect flow."""

from datetime import date
from pathlib import Path
from typing import Any

from prefect import flow

from surf2vec.flows.config import DEFAULT_CONFIG, PipelineConfig
from surf2vec.flows.nightly import nightly
from surf2vec.flows.past_nights import make_past_nights


@flow(name="backfill", validate_parameters=True)
def backfill(
    root: Path,
    logs: list[str],
    since: date | None = None,
    until: date | None = None,
    config: PipelineConfig = DEFAULT_CONFIG,
) -> dict[str, Any]:
    """Run the nights of past days, each with a window that ends on its day.

    1. Ingest the log files that are new.
    2. Find the days, and which of them have events.
    3. Run the night of each day in order, unless it is done.
    4. Write the page of the nights.
    """
    return make_past_nights(nightly, root, logs, since, until, config)
