"""Nights of days that are past, one after another, as if each had been run on its day."""

from datetime import date
from pathlib import Path
from typing import Any

from prefect import flow

from flows.config import PipelineConfig
from flows.context import open_night
from flows.nightly import DEFAULT_CONFIG, nightly
from flows.progress import report_step
from flows.steps import ingest_events
from tasks.corpus.window import CorpusRequest
from tasks.report.backfill_page import write_nights_report
from tasks.report.backfill_record import BackfillRecord, list_days, record_night
from tasks.root.run import lock_root, private_files
from trainer.errors import InputError
from trainer.events import OnEvent
from trainer.system.files import digest_json


@flow(name="backfill", validate_parameters=True)
def backfill(
    root: Path,
    logs: list[str],
    since: date | None = None,
    until: date | None = None,
    config: PipelineConfig = DEFAULT_CONFIG,
) -> dict[str, Any]:
    """Nights of past days, each with a window that ends on its day.

    1. Ingest the log files that are new.
    2. Find the days, and which of them have events.
    3. Run the night of each day in order, unless it is done.
    4. Write the page of the nights.
    """
    config = take_days_as_they_are(config)
    night = open_night(root, None, until, config)
    with report_step("backfill") as on_event, private_files(night.root):
        with lock_root(night.root, "backfill", lambda line: on_event("log", {"message": line})):
            ingest_events(night, logs)
        ledger = BackfillRecord(night.root, digest_json(config.outcome_settings())[:12])
        days = list_days(night.root, since, until)
        nights = []
        for number, (day, num_events) in enumerate(days.items(), start=1):
            nights.append(run_day(ledger, day, num_events, config, on_event))
            on_event("progress", {"step": "backfill", "done": number, "total": len(days), "unit": "days"})
        report_path = ledger.path.with_name("nights.html")
        write_nights_report(nights, report_path)
    return {"nights": nights, "report": str(report_path)}


def take_days_as_they_are(config: PipelineConfig) -> PipelineConfig:
    """Without the gate's rules about deliveries: nothing more is to come of days that are past, so nobody is waited for."""
    gate = config.gate.model_copy(update={"newest_day_events": 0.0, "missing_days": 36_500})
    return config.model_copy(update={"gate": gate})


def run_day(
    ledger: BackfillRecord, day: date, num_events: int, config: PipelineConfig, on_event: OnEvent
) -> dict[str, Any]:
    """The night of a day: what is recorded of it, or what comes of it now; for a day that has none, why."""
    if not num_events:
        return _skip(day, "no events on this day", on_event)
    request = CorpusRequest(config.ingest, config.evaluate, until=day, window_days=config.window_days)
    window = request.name(ledger.root)
    done = ledger.find(day, window)
    if done is not None:
        on_event("log", {"message": f"{day}: done before, run {done['run_id']}"})
        return done
    try:
        result = nightly(root=ledger.root.path, logs=[], until=day, config=config)
    except InputError as error:  # too little to learn from, as on a first day; the next days go on
        return _skip(day, str(error), on_event)
    told = record_night(ledger.root, day, num_events, window, result)
    ledger.add(told)
    return told


def _skip(day: date, reason: str, on_event: OnEvent) -> dict[str, Any]:
    on_event(
        "log", {"message": f"{day}: no night, as there are {reason}" if "no events" in reason else f"{day}: {reason}"}
    )
    return {"day": day.isoformat(), "events": 0, "skipped": reason}
