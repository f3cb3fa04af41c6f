"""Backfill: lists the days that need a night, records the nights that are done, and writes their page.

`runs/backfill-<digest of the settings>/nights.json` records the inputs and the result of each day's night. A night with
the same sources is not run again, even if other nights were run since. The page is drawn from this record: quality, drift,
sizes and seconds of each night. It is one self-contained HTML file that loads nothing and runs no script. The same nights
give the same bytes. A figure that a night lacks leaves a gap.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from tasks.ingest.sources import read_catalog
from tasks.report import plots
from tasks.report.report import PAGES
from tasks.root.run import Root, Run
from tasks.root.wording import brief, phrase, score
from trainer.errors import InputError
from trainer.system.files import read_json, replace_file, write_json

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
        write_json(self.path, {"format_version": FORMAT_VERSION, "nights": self.read() | {night["day"]: night}})


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
    steps = Run(root, result["run_id"]).story().steps
    counts = {"num_changed", "num_new_users"}
    changed = steps.corpus.model_dump(include=counts, exclude_none=True) if steps.corpus else {}
    night = {name: result[name] for name in names if name in result}
    night["metrics"] = night["metrics"] | (steps.gate.metrics if steps.gate else {})
    return {"day": day.isoformat(), "events": num_events, "window_id": window_id} | night | changed


def write_nights_report(nights: list[Night], path: Path) -> None:
    """Write the page of the nights, in the order of their days. A day without a night shows the reason."""
    run = [night for night in nights if "skipped" not in night]
    drift = sorted({name for night in run for name in night["metrics"] if "cosine" in name})
    html = PAGES.get_template("nights.html.j2").render(
        title=f"{nights[0]['day']} to {nights[-1]['day']}" if nights else "no nights",
        num_nights=len(run),
        charts=draw_nights(run, drift) if run else {},
        nights=nights,
        drift={name: phrase(name.removeprefix("gate_")) for name in drift},
        sum_seconds=sum_seconds,
        chart=plots,
    )
    with replace_file(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def draw_nights(nights: list[Night], drift: list[str]) -> dict[str, plots.LineChart | None]:
    """Returns the charts by title; None for a chart without values."""
    days = [date.fromisoformat(night["day"]) for night in nights]
    metrics, seconds = [night["metrics"] for night in nights], [night["seconds"] for night in nights]
    quality = {"vectors": "hit_at_10", "popularity": "popularity_hit_at_10"}
    cosines = {phrase(name.removeprefix("gate_cosine_")): name for name in drift}

    def draw(curves: dict[str, list[float | None]], show: Any, from_zero: bool = True) -> plots.LineChart | None:
        dots = {
            name: [
                (value, "" if value is None else f"{day}: {name} {show(value)}")
                for day, value in zip(days, values, strict=True)
            ]
            for name, values in curves.items()
        }
        return plots.draw_lines([float((day - days[0]).days) for day in days], dots, "day", label, show, from_zero)

    def label(x: float) -> str:
        """Returns the label of an axis position: the day, or the month if the axis spans over a year; empty between days."""
        form = "%b %Y" if (days[-1] - days[0]).days > 366 else "%d %b"
        return f"{days[0] + timedelta(days=round(x)):{form}}" if float(x).is_integer() else ""

    return {
        "hit@10 of the held-out next page": draw(
            {name: [one.get(metric) for one in metrics] for name, metric in quality.items()}, score
        ),
        "Drift: cosine of a user's vector to the one before": draw(
            {name: [one.get(metric) for one in metrics] for name, metric in cosines.items()}, score, from_zero=False
        ),
        "Seconds": draw(
            {"night": [sum_seconds(night) for night in nights], "training": [one.get("train") for one in seconds]},
            lambda value: f"{brief(value)} s",
        ),
        "Users and items with a vector": draw(
            {name: [night[name] for night in nights] for name in ("users", "items")}, brief
        ),
    }


def sum_seconds(night: Night) -> float:
    """Returns the seconds of all steps except the ingest, which a backfill runs once for all its nights."""
    return sum(seconds for name, seconds in night["seconds"].items() if name != "ingest")
