"""Prints results for a person: tables and lines on standard output. `shown` has made their texts printable."""

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from surf2vec.tasks.root.wording import describe_rule, format_count, format_duration, format_key, format_value

console = Console(markup=False, emoji=False, highlight=False)
NESTED = (dict, list, tuple)
PLAIN: dict[str, Any] = {"box": None, "pad_edge": False}


def show_table(columns: Iterable[str], rows: Iterable[Iterable[str]], **style: Any) -> None:
    """Print a table. A heading that begins with < (left-aligned) or > (right-aligned) prevents line breaks in its column."""
    table = Table(title_justify="left", **style)
    for heading in columns:
        is_right, no_wrap = heading.startswith(">"), heading.startswith(("<", ">"))
        table.add_column(heading.lstrip("<>"), justify="right" if is_right else "left", no_wrap=no_wrap)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def show_run(result: dict[str, Any]) -> None:
    if "dry_run" in result:
        print("nothing was written; a night would do this")
        show_result(result)
        return
    values = {name: ", ".join(filter(None, texts)) for name, texts in result["facts"].items()}
    places = {"Tracking": "tracking_uri", "Vectors": "export_dir", "Report": "report"}
    values |= {"Alias": result["alias"] or "none"} | {name: result[key] for name, key in places.items()}
    show_table(("", ""), values.items(), title=f"release {result['release']}", show_header=False)
    show_funnel(result["funnel"], result["notes"])
    if result["gate"]["verdict"] != "first":
        rows = ((row["rule"], row["tonight"], row["limit"], describe_rule(row)) for row in result["gate"]["table"])
        show_table(("rule", ">tonight", ">limit", "verdict"), rows, title=values["Gate"])


def show_funnel(funnel: list[dict[str, Any]], notes: list[str]) -> None:
    """Print a line for each stage that left something out of the log, and the notes."""
    if funnel:
        rows = ((loss["what"], f"{loss['before']:,}", "to", f"{loss['after']:,}", loss["because"]) for loss in funnel)
        show_table(("", ">", "", ">", ""), rows, title="what was left out", show_header=False, **PLAIN)
    for note in notes:
        console.print(note, soft_wrap=True)


def show_nights(result: dict[str, Any]) -> None:
    """Print one row per night, then the days without a night and the reason."""
    from surf2vec.tasks.report.nights import sum_seconds  # its charts take a second to import

    rows, skipped, made = [], [], {night["day"] for night in result["nights"] if "release" in night}
    for night in result["nights"]:
        if "skipped" in night:
            no_night = "" if night["day"] in made else "no night: "
            skipped.append(f"{night['day']}  {no_night}{night['skipped']}")
            continue
        if held_by := night["gate"]["held_by"]:
            skipped.append(f"{night['day']}  version {night['model_version']} held by {', '.join(held_by)}")
        metrics = night["metrics"]
        quality = [f"{metrics[name]:.4f}" if name in metrics else "" for name in ("hit_at_10", "popularity_hit_at_10")]
        spent = format_duration(sum_seconds(night))
        last = [spent, str(night["model_version"]), night["alias"] or "none"]
        rows.append([night["day"], format_count(night["events"]), format_count(night["users"]), *quality, *last])
    columns = ("<day", ">events", ">users", ">hit@10", ">popular", ">night", ">version", "<alias")
    show_table(columns, rows, padding=(0, 2, 0, 0), **PLAIN)
    print(*skipped, f"the page of these nights: {result['report']}", sep="\n")


def show_settings(result: dict[str, Any]) -> None:
    """Print where given values come from and a table for each section, or the lines of a file."""
    if "lines" in result:
        print(*result["lines"], sep="\n")
    sections = [one for one in result.get("sections", ()) if one["settings"]]
    given = [one for section in sections for one in section["settings"] if one["from"] != "default"]
    if given:
        table = [(one["name"], json.dumps(one["value"]), one["from"]) for one in given]
        show_table(("<setting", "value", "<from"), table, title="Given: all others have their default")
    for section in sections:
        rows = (
            (one["name"], json.dumps(one["default"]).replace("null", ""), one["values"], one["description"])
            for one in section["settings"]
        )
        title = f"{section['title']}: {section['description']}"
        show_table(("<setting", "default", "values", "what it does"), rows, title=title)


def show_result(result: dict[str, Any], indent: str = "") -> None:
    """Print any result: its lists, a line for each element, the results in it, and last its values, which sum it up.

    In a result within another the values come first, as they name it.
    """
    values = {name: format_value(name, value) for name, value in result.items() if not isinstance(value, NESTED)}
    width = max(map(len, values), default=0)
    lines = [f"{indent}{format_key(name).ljust(width)}  {text}" for name, text in values.items()]
    if indent and lines:
        print(*lines, sep="\n")
    for name, value in result.items():
        if not value or name in values:
            continue
        print(f"{indent}{format_key(name)}")
        if isinstance(value, dict):
            show_result(value, f"{indent}  ")
        elif not isinstance(value[0], dict):
            print(*(f"{indent}  {one}" for one in value), sep="\n")
        elif any(isinstance(one, NESTED) for one in value[0].values()) or len(set(map(tuple, value))) > 1:
            for one in value:
                show_result(one, f"{indent}  ")
        else:
            show_records(value, f"{indent}  ")
    if lines and not indent:
        print(*lines, sep="\n")


def show_records(records: list[dict[str, Any]], indent: str) -> None:
    """Print records of the same names as aligned columns with a heading."""
    rows = [list(map(format_key, records[0]))]
    rows += [[format_value(name, value) for name, value in record.items()] for record in records]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(indent + "  ".join(map(str.ljust, row, widths)).rstrip())
