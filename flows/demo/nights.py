"""The demo's nights after the first: a day more, and a day that was delivered by half.

A delivery is files that appear in a folder, as from a web server's log rotation; every night is the same command.
"""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from flows.demo.vectors import Vectors, nearest_rows, spread_rows, to_units

NEIGHBOURS = 10
SAMPLED_USERS = 1_000


class Movement(NamedTuple):
    """What a night did to the users that both releases have.

    same: share whose vector is the same to the last bit; cosine: the lowest, by percentile 1; overlap: mean share of a user's
    nearest users that stayed the same.
    """

    same: float
    cosine: float
    overlap: float


def deliver(files: list[Path], folder: Path, share: float = 1.0) -> None:
    """Copy log files into a folder; of each only the first `share` of its lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        if share == 1:
            shutil.copyfile(path, folder / path.name)
            continue
        lines = path.read_bytes().splitlines(keepends=True)
        (folder / path.name).write_bytes(b"".join(lines[: round(len(lines) * share)]))


def measure_movement(before: Vectors, after: Vectors) -> Movement:
    """How users moved from one release to the next; users of only one of them are left out."""
    places = {name: row for row, name in enumerate(before.names)}
    both = [(places[name], row) for row, name in enumerate(after.names) if name in places]
    rows = np.array(both, dtype=np.int64).reshape(-1, 2)
    one, other = before.values[rows[:, 0]], after.values[rows[:, 1]]
    cosines = (to_units(one) * to_units(other)).sum(axis=1)
    sampled = spread_rows(len(rows), SAMPLED_USERS)
    near = [nearest_rows(vectors, sampled, NEIGHBOURS) for vectors in (one, other)]
    overlaps = [len(np.intersect1d(a, b)) / NEIGHBOURS for a, b in zip(*near, strict=True)]
    return Movement(
        float((one == other).all(axis=1).mean()), float(np.percentile(cosines, 1)), float(np.mean(overlaps))
    )


def show_second_night(console: Console, first: dict[str, Any], second: dict[str, Any], movement: Movement) -> None:
    """Print what the second night cost beside the first, and how little moved."""
    night = second["night"]
    table = Table("", box=SIMPLE)
    for heading in ("first night", "second night"):
        table.add_column(heading, justify="right")
    table.add_row("users trained", f"{first['users']:,}", f"{night['changed']:,}")
    table.add_row("of them new", f"{first['users']:,}", f"{night['new_users']:,}")
    table.add_row("seconds of training", *(f"{one['seconds']['train']:.1f}" for one in (first, second)))
    table.add_row("space", first["night"]["space_id"], night["space_id"])
    console.print(table)
    console.print(
        f"Of the users of both nights [bold]{movement.same:.1%}[/bold] have the same vector to the last bit; "
        f"[bold]{movement.overlap:.1%}[/bold] of a user's {NEIGHBOURS} nearest users stayed the same."
    )


def show_held(console: Console, held: dict[str, Any], champion: str) -> None:
    """Print which rules held the release back."""
    table = Table("rule", "tonight", "limit", "verdict", box=SIMPLE)
    for row in held["gate"]["table"]:
        style = "red" if row["verdict"].startswith("held") else None
        table.add_row(row["rule"], row["tonight"], row["limit"], row["verdict"], style=style)
    console.print(table)
    console.print(
        f"Version {held['model_version']} is registered as {held['alias']}; release {champion} goes on serving."
    )
