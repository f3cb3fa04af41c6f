"""Backfill: lists the days that need a night, and records the nights that are done.

`runs/backfill-<digest of the settings>/nights.json` records the inputs and the result of each day's night. A night with
the same sources is not run again, even if other nights were run since.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from surf2vec.tasks.ingest.sources import read_catalog
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.system.files import read_json, write_manifest_json

FORMAT_VERSION = 1
Night = dict[str, Any]


@dataclass(frozen=True)
class BackfillRecord:
    """The record of the nights that a backfill ran with the same settings."""

    root: Root
    digest: str

    @property
    def path(self) -> Path:
        return self.root.run(f"backfill-{self.digest}") / "nights.json"

    def read(self) -> dict[str, dict[str, Any]]:
        """Returns day → record of its night (`day, window_id, run_id, ...`); empty if no night was run."""
        return read_json(self.path)["nights"] if self.path.exists() else {}

    def find(self, day: date, window_id: str) -> dict[str, Any] | None:
        """Returns the night of a day if it was run on the same window, else None."""
        night = self.read().get(day.isoformat())
        return night if night and night["window_id"] == window_id else None

    def add(self, night: dict[str, Any]) -> None:
        """Record a night that ended; the write is synced to disk."""
        nights = self.read() | {night["day"]: night}
        write_manifest_json(self.path, {"format_version": FORMAT_VERSION, "nights": nights})


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
    changed = steps.corpus.model_dump(include=counts, exclude_none=True) if steps.corpus else {}
    night = {name: result[name] for name in names if name in result}
    night["metrics"] = night["metrics"] | (steps.gate.metrics if steps.gate else {})
    return {"day": day.isoformat(), "events": num_events, "window_id": window_id} | night | changed
