"""What all benchmarks share: their arguments, the printed table, and the row in results.csv."""

import argparse
import csv
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from surf2vec.trainer.errors import HeldBackError

RESULTS = Path(__file__).with_name("results.csv")
COLUMNS = ["date", "name", "case", "ratio", "mark", "passed", "figures", "machine", "command"]
MOST_COLUMNS = 14
DEFAULT_DATA = Path(__file__).parents[3] / "shared" / "data"


def run_surf2vec(*arguments: str, settings: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """What a `surf2vec` command prints as JSON. Raises SystemExit when it fails; a release that the gate held is no failure."""
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "surf2vec.flows.cli", *arguments, *options, "--json"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode not in (0, HeldBackError.exit_code):
        raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return dict(json.loads(done.stdout))


def run_benchmark(
    name: str,
    description: str,
    measure: Callable[..., Sequence[dict[str, Any]]],
    options: Mapping[str, int | str] = MappingProxyType({}),
    draw: Callable[[Sequence[dict[str, Any]]], str] | None = None,
    summarize: Callable[[Sequence[dict[str, Any]]], dict[str, Any]] | None = None,
) -> int:
    """Run `python -m tests.benchmarks.NAME [--json] [--data DIR] [--record]`; returns the exit code.

    `measure(data_dir)` answers the cases, each with `case, ratio, mark, passed` and further figures. With --json one object
    is printed: the figures of the worst case that has a mark, whether all `passed`, and the cases. --record appends to
    results.csv. `options` are whole numbers or words that the command line may set, with their defaults: `{"users": 1000}`
    gives `--users N` and `measure(data_dir, users=N)`. With `draw` there is --plot FILE, for the cases as its SVG.
    `summarize` answers further figures of all cases together.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tests.benchmarks.{name}", description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("SURF2VEC_DATA", DEFAULT_DATA)), help="real logs"
    )
    parser.add_argument("--record", action="store_true", help="append the figures to results.csv")
    for option, default in options.items():
        told = f"{default:,}" if isinstance(default, int) else default
        parser.add_argument(f"--{option}", type=type(default), default=default, help=f"by default {told}")
    if draw:
        parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures, as SVG")
    arguments = parser.parse_args()
    cases = measure(arguments.data, **{option: getattr(arguments, option) for option in options})
    worst = worst_case(cases)
    result = worst | {"name": name, "passed": all(case["passed"] for case in cases), "cases": list(cases)}
    result |= summarize(cases) if summarize else {}
    if arguments.record:
        append_results(name, cases)
    if draw and arguments.plot:
        arguments.plot.write_text(draw(cases), encoding="utf-8")
    if arguments.json:
        print(json.dumps(result))
    else:
        print_table(name, cases)
    return 0 if result["passed"] else 1


def worst_case(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The case with the lowest ratio among those that have a mark, or among all when none has."""
    marked = [case for case in cases if case["mark"] != "none"] or cases
    return min(marked, key=lambda case: case["ratio"])


def print_table(name: str, cases: Sequence[dict[str, Any]]) -> None:
    """The cases, a row each; those with the same figures share a table. Where figures are many, they get the rows."""
    from rich.console import Console  # a machine with a card may have little but torch
    from rich.table import Table

    console = Console(width=200 if not sys.stdout.isatty() else None)
    for columns in dict.fromkeys(tuple(case) for case in cases):
        rows = [case for case in cases if tuple(case) == columns]
        table = Table(title=name, title_justify="left", show_header=len(columns) <= MOST_COLUMNS)
        if len(columns) <= MOST_COLUMNS:
            for column in columns:
                table.add_column(column)
            for case in rows:
                table.add_row(*map(show_figure, case.values()))
        else:
            for column in columns:
                table.add_row(column, *(show_figure(case[column]) for case in rows))
        console.print(table)


def show_figure(value: Any) -> str:
    """A figure for a person: `yes`, `1,234`, `0.1234`, `12,345`; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {show_figure(figure)}" for name, figure in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 10:
        return f"{value:.4f}"
    return f"{value:.2e}" if abs(value) < 1e-3 else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def append_results(name: str, cases: Sequence[dict[str, Any]]) -> None:
    """A row a case in results.csv: when, on what machine, with which command."""
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        for case in cases:
            figures = {key: value for key, value in case.items() if key not in COLUMNS}
            machine = f"{os.cpu_count()} cores, {platform.machine()}, {name_gpu()}"
            writer.writerow(
                [
                    f"{datetime.now(UTC):%Y-%m-%d}", name, case["case"], f"{case['ratio']:.4f}", case["mark"], case["passed"],
                    json.dumps(figures), machine, shlex.join(["python", "-m", f"tests.benchmarks.{name}", *sys.argv[1:]]),
                ]
            )  # fmt: skip


def name_gpu() -> str:
    """The card of this machine, or `no GPU`."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
