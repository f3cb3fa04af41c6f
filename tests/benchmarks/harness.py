"""What all benchmarks share: their arguments, the printed table, and the row in results.csv."""

import argparse
import csv
import inspect
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from surf2vec.trainer.errors import HeldBackError
from surf2vec.trainer.system.memory import private_bytes

RESULTS = Path(__file__).with_name("results.csv")
COLUMNS = ["date", "name", "case", "ratio", "mark", "passed", "figures", "machine", "command", "commit"]
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


def run_watched(*arguments: str) -> dict[str, Any]:
    """The JSON that `python -m ...` prints, with the most private memory of its process, looked at a hundred times a second.

    Raises SystemExit when it fails.
    """
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=out)
        peak_bytes = 0
        while process.poll() is None:
            peak_bytes = max(peak_bytes, private_bytes(process.pid))
            time.sleep(0.01)
        if process.returncode:
            raise SystemExit(f"{shlex.join(arguments)} ended with {process.returncode}")
        out.seek(0)
        return dict(json.loads(out.read())) | {"peak_bytes": peak_bytes}


def make_case(name: str, ratio: float, mark: str = "none", passed: bool = True, **figures: Any) -> dict[str, Any]:
    """Return a row of the table: what was measured, as a ratio to its mark, and further figures."""
    return {"case": name, "ratio": ratio, "mark": mark, "passed": passed, **figures}


def run_benchmark(
    measure: Callable[..., Sequence[dict[str, Any]]],
    small: Mapping[str, Any] = MappingProxyType({}),
    summarize: Callable[[Sequence[dict[str, Any]]], dict[str, Any]] | None = None,
) -> int:
    """Run `python -m tests.benchmarks.NAME [--json] [--data DIR] [--record | --small]` of the module of `measure`.

    `measure(data_dir)` returns the cases (make_case). Its other parameters, whole numbers or words with a default, are options
    of the command line. With --json one object is printed: the figures of the worst case that has a mark, whether all
    `passed`, the cases, and what `summarize(cases)` adds. --record appends to results.csv. `small` are the values with
    --small, which tries the program: of options, and of constants of the module.
    Returns the exit code: 1 where a mark is missed; a small run only has to end.
    """
    module = sys.modules[measure.__module__]
    name = Path(str(module.__file__)).stem
    options = {option.name: option.default for option in list(inspect.signature(measure).parameters.values())[1:]}
    parser = argparse.ArgumentParser(
        f"python -m tests.benchmarks.{name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    data = Path(os.environ.get("SURF2VEC_DATA", DEFAULT_DATA))
    parser.add_argument("--data", type=Path, default=data, help="real logs")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--record", action="store_true", help="append the figures to results.csv")
    kind.add_argument("--small", action="store_true", help="try the program at a small size; its figures mean nothing")
    for option, default in options.items():
        parser.add_argument(f"--{option}", type=type(default), default=default, help=f"default: {default}")
    arguments = parser.parse_args()
    if arguments.small:
        for setting, value in small.items():
            setattr(arguments if setting in options else module, setting, value)
    cases = measure(arguments.data, **{option: getattr(arguments, option) for option in options})
    result = worst_case(cases) | {"name": name, "passed": all(case["passed"] for case in cases), "cases": list(cases)}
    result |= summarize(cases) if summarize else {}
    if arguments.record:
        append_results(name, cases)
    if arguments.json:
        print(json.dumps(result))
    else:
        print_table(name, cases)
    return 0 if result["passed"] or arguments.small else 1


def list_programs() -> list[str]:
    """Return the names of the benchmarks in this folder: the modules that call run_benchmark."""
    calls = re.compile(r"^    sys\.exit\(\s*run_benchmark\(", re.MULTILINE)
    return sorted(path.stem for path in RESULTS.parent.glob("*.py") if calls.search(path.read_text()))


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
    """A row a case in results.csv: when, on what machine, with which command, at which commit."""
    run = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "name": name,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {name_gpu()}",
        "command": shlex.join(["python", "-m", f"tests.benchmarks.{name}", *sys.argv[1:]]),
        "commit": name_commit(),
    }
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        for case in cases:
            figures = json.dumps({key: value for key, value in case.items() if key not in COLUMNS})
            told = {column: case[column] for column in ("case", "mark", "passed")}
            writer.writerow(run | told | {"ratio": f"{case['ratio']:.4f}", "figures": figures})


def name_commit() -> str:
    """The commit of this checkout, with "-dirty" where files differ from it; empty outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=False).stdout.strip()


def name_gpu() -> str:
    """The card of this machine, or `no GPU`."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


if __name__ == "__main__":
    print(*list_programs())
