"""All nights of a root, and their page, `runs/index.html`: quality, drift, sizes and seconds of each.

The page is one self-contained HTML file that loads nothing and runs no script. The same nights give the same bytes. A figure
that a night lacks leaves a gap.
"""

from collections.abc import Mapping
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from surf2vec.tasks.report.plots import Chart, draw_lines
from surf2vec.tasks.report.report import PAGES
from surf2vec.tasks.root.records import RunRecord
from surf2vec.tasks.root.run import Root, read_run_records
from surf2vec.tasks.root.wording import format_key, format_score, format_short
from surf2vec.trainer.system.files import replace_file

Night = dict[str, Any]


def list_nights(root: Root, aliases: Mapping[int, str]) -> list[Night]:
    """Return the nights of a root in the order of their days; aliases: by version.

    A night is `day` (the last of its window, or the one on which it began), run_id, kind, events of that day, users, items,
    metrics, seconds, model_version, alias and the gate's verdict and rules; or day, run_id and `skipped`, the reason why it made
    no release.
    """
    records = sorted(read_run_records(root), key=lambda record: record.created_at)
    return sorted((describe_night(record, aliases) for record in records), key=lambda night: night["day"])


def describe_night(record: RunRecord, aliases: Mapping[int, str]) -> Night:
    """Return the night of one record, as `list_nights` describes it."""
    steps = record.steps if record.steps.registered else record.steps.replace(*record.gone_steps.ended().values())
    day = steps.corpus.until or record.created_at[:10]
    night: Night = {"day": day, "run_id": record.run_id}
    if steps.unchanged and not steps.registered:  # else it served, before its users were forgotten
        return night | {"skipped": f"nothing to do: no user's pages changed since release {steps.unchanged.release}"}
    if not (steps.export and steps.gate and steps.registered):
        ended = ", ".join(steps.ended()) or "nothing"
        return night | {"skipped": f"run {record.run_id} did not end; done: {ended}"}
    gate, export, evaluated = steps.gate, steps.export, steps.evaluate
    return night | {
        "release": export.release,
        "kind": steps.settle.kind,
        "events": gate.days.get(day) or steps.ingest.events,
        "users": export.num_users,
        "items": export.num_items,
        "metrics": (evaluated.metrics if evaluated else {}) | gate.metrics,
        "seconds": {name: step.seconds for name, step in steps.ended().items() if step.seconds is not None},
        "model_version": steps.registered.model_version,
        "alias": aliases.get(steps.registered.model_version),
        "gate": {"verdict": gate.verdict, "held_by": gate.held_by},
    }


def write_nights_report(nights: list[Night], path: Path) -> None:
    """Write the page of the nights, in the order of their days. A day without a night shows the reason."""
    run = [night for night in nights if "skipped" not in night]
    drift = sorted({name for night in run for name in night["metrics"] if "cosine" in name})
    html = PAGES.get_template("nights.html.j2").render(
        title=f"{nights[0]['day']} to {nights[-1]['day']}" if nights else "no nights",
        num_nights=len(run),
        charts=draw_nights(run, drift) if run else {},
        nights=nights,
        drift={name: format_key(name.removeprefix("gate_")) for name in drift},
        sum_seconds=sum_seconds,
    )
    with replace_file(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def draw_nights(nights: list[Night], drift: list[str]) -> dict[str, Chart | None]:
    """Return the charts by title; None for a chart without values."""
    days = [date.fromisoformat(night["day"]) for night in nights]
    xs = [float((day - days[0]).days) for day in days]
    form = "%b %Y" if xs[-1] > 366 else "%d %b"

    def show_day(x: float) -> str:
        return f"{days[0] + timedelta(days=round(x)):{form}}" if float(x).is_integer() else ""

    def metrics(names: dict[str, str]) -> dict[str, list[float | None]]:
        return {name: [night["metrics"].get(metric) for night in nights] for name, metric in names.items()}

    draw = partial(draw_lines, xs, x_title="day", show_x=show_day)
    seconds = {"night": [*map(sum_seconds, nights)], "training": [night["seconds"].get("train") for night in nights]}
    numbers = {name: [night[name] for night in nights] for name in ("users", "items")}
    quality = {"vectors": "hit_at_10", "popularity": "popularity_hit_at_10"}
    cosines = {format_key(name.removeprefix("gate_cosine_")): name for name in drift}
    return {
        "hit@10 of the held-out next page": draw(metrics(quality), show_y=format_score, from_zero=True),
        "Drift: cosine of a user's vector to the one before": draw(metrics(cosines), show_y=format_score),
        "Seconds": draw(seconds, show_y=lambda value: f"{format_short(value)} s", from_zero=True),
        "Users and items with a vector": draw(numbers, show_y=format_short, from_zero=True),
    }


def sum_seconds(night: Night) -> float:
    """Return the seconds of all steps except the ingest, which a backfill runs once for all its nights."""
    return sum(seconds for name, seconds in night["seconds"].items() if name != "ingest")
