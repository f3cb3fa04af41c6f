"""What the commands print for a person: tables and lines on standard output. Their texts come as `shown` makes them."""

from typing import Any

from rich.console import Console
from rich.table import Column, Table

from tasks.report.tables import tell_gate
from tasks.root.story import GateStep
from tasks.root.wording import amount, duration, share
from trainer.system.units import size

console = Console(markup=False, emoji=False, highlight=False)


def right(heading: str = "", no_wrap: bool = False) -> Column:
    """A column of numbers."""
    return Column(heading, justify="right", no_wrap=no_wrap)


def show_run(result: dict[str, Any]) -> None:
    values = {name: f"{result[name]:,}" for name in ("users", "items", "events", "rejected", "tokens")}
    if metrics := result["metrics"]:
        values["hit@10"] = f"{metrics['hit_at_10']:.4f}   popularity {metrics['popularity_hit_at_10']:.4f}"
    verdict, alias = result["gate"]["verdict"], result["alias"] or "without an alias"
    values |= {
        "trained": tell_training(result["training"]),
        "gate": "nothing to compare with: it was the first" if verdict == "first" else verdict,
        "registered": f"{result['model_name']} version {result['model_version']}, {alias}",
        "tracking": result["tracking_uri"],
        "vectors": result["export_dir"],
        "report": result["report"],
    }
    table = Table(title=f"release {result['release']}", show_header=False, title_justify="left")
    for row in values.items():
        table.add_row(*row)
    console.print(table)
    show_funnel(result["funnel"], result["notes"])
    show_gate(result["gate"])


def show_funnel(funnel: list[dict[str, Any]], notes: list[str]) -> None:
    """What became of the log: a line for each stage at which something was left out, and what else is to be known."""
    columns = ("", right(), "", right(), "")
    table = Table(
        *columns, title="what was left out", title_justify="left", box=None, show_header=False, pad_edge=False
    )
    for loss in funnel:
        table.add_row(loss["what"], f"{loss['before']:,}", "to", f"{loss['after']:,}", loss["because"])
    if funnel:
        console.print(table)
    for note in notes:
        console.print(note, soft_wrap=True)


def show_gate(gate: dict[str, Any]) -> None:
    """The gate's table, once there was a champion to hold the release against."""
    if gate["verdict"] == "first":
        return
    table = Table(
        "rule",
        right("tonight"),
        right("limit"),
        "verdict",
        title=tell_gate(GateStep.model_validate(gate)),
        title_justify="left",
    )
    for row in gate["table"]:
        table.add_row(row["rule"], row["tonight"], row["limit"], row["verdict"])
    console.print(table)


def show_nights(result: dict[str, Any]) -> None:
    """A row a night; below it the days without one, and why."""
    numbers = (right(name, no_wrap=True) for name in ("events", "users", "hit@10", "popular", "night", "version"))
    day, alias = (Column(heading, no_wrap=True) for heading in ("day", "alias"))
    table = Table(day, *numbers, alias, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    skipped = [night for night in result["nights"] if "skipped" in night]
    for night in [night for night in result["nights"] if "skipped" not in night]:
        metrics, seconds = night["metrics"], night["seconds"]
        quality = [f"{metrics[name]:.4f}" if name in metrics else "" for name in ("hit_at_10", "popularity_hit_at_10")]
        spent = duration(sum(seconds.values()) - seconds["ingest"])
        last = [spent, str(night["model_version"]), night["alias"] or "none"]
        table.add_row(night["day"], f"{night['events']:,}", f"{night['users']:,}", *quality, *last)
    console.print(table)
    for night in skipped:
        print(f"{night['day']}  no night: {night['skipped']}")
    print(f"the page of these nights: {result['report']}")


def tell_training(training: dict[str, float | None]) -> str:
    """`12.3 s, planned 11.0 s   380.0 MB of 400.0 MB   0.10 % waiting for the disk`."""
    spent = f"{duration(training['train_seconds'])}, planned {duration(training['train_predicted_seconds'])}"
    memory = f"{amount(training['train_peak_bytes'])} of {amount(training['train_budget_bytes'])}"
    return f"{spent}   {memory}   {share(training['train_stall'])} waiting for the disk"


def show_plan(result: dict[str, Any]) -> None:
    for reason in result["reasons"]:
        print(reason)


def show_similar(result: dict[str, Any]) -> None:
    if result.get("seen"):
        console.print("last seen: " + ", ".join(result["seen"]))
    tables = (("nearest users", "neighbours", "user_id"), ("items that rank first", "items", "url"))
    for title, rows, key in tables:
        table = Table(key, right("score"), title=title, title_justify="left")
        for row in result[rows]:
            table.add_row(row[key], f"{row['score']:.4f}")
        console.print(table)


def show_tuned(result: dict[str, Any]) -> None:
    best, shares = result["best_trials"], result["importances"]
    headings = ("trial", *(f"{row['trial']}" for row in best), "importance" if shares else "")
    title = f"the best of {result['trials']} trials on the sample; trial 1 is what was given"
    table = Table(*map(right, headings), title=title, title_justify="left")
    for name in list(best[0])[1:]:
        table.add_row(name, *(f"{row[name]:.4g}" for row in best), f"{shares[name]:.0%}" if name in shares else "")
    console.print(table)
    print(f"{result['verdict']}\nwritten to {result['out']}: give it to `surf2vec run` with --config")


def show_findings(result: dict[str, Any]) -> None:
    for finding in result["findings"]:
        print(f"{finding['level']:>8}  {finding['place']}: {finding['message']}")
    print(f"{result['damage']} damaged, {result['warnings']} warnings")


def show_removed(result: dict[str, Any]) -> None:
    for waste in result["removed"]:
        print(f"{size(waste['bytes']):>10}  {waste['what']}: {waste['place']}")
    print(f"{size(result['bytes']):>10}  {'could be freed' if result['dry_run'] else 'freed'}")


def show_rejects(result: dict[str, Any]) -> None:
    for count in result["counts"]:
        print(f"{count['lines']:>12,}  {count['reason']}: {count['source']} ({count['delivery']})")
    for line in result["rejects"]:
        print(f"{line['source']}:{line['line']}: {line['reason']}")
    print(f"{result['num_rejected']:,} lines rejected, {len(result['rejects']):,} shown")


def show_explained(result: dict[str, Any]) -> None:
    events, corpus = result["events"], result["corpus"]
    day = result["forgotten_on"]
    print(f"micro-partition {result['micro_partition']}; {f'forgotten on {day}' if day else 'not forgotten'}")
    print(f"{events['count']:,} events on {len(events['days']):,} days, from {events['first']} to {events['last']}")
    print("  " + "  ".join(f"{day}: {count:,}" for day, count in events["days"].items()))
    if corpus:
        held_out = f"held out in the evaluation: {corpus['held_out_item']}" if corpus["is_held_out"] else "not held out"
        print(f"corpus {corpus['window_id']}: row {corpus['row']:,}, {corpus['tokens']:,} tokens, {held_out}")
        for item in corpus["items"]:
            print(f"{item['count']:>6,}  {item['url']}")
    for release in result["releases"]:
        told = f"release {release['release']}, version {release['version']} {' '.join(release['aliases'])}".rstrip()
        print(f"{told}: norm {release['norm']:.4f}, space {release['space_id']}")
    for step in result["movement"]:
        print(f"moved from {step['from']} to {step['to']}: cosine {step['cosine']:.4f}")


def show_forgotten(result: dict[str, Any]) -> None:
    for place in result["places"]:
        print(f"{place['rows']:>14,} rows, found {place['found']}   {place['place']}")
    for place in result["elsewhere"]:
        print(f"{place['rows']:>14,} rows, found {place['found']}   not ours: {place['place']}")
    told = f"{result['users']:,} users asked for, {result['events']:,} events taken out, found {result['found']} afterwards"
    released = (
        f"release {result['release']}, version {result['model_version']}" if result["release"] else "no new release"
    )
    print(f"{told}; {released}")
    for line in result["remains"]:
        print(f"what remains: {line}")


def show_values(result: dict[str, Any]) -> None:
    width = max(14, *map(len, result))
    for key, value in result.items():
        print(f"{key:>{width}}  {value:,}" if type(value) is int else f"{key:>{width}}  {value}")
