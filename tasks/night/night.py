"""The night: from logs to a registered release, one call per step; and nights of past days in order, as if each had been made on
its day.

A night of a past day with the same sources and settings is not made again, even if other nights were made since or `surf2vec gc`
removed its release: the record of its run says so.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from surf2vec.tasks.ingest.sources import read_catalog
from surf2vec.tasks.night import steps
from surf2vec.tasks.night.config import DEFAULT_CONFIG, PipelineConfig
from surf2vec.tasks.night.context import NightContext, open_night
from surf2vec.tasks.night.page import write_nights_page
from surf2vec.tasks.night.reporter import TERMINAL, Reporter
from surf2vec.tasks.night.step import Call, call_plainly
from surf2vec.tasks.night.summary import summarize, summarize_finished
from surf2vec.tasks.root.memory import keep_loaded
from surf2vec.tasks.root.run import Root, lock_root, private_files, read_run_records
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent, log, log_progress

NO_EVENTS = "no events on this day"


def make_night(
    root: Path,
    logs: list[str],
    since: date | None = None,
    until: date | None = None,
    config: PipelineConfig = DEFAULT_CONFIG,
    full: bool = False,
    call: Call = call_plainly,
    reporter: Reporter = TERMINAL,
) -> dict[str, Any]:
    """Make user vectors from browsing logs and register them. Returns what `surf2vec run --json` prints.

    1. Ingest the log files that are new.
    2. Open the run of these sources, this window and these settings: it continues from the champion, or is full.
    3. Build the corpus of the window. If no user's tokens changed, the night ends and the champion stays.
    4. Train the vectors of the changed users, or of all; or continue from the last commit.
    5. Choose the weight of their parts and the popularity of items by the log.
    6. Evaluate them on held-out items, then fit the held-out users again, on all their events.
    7. Settle the vectors: merge them with the unchanged rows, or rotate them into the champion's space.
    8. Export the release, and compare it with the champion: the gate.
    9. Register it, so that it serves if the gate passes it. Push what serves to the stores, and write the report.

    `call` calls each step: plainly, or as a task of the flow in surf2vec/flows/nightly.py, whose arguments these are.
    """
    night = open_night(root, since, until, config, full, reporter)
    with keep_loaded(), reporter.step("lock") as on_event, lock_root(night.root, "run", partial(log, on_event)):
        ingested = call(steps.ingest_events, night, logs)
        run = call(steps.open_run, night, ingested, logs)
        call(steps.build_corpus, night, run)
        reporter.name_night(run)
        if steps.find_unchanged_base(night, run):
            call(steps.push_release, night, run)
            return summarize_finished(run, night.config.publish)
        call(steps.train_vectors, night, run)
        call(steps.choose_values, night, run)
        call(steps.evaluate_vectors, night, run)
        call(steps.refit_vectors, night, run)
        call(steps.settle_vectors, night, run)
        call(steps.export_vectors, night, run)
        call(steps.judge_release, night, run)
        call(steps.register_release, night, run)
        call(steps.push_release, night, run)
        call(steps.write_reports, night, run)
        return summarize(run, night.config.publish)


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
            call(steps.ingest_events, night, logs)
        days = list_days(night.root, since, until)
        done = {  # a release may have been removed since
            record.request: record.run_id
            for record in read_run_records(night.root)
            if record.steps.report or record.steps.unchanged or record.gone_steps.report
        }
        made = {}
        for number, (day, num_events) in enumerate(days.items(), start=1):
            asked = replace(night, since=None, until=day)
            made[day] = make_day(make_night, asked, done, on_event) if num_events else NO_EVENTS
            log_progress(on_event, "backfill", number, len(days), "days")
        listed = {one["run_id"]: one for one in write_nights_page(night.root, config.publish)}
    nights = [
        listed.get(run_id) or {"day": day.isoformat(), "events": 0, "skipped": run_id} for day, run_id in made.items()
    ]
    return {"nights": nights, "report": str(night.root.nights_page)}


def make_day(
    make_night: Callable[..., dict[str, Any]], night: NightContext, done: Mapping[str | None, str], on_event: OnEvent
) -> str:
    """Make the night of the day on which its window ends, unless it was made. Returns its run, or the reason why it has none.

    done: the runs of the nights that were made, by request.
    """
    day, digest = night.until, night.request()[1]
    if run_id := done.get(digest):
        log(on_event, f"{day}: done before, run {run_id}")
        return run_id
    try:
        return make_night(root=night.root.path, logs=[], until=day, config=night.config)["run_id"]
    except InputError as error:  # too few events, as on a first day; continue with the next day
        log(on_event, f"{day}: {error}")
        return str(error)


def list_days(root: Root, since: date | None, until: date | None) -> dict[date, int]:
    """Return day → number of events, for every day from `since` to `until` (by default the first and last day with events).

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
