"""`make demo`: three nights on made-up logs, and whether the vectors found what was planted in them.

The logs' users have known interests, so the question "do users with close vectors like the same things?" has a
number for an answer. The first night trains everybody; the second has a day more; of the third's day only half was
delivered, and the gate holds it back. Each is run as a person would: the command `surf2vec run`, in a process of its own.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.demo.nights import deliver, measure_movement, show_held, show_second_night
from flows.demo.vectors import Vectors, nearest_rows, read_vectors, spread_rows
from tasks.export.export import EXPORT_MANIFEST
from tasks.export.vector_files import directions_of
from tasks.sample.logs import TOPICS, interests_of_user_ids, topic_of_url, write_sample_logs
from trainer.errors import SurfError
from trainer.system.files import read_json

DAYS = 14
ITEMS = 3_000
SAMPLED_USERS = 2_000
USER_NEIGHBOURS = 10
PAGE_NEIGHBOURS = 5


@dataclass(frozen=True)
class Finding:
    """Of the nearest neighbours, the share that has the same label, and what that share is without learning anything.

    chance      neighbours drawn at random
    everybody   the same neighbours for everybody: those nearest to the mean vector
    """

    found: float
    chance: float
    everybody: float


def measure_neighbours(vectors: np.ndarray, labels: np.ndarray, rows: np.ndarray, num: int) -> Finding:
    """How often the nearest neighbours of `rows` have their label. labels: integers (n,)."""
    counts = np.bincount(labels)
    chance = (counts[labels[rows]] - 1) / (len(labels) - 1)
    found = labels[nearest_rows(vectors, rows, num)] == labels[rows][:, None]
    mean = vectors.mean(axis=0, keepdims=True)
    middle = nearest_rows(np.concatenate([vectors, mean]), np.array([len(vectors)]), num)[0]
    everybody = labels[middle][None, :] == labels[rows][:, None]
    return Finding(float(found.mean()), float(chance.mean()), float(everybody.mean()))


def choose_pages(urls: list[str], num: int) -> list[int]:
    """Rows of pages to show: the most visited one (urls come by count) below a section of each of `num` topics."""
    chosen: dict[str, int] = {}
    for row, url in enumerate(urls):
        topic = topic_of_url(url)
        if topic and topic not in chosen and url.partition("://")[2].count("/") >= 2:
            chosen[topic] = row
        if len(chosen) == num:
            break
    return list(chosen.values())


def run_command(root: Path, logs: str) -> list[str]:
    """The command that a person would type."""
    return ["surf2vec", "run", "--root", str(root), "--logs", logs, "--json"]


def installed_command(name: str) -> Path:
    """The program of that name which belongs to this interpreter."""
    return Path(sys.executable).with_name(name)


def run_job(command: list[str]) -> tuple[int, dict[str, Any]]:
    """Run a `surf2vec` command, its progress on our standard error; its exit code and the JSON that it printed."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command, which commits and says so
    try:
        done = subprocess.run(
            [str(installed_command(command[0])), *command[1:]], stdout=subprocess.PIPE, text=True, check=False
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode or 1, {"error": {"code": "no_answer", "message": f"no JSON came back: {done.stdout!r}"}}


def show_findings(console: Console, users: Vectors, directions: Vectors, seed: int) -> None:
    """Print how well neighbours share what was planted; directions: of pages, as they compare with each other."""
    interests = interests_of_user_ids(users.names, seed)[:, 0].astype(np.int64)
    topics = np.array(
        [TOPICS.index(topic) if (topic := topic_of_url(url)) else len(TOPICS) for url in directions.names]
    )
    sampled = spread_rows(len(users.names), SAMPLED_USERS)
    by_users = measure_neighbours(users.values, interests, sampled, USER_NEIGHBOURS)
    by_pages = measure_neighbours(directions.values, topics, np.arange(len(topics)), PAGE_NEIGHBOURS)
    console.print("\n[bold]Did the vectors find what was planted?[/bold]")
    table = Table("nearest by cosine", box=SIMPLE)
    for heading in ("found", "at random", "same for all"):
        table.add_column(heading, justify="right")
    for what, finding in (
        (f"{USER_NEIGHBOURS} users with a user's main interest", by_users),
        (f"{PAGE_NEIGHBOURS} pages with a page's topic", by_pages),
    ):
        table.add_row(what, f"[bold]{finding.found:.1%}[/bold]", f"{finding.chance:.1%}", f"{finding.everybody:.1%}")
    console.print(table)


def show_pages(console: Console, rows: np.ndarray, pages: Vectors, wanted: list[str]) -> None:
    """Print pages and their topics, green when it is one of those wanted."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    for row in rows:
        topic = topic_of_url(pages.names[row]) or "-"
        style = "green" if topic in wanted else "yellow"
        table.add_row(Text(pages.names[row], overflow="fold"), Text(topic, style=style))
    console.print(table)


def show_examples(
    console: Console, users: Vectors, example: int, pages: Vectors, directions: Vectors, seed: int
) -> None:
    """Print three pages with their nearest pages, and what ranks first for one user."""
    chosen = np.array(choose_pages(pages.names, 3), np.int64)
    for row, neighbours in zip(chosen, nearest_rows(directions.values, chosen, PAGE_NEIGHBOURS), strict=True):
        topic = topic_of_url(pages.names[row]) or "-"
        console.print(f"\n[bold]Nearest to[/bold] {pages.names[row]} ({topic})", soft_wrap=True, highlight=False)
        show_pages(console, neighbours, pages, [topic])
    interests = [TOPICS[i] for i in interests_of_user_ids([users.names[example]], seed)[0] if i >= 0]
    heading = f"\n[bold]Ranked first for user[/bold] {users.names[example]}, who likes {', '.join(interests)}"
    console.print(heading, soft_wrap=True, highlight=False)
    scores = pages.values @ users.values[example]
    show_pages(console, np.argsort(-scores, kind="stable")[:PAGE_NEIGHBOURS], pages, interests)


def choose_user(users: Vectors, seed: int) -> int:
    """The user to show: of those with most interests the one with the longest vector, of whom most is known."""
    num_interests = (interests_of_user_ids(users.names, seed) >= 0).sum(axis=1)
    lengths = np.linalg.norm(users.values, axis=1)
    return int(np.argmax(np.where(num_interests == num_interests.max(), lengths, -1)))


def show_next(console: Console, result: dict[str, Any], root: Path, user_id: str) -> None:
    """Print quality, where things are and what to type next."""
    if metrics := result["metrics"]:
        hit, popularity = metrics["hit_at_10"], metrics["popularity_hit_at_10"]
        console.print(
            f"\nHeld-out next page among the first 10: [bold]{hit:.1%}[/bold], by popularity {popularity:.1%}"
        )
    program = "surf2vec" if shutil.which("surf2vec") else os.path.relpath(installed_command("surf2vec"))
    for name, text in (
        ("report", result["report"]),
        ("vectors", result["export_dir"]),
        ("then try", f"{program} similar {user_id} --root {root}"),
        ("", f"{program} doctor --root {root}"),
        ("on your logs", f"{program} run --root my-root --logs 'my-logs/*.csv' --set ingest.columns.user=my_column"),
    ):
        console.print(Text.assemble((f"{name:>13}  ", "bold"), text), soft_wrap=True)


def show_result(console: Console, result: dict[str, Any], root: Path, seed: int) -> None:
    """Print all that there is to see of a run's answer, `result`."""
    users = read_vectors(Path(result["export_dir"]) / "user_vectors", "user_id")
    pages = read_vectors(Path(result["export_dir"]) / "item_vectors", "url")
    directions = pages._replace(
        values=directions_of(pages.values, read_json(Path(result["export_dir"]) / EXPORT_MANIFEST))
    )
    example = choose_user(users, seed)
    show_findings(console, users, directions, seed)
    show_examples(console, users, example, pages, directions, seed)
    show_next(console, result, root, users.names[example])


def demo(folder: Path, users: int, seed: int, console: Console) -> int:
    """Make logs, run three nights, print what they found; the exit code."""
    logs, delivered = folder / "logs", folder / "delivered"
    for old in (delivered, folder / "root"):  # of an earlier demo, which knew all three nights already
        shutil.rmtree(old, ignore_errors=True)
    console.print(
        f"[bold]$ surf2vec sample-logs --users {users} --days {DAYS} --items {ITEMS} --seed {seed} --out {logs}"
    )
    totals = write_sample_logs(logs, users, DAYS, ITEMS, seed, "csv")
    console.print(f"{totals['events']:,} events of {totals['users']:,} users, {totals['bytes'] / 1e6:,.0f} MB")
    *before, day, half_day = sorted(logs.glob("*.csv"))
    command = run_command(folder / "root", f"{delivered}/*.csv")
    results = []
    for title, files, share, expected in (
        (f"Night 1: the logs of {len(before)} days", before, 1.0, 0),
        ("Night 2: a day more", [day], 1.0, 0),
        ("Night 3: of its day only half was delivered", [half_day], 0.5, 3),
    ):
        deliver(files, delivered, share)
        console.print(f"\n[bold]{title}[/bold]\n[bold]$ {shlex.join(command)}")
        code, result = run_job(command)
        if code != expected or "error" in result:
            message = result.get("error", {}).get("message", "no reason was given")
            console.print(f"surf2vec run ended with exit code {code}: {message}", style="red", markup=False)
            return code if code > 0 else 1
        results.append(result)
        show_night(console, results, folder / "root", seed)
    return 0


def show_night(console: Console, results: list[dict[str, Any]], root: Path, seed: int) -> None:
    """Print what there is to see of the last night."""
    first, *later = results
    if not later:
        show_result(console, first, root, seed)
    elif len(later) == 1:
        users = [read_vectors(Path(one["export_dir"]) / "user_vectors", "user_id") for one in results]
        show_second_night(console, first, later[0], measure_movement(*users))
    else:
        show_held(console, later[1], later[0]["release"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.demo", description="Three nights on made-up logs.")
    parser.add_argument("--root", type=Path, default=Path("demo"), help="folder for the logs and the project root")
    parser.add_argument("--users", type=int, default=20_000, help="users in the logs")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other logs")
    arguments = parser.parse_args()
    try:
        return demo(arguments.root, arguments.users, arguments.seed, Console())
    except SurfError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped: the same command begins the demo anew", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
