"""The page of many nights: quality, drift, sizes and seconds, night by night. One self-contained HTML file.

It is drawn from what the nights recorded (tasks/report/backfill_record.py), loads nothing and runs nothing; the same
nights give the same bytes. A figure that a night does not have leaves a gap.
"""

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from tasks.report import plots
from tasks.report.plots import LineChart, Series, draw_lines
from tasks.report.report import PAGES
from tasks.root.credentials import mask_credentials
from tasks.root.wording import UNKNOWN, brief, count, duration, phrase, score
from trainer.system.files import replace_file

Night = dict[str, Any]


def write_nights_report(nights: list[Night], path: Path) -> None:
    """Write the page of the nights, in the order of their days; days without a night say why."""
    run = [night for night in nights if "skipped" not in night]
    drift = sorted({name for night in run for name in night["metrics"] if "cosine" in name})
    rows = [list_night(night, drift) for night in nights]
    html = PAGES.get_template("nights.html.j2").render(
        title=f"{nights[0]['day']} to {nights[-1]['day']}" if nights else "no nights",
        num_nights=len(run),
        charts=[one for one in draw_nights(run, drift) if one["picture"] is not None],
        rows=rows,
        columns=next((list(row["figures"]) for row in rows if not row["skipped"]), []),
        chart=plots,
    )
    with replace_file(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def draw_nights(nights: list[Night], drift: list[str]) -> list[dict[str, Any]]:
    """The charts: `title`, `about`, `picture` (None where there is nothing to draw)."""
    quality = {"vectors": "hit_at_10", "popularity": "popularity_hit_at_10"}
    steps = {"night": None, "training": "train"}
    return [
        {
            "title": "hit@10 of the held-out next page",
            "picture": _draw(nights, {name: _metric(metric) for name, metric in quality.items()}, score, True),
        },
        {
            "title": "Drift: cosine of a user's vector to the one before",
            "picture": _draw(
                nights, {phrase(name.removeprefix("gate_cosine_")): _metric(name) for name in drift}, score, False
            ),
        },
        {
            "title": "Seconds",
            "picture": _draw(
                nights, {name: _seconds(step) for name, step in steps.items()}, lambda value: f"{brief(value)} s", True
            ),
        },
        {
            "title": "Users and items with a vector",
            "picture": _draw(
                nights, {"users": lambda night: night["users"], "items": lambda night: night["items"]}, brief, True
            ),
        },
    ]


def list_night(night: Night, drift: list[str]) -> dict[str, Any]:
    """A night as a row of the table."""
    if "skipped" in night:
        return {"day": night["day"], "skipped": mask_credentials(night["skipped"])}
    metrics = night["metrics"]
    return {
        "day": night["day"],
        "skipped": None,
        "figures": {
            "events": count(night["events"]),
            "users": count(night["users"]),
            "items": count(night["items"]),
            "hit@10": score(metrics.get("hit_at_10")),
            "popularity": score(metrics.get("popularity_hit_at_10")),
            **{_title(name): score(metrics.get(name)) for name in drift},
            "night": duration(_seconds(None)(night)),
            "training": duration(night["seconds"].get("train")),
            "version": night["model_version"],
        },
        "alias": night["alias"] or UNKNOWN,
        "held_by": ", ".join((night.get("gate") or {}).get("held_by") or ()),
    }


def _title(metric: str) -> str:
    return phrase(metric.removeprefix("gate_"))


def _metric(name: str) -> Callable[[Night], float | None]:
    return lambda night: night["metrics"].get(name)


def _seconds(step: str | None) -> Callable[[Night], float | None]:
    """The seconds of a step, or of all but the ingest, which a backfill does for all its nights at once."""
    if step:
        return lambda night: night["seconds"].get(step)
    return lambda night: sum(seconds for name, seconds in night["seconds"].items() if name != "ingest")


def _draw(
    nights: list[Night],
    curves: dict[str, Callable[[Night], float | None]],
    say: Callable[[float], str],
    from_zero: bool,
) -> LineChart | None:
    """A chart of curves over the days."""
    if not nights or not curves:
        return None
    days = [date.fromisoformat(night["day"]) for night in nights]
    series = []
    for name, value_of in curves.items():
        values = [value_of(night) for night in nights]
        titles = [
            f"{night['day']}: {name} {say(value)}" if value is not None else ""
            for night, value in zip(nights, values, strict=True)
        ]
        series.append(Series(name, values, titles))
    return draw_lines(
        [float((day - days[0]).days) for day in days],
        series,
        "day",
        lambda x: _label(days[0], days[-1], x),
        say,
        from_zero,
    )


def _label(first: date, last: date, x: float) -> str:
    """The day at a place on the axis, of more than a year its month; between two days nothing."""
    if not float(x).is_integer():
        return ""
    return f"{first + timedelta(days=round(x)):{'%b %Y' if (last - first).days > 366 else '%d %b'}}"
