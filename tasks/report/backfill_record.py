"""Nights one after another: which days there are to run a night for, and which nights of them are done.

`runs/backfill-<digest of the settings>/nights.json` says what each day's night was made of and what came of it. A night of
the same sources is not run again, whatever was run after it.
"""

from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from tasks.ingest.sources import read_catalog
from tasks.root.run import Root, Run
from trainer.errors import InputError
from trainer.system.files import read_json, write_json

FORMAT_VERSION = 1


@dataclass(frozen=True)
class BackfillRecord:
    """The nights that a backfill ran with some settings."""

    root: Root
    digest: str

    @property
    def path(self) -> Path:
        return self.root.run(f"backfill-{self.digest}") / "nights.json"

    def read(self) -> dict[str, dict[str, Any]]:
        """Day → what its night was: `day, window_id, run_id, ...`; empty where none was run."""
        return read_json(self.path)["nights"] if self.path.exists() else {}

    def find(self, day: date, window_id: str) -> dict[str, Any] | None:
        """The night of a day, if it was run on this very window."""
        night = self.read().get(day.isoformat())
        return night if night and night["window_id"] == window_id else None

    def add(self, night: dict[str, Any]) -> None:
        """Record a night that ended, durably."""
        write_json(self.path, {"format_version": FORMAT_VERSION, "nights": self.read() | {night["day"]: night}})


def list_days(root: Root, since: date | None, until: date | None) -> dict[date, int]:
    """Every day from `since` to `until`, by default from the first to the last with events: the number of its events.

    Raises InputError when there are no dated events, or none of those days has any.
    """
    events: dict[date, int] = {}
    for entry in read_catalog(root).entries.values():
        for name, number in entry["days"].items():
            if name != "undated":
                day = date.fromisoformat(name)
                events[day] = events.get(day, 0) + number
    if not events:
        raise InputError(f"{root.path} has no events with a day: nights of past days need logs with times")
    first, last = since or min(events), until or max(events)
    days = {first + timedelta(days=n): events.get(first + timedelta(days=n), 0) for n in range((last - first).days + 1)}
    if not any(days.values()):
        raise InputError(
            f"no events in {root.path} from {first} to {last}: it has events from {min(events)} to {max(events)}; give other "
            "days with --since and --until, or more logs with --logs"
        )
    return days


def record_night(root: Root, day: date, num_events: int, window_id: str, result: dict[str, Any]) -> dict[str, Any]:
    """A night as the record has it: what `surf2vec run --json` prints, cut to what is compared between nights."""
    told = ("run_id", "release", "model_version", "alias", "users", "items", "metrics", "seconds", "gate")
    steps = Run(root, result["run_id"]).story().steps
    changed = (
        steps.corpus.model_dump(include={"num_changed", "num_new_users"}, exclude_none=True) if steps.corpus else {}
    )
    night = {name: result[name] for name in told if name in result}
    night["metrics"] = night["metrics"] | (steps.gate.metrics if steps.gate else {})
    return {"day": day.isoformat(), "events": num_events, "window_id": window_id} | night | changed
