"""Prints results for a person: tables and lines on standard output. `shown` has made their texts printable."""

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from surf2vec.tasks.root.wording import format_bytes, format_count, format_duration, format_key, format_value

console = Console(markup=False, emoji=False, highlight=False)
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
        show_dry_run(result)
        return
    values = {name: ", ".join(filter(None, texts)) for name, texts in result["facts"].items()}
    places = {"tracking": "tracking_uri", "vectors": "export_dir", "report": "report"}
    values |= {"Alias": result["alias"] or "none"} | {name: result[key] for name, key in places.items()}
    show_table(("", ""), values.items(), title=f"release {result['release']}", show_header=False)
    show_funnel(result["funnel"], result["notes"])
    if result["gate"]["verdict"] != "first":
        show_gate(result["gate"], values["Gate"])


def show_dry_run(result: dict[str, Any]) -> None:
    """Print what a night would do."""
    new, kind = result["sources"]["new"], result["kind"]
    shown = ", ".join(new[:3]) + (", ..." if len(new) > 3 else "")
    values = {
        "sources": f"{len(new):,} new{f' ({shown})' if new else ''}, {result['sources']['known']:,} known",
        "events": f"{result['events']:,}, {result['rejected']:,} lines rejected",
        "night": result["message"] if kind == "none" else f"{kind}: {result['message']}",
    }
    if predicted := result.get("predicted"):
        spent = predicted["seconds"]
        for name in ("users", "items"):
            values[name] = f"{result[name]:,}, before {format_count(result[f'{name}_before'])}"
        values["users"] += f"; trained {format_count(result['changed_users'])}, new {format_count(result['new_users'])}"
        values["seconds"] = ", ".join(f"{name} {format_duration(spent[name])}" for name in spent)
        values["memory"] = f"{format_bytes(predicted['peak_bytes'])} of {format_bytes(predicted['budget_bytes'])}"
        values["disk"] = ", ".join(f"{name} {format_bytes(value)}" for name, value in predicted["disk_bytes"].items())
        values["gate"] = (
            f"at risk: {', '.join(result['gate']['at_risk']) or 'nothing that is known before the training'}"
        )
    show_table(("", ""), values.items(), title="nothing was written; a night would do this", show_header=False)
    if predicted:
        rows = [[row[name] for name in ("rule", "tonight", "limit", "verdict")] for row in result["gate"]["table"]]
        known = [row for row in rows if row[1]]
        if known:
            show_table(("rule", ">tonight", ">limit", "verdict"), known, title="the gate's rules that are known before")
        console.print(f"not known before the training: {', '.join(result['gate']['unknown'])}", soft_wrap=True)


def show_gate(gate: dict[str, Any], verdict: str) -> None:
    """Print the gate's rules and its verdict."""
    rows = ([row[name] for name in ("rule", "tonight", "limit", "verdict")] for row in gate["table"])
    show_table(("rule", ">tonight", ">limit", "verdict"), rows, title=verdict)


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

    rows, skipped = [], []
    for night in result["nights"]:
        if "skipped" in night:
            skipped.append(f"{night['day']}  no night: {night['skipped']}")
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
    """Print a table for each section, or the lines of a file."""
    if "lines" in result:
        print(*result["lines"], sep="\n")
    for section in result.get("sections", ()):
        if section["settings"]:
            rows = (
                (
                    one["name"],
                    "" if one["default"] is None else json.dumps(one["default"]),
                    one["values"],
                    one["description"],
                )
                for one in section["settings"]
            )
            title = f"{section['title']}: {section['description']}"
            show_table(("<setting", "default", "values", "what it does"), rows, title=title)


def show_plan(result: dict[str, Any]) -> None:
    print(*result["reasons"], sep="\n")


def show_tuned(result: dict[str, Any]) -> None:
    best, shares = result["best_trials"], result["importances"]
    columns = (">trial", *(f">{row['trial']}" for row in best), ">importance" if shares else ">")
    rows = (
        (name, *(f"{row[name]:.4g}" for row in best), f"{shares[name]:.0%}" if name in shares else "")
        for name in list(best[0])[1:]
    )
    show_table(columns, rows, title=f"the best of {result['trials']} trials on the sample; trial 1 is what was given")
    print(f"{result['verdict']}\nwritten to {result['out']}: give it to `surf2vec run` with --config")


def show_result(result: dict[str, Any], indent: str = "") -> None:
    """Print any result: first its lists, a line for each element, and the results in it; then its values."""
    values = {name: format_value(name, value) for name, value in result.items() if not isinstance(value, dict | list)}
    for name, value in result.items():
        if not value or name in values:
            continue
        print(f"{indent}{format_key(name)}")
        if isinstance(value, dict):
            show_result(value, f"{indent}  ")
        elif not isinstance(value[0], dict):
            print(*(f"{indent}  {one}" for one in value), sep="\n")
        elif any(isinstance(one, dict | list) for one in value[0].values()) or len(set(map(tuple, value))) > 1:
            for one in value:
                show_result(one, f"{indent}  ")
        else:
            show_records(value, f"{indent}  ")
    width = max(map(len, values), default=0)
    for name, text in values.items():
        print(f"{indent}{format_key(name).ljust(width)}  {text}")


def show_records(records: list[dict[str, Any]], indent: str) -> None:
    """Print records with the same names in aligned columns, without names."""
    rows = [[format_value(name, value) for name, value in record.items()] for record in records]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(indent + "  ".join(map(str.ljust, row, widths)).rstrip())
