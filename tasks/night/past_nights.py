"""Makes the nights of past days in order, as if each had been made on its day, and records those that are done.

`runs/backfill-<digest of the settings>/nights.json` records the inputs and the result of each day's night. A night with
the same sources is not run again, even if other nights were run since.
"""

from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.ingest.sources import read_catalog
from surf2vec.tasks.night.config import DEFAULT_CONFIG, PipelineConfig
from surf2vec.tasks.night.context import open_night
from surf2vec.tasks.night.night import make_night
from surf2vec.tasks.night.page import write_nights_page
from surf2vec.tasks.night.reporter import TERMINAL, Reporter
from surf2vec.tasks.night.step import Call, call_plainly
from surf2vec.tasks.night.steps import ingest_events
from surf2vec.tasks.root.run import Root, Run, lock_root, private_files
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent, log, log_progress
from surf2vec.trainer.system.files import digest_json, read_json, write_manifest_json

FORMAT_VERSION = 1


def read_nights(path: Path) -> dict[str, dict[str, Any]]:
    """Returns day → record of its night (`day, window_id, run_id, ...`); empty if no night was run."""
    return read_json(path)["nights"] if path.exists() else {}


def make_past_nights(
    root: Path,
    logs: list[str],
    since: date | None = None,
    until: date | None = None,
    config: PipelineConfig = DEFAULT_CONFIG,
    make_night: Callable[..., dict[str, Any]] = make_night,
    call: Call = call_plainly,
    reporter: Reporter = TERMINAL,
) -> dict[str, Any]:
    """Make the nights of past days by `make_night`, each with a window that ends on its day. See `surf2vec.flows.nightly`."""
    # Past days get no more deliveries, so the gate's rules about deliveries are turned off.
    gate = config.gate.model_copy(update={"newest_day_events": 0.0, "missing_days": 36_500})
    config = config.model_copy(update={"gate": gate})
    first = since - timedelta(days=config.window_days - 1) if since and config.window_days else date(1970, 1, 1)
    night = open_night(root, first, until, config, reporter=reporter)
    with reporter.step("backfill") as on_event, private_files(night.root):
        with lock_root(night.root, "backfill", partial(log, on_event)):
            call(ingest_events, night, logs)
        record = night.root.run(f"backfill-{digest_json(config.outcome_settings())[:12]}") / "nights.json"
        days = list_days(night.root, since, until)
        nights = []
        for number, (day, num_events) in enumerate(days.items(), start=1):
            nights.append(make_day(make_night, night.root, record, day, num_events, config, on_event))
            log_progress(on_event, "backfill", number, len(days), "days")
        write_nights_page(night.root, config.publish)
    return {"nights": nights, "report": str(night.root.nights_page)}


def make_day(
    make_night: Callable[..., dict[str, Any]],
    root: Root,
    record: Path,
    day: date,
    num_events: int,
    config: PipelineConfig,
    on_event: OnEvent,
) -> dict[str, Any]:
    """Make the night of a day unless it is recorded in `record`. Returns its record, or the reason why the day has no night."""
    log_line = partial(log, on_event)
    skipped = {"day": day.isoformat(), "events": 0}
    if not num_events:
        log_line(f"{day}: no night, as there are no events on this day")
        return skipped | {"skipped": "no events on this day"}
    request = CorpusRequest(config.ingest, config.evaluate, until=day, window_days=config.window_days)
    window = request.name(root)
    nights = read_nights(record)
    if (done := nights.get(day.isoformat())) and done["window_id"] == window:
        log_line(f"{day}: done before, run {done['run_id']}")
        return done
    try:
        result = make_night(root=root.path, logs=[], until=day, config=config)
    except InputError as error:  # too few events, as on a first day; continue with the next day
        log_line(f"{day}: {error}")
        return skipped | {"skipped": str(error)}
    made = record_night(root, day, num_events, window, result)
    write_manifest_json(record, {"format_version": FORMAT_VERSION, "nights": nights | {day.isoformat(): made}})
    return made


def list_days(root: Root, since: date | None, until: date | None) -> dict[date, int]:
    """Returns day → number of events, for every day from `since` to `until` (by default the first and last day with events).

    Raises InputError if no event has a date, or if none of these days has events.
    """
    events = Counter[date]()
    for entry in read_catalog(root).entries.values():
        events.update({date.fromisoformat(day): n for day, n in entry["days"].items() if day != "undated"})
    if not events:
        raise InputError(f"{root.path} has no events with a day: nights of past days need logs with times")
    first, last = since or min(events), until or max(events)
    days = {day: events[day] for day in (first + timedelta(n) for n in range((last - first).days + 1))}
    if not any(days.values()):
        raise InputError(
            f"no events in {root.path} from {first} to {last}: it has events from {min(events)} to {max(events)}; give other "
            "days with --since and --until, or more logs with --logs"
        )
    return days


def record_night(root: Root, day: date, num_events: int, window_id: str, result: dict[str, Any]) -> dict[str, Any]:
    """Returns the record of a night: the part of the output of `surf2vec run --json` that is compared between nights."""
    names = ("run_id", "release", "model_version", "alias", "users", "items", "metrics", "seconds", "gate")
    steps = Run(root, result["run_id"]).record().steps
    counts = {"num_changed", "num_new_users"}
    changed = steps.corpus.model_dump(include=counts, exclude_none=True)
    night = {name: result[name] for name in names if name in result}
    night["metrics"] = night["metrics"] | steps.gate.metrics
    return {"day": day.isoformat(), "events": num_events, "window_id": window_id} | night | changed
