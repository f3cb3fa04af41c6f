"""Makes the nights of past days in order, as if each had been made on its day."""

from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from surf2vec.flows.config import PipelineConfig
from surf2vec.flows.context import open_night
from surf2vec.flows.progress import report_step
from surf2vec.flows.steps import ingest_events
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.queries.nights import write_nights_page
from surf2vec.tasks.report.backfill import BackfillRecord, list_days, record_night
from surf2vec.tasks.root.run import lock_root, private_files
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent, log, log_progress
from surf2vec.trainer.system.files import digest_json


def make_past_nights(
    make_night: Callable[..., dict[str, Any]],
    root: Path,
    logs: list[str],
    since: date | None,
    until: date | None,
    config: PipelineConfig,
) -> dict[str, Any]:
    """Make the nights of past days by `make_night`, each with a window that ends on its day. See `surf2vec.flows.backfill`."""
    # Past days get no more deliveries, so the gate's rules about deliveries are turned off.
    gate = config.gate.model_copy(update={"newest_day_events": 0.0, "missing_days": 36_500})
    config = config.model_copy(update={"gate": gate})
    night = open_night(root, None, until, config)
    with report_step("backfill") as on_event, private_files(night.root):
        with lock_root(night.root, "backfill", partial(log, on_event)):
            ingest_events(night, logs)
        record = BackfillRecord(night.root, digest_json(config.outcome_settings())[:12])
        days = list_days(night.root, since, until)
        nights = []
        for number, (day, num_events) in enumerate(days.items(), start=1):
            nights.append(make_day(make_night, record, day, num_events, config, on_event))
            log_progress(on_event, "backfill", number, len(days), "days")
        write_nights_page(night.root, config.publish)
    return {"nights": nights, "report": str(night.root.nights_page)}


def make_day(
    make_night: Callable[..., dict[str, Any]],
    record: BackfillRecord,
    day: date,
    num_events: int,
    config: PipelineConfig,
    on_event: OnEvent,
) -> dict[str, Any]:
    """Make the night of a day unless it is recorded. Returns its record, or the reason why the day has no night."""
    root, log_line = record.root, partial(log, on_event)
    skipped = {"day": day.isoformat(), "events": 0}
    if not num_events:
        log_line(f"{day}: no night, as there are no events on this day")
        return skipped | {"skipped": "no events on this day"}
    request = CorpusRequest(config.ingest, config.evaluate, until=day, window_days=config.window_days)
    window = request.name(root)
    if done := record.find(day, window):
        log_line(f"{day}: done before, run {done['run_id']}")
        return done
    try:
        result = make_night(root=root.path, logs=[], until=day, config=config)
    except InputError as error:  # too few events, as on a first day; continue with the next day
        log_line(f"{day}: {error}")
        return skipped | {"skipped": str(error)}
    made = record_night(root, day, num_events, window, result)
    record.add(made)
    return made
