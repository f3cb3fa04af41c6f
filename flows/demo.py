"""`make demo`: the main job on made-up logs, and whether the vectors found what was planted in them.

The logs' users have known interests, so the question "do users with close vectors like the same things?" has a
number for an answer. The job itself is run as a person would: the command `surf2vec run`, in a process of its own.
"""

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.sample_logs import TOPICS, interests_of_user_ids, topic_of_url, write_sample_logs
from trainer.errors import SurfError

DAYS = 14
ITEMS = 3_000
SAMPLED_USERS = 2_000
USER_NEIGHBOURS = 10
ITEM_NEIGHBOURS = 5
BATCH_ROWS = 500  # rows whose similarities to all others are in memory at once


@dataclass(frozen=True)
class Finding:
    """Of the nearest neighbours, the share that has the same label, and what that share is without learning anything.

    chance      neighbours drawn at random
    everybody   the same neighbours for everybody: those nearest to the mean vector
    """

    found: float
    chance: float
    everybody: float


def nearest_rows(vectors: np.ndarray, rows: np.ndarray, num: int) -> np.ndarray:
    """The `num` rows nearest to each of `rows` by cosine, itself left out: int64 (len(rows), num), nearest first.

    vectors: float32 (n, D), n > num. Equal cosines: the smaller row first.
    """
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    found = []
    for start in range(0, len(rows), BATCH_ROWS):
        batch = rows[start : start + BATCH_ROWS]
        cosines = unit[batch] @ unit.T
        cosines[np.arange(len(batch)), batch] = -np.inf
        found.append(np.argsort(-cosines, axis=1, kind="stable")[:, :num])
    return np.concatenate(found)


def measure_neighbours(vectors: np.ndarray, labels: np.ndarray, rows: np.ndarray, num: int) -> Finding:
    """How often the nearest neighbours of `rows` have their label. labels: integers (n,)."""
    counts = np.bincount(labels)
    chance = (counts[labels[rows]] - 1) / (len(labels) - 1)
    found = labels[nearest_rows(vectors, rows, num)] == labels[rows][:, None]
    mean = vectors.mean(axis=0, keepdims=True)
    middle = nearest_rows(np.concatenate([vectors, mean]), np.array([len(vectors)]), num)[0]
    everybody = labels[middle][None, :] == labels[rows][:, None]
    return Finding(float(found.mean()), float(chance.mean()), float(everybody.mean()))


def spread_rows(num_rows: int, num_wanted: int) -> np.ndarray:
    """At most `num_wanted` rows, evenly spread over all: the same ones at every call."""
    num = min(num_rows, num_wanted)
    return np.arange(num) * num_rows // max(1, num)


def read_vectors(folder: Path, name: str) -> tuple[list[str], np.ndarray]:
    """The names in column `name` and the vectors, float32 (n, D), of all parts in a folder of an export."""
    table = pq.ParquetDataset(sorted(folder.glob("part-*.parquet"))).read(columns=[name, "vector"]).combine_chunks()
    vectors = table["vector"].combine_chunks()
    return table[name].to_pylist(), vectors.flatten().to_numpy().reshape(len(vectors), vectors.type.list_size)


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


def run_job(command: list[str]) -> tuple[int, dict[str, Any]]:
    """Run a `surf2vec` command, its progress on our standard error; its exit code and the JSON that it printed."""
    installed = Path(sys.executable).with_name(command[0])
    done = subprocess.run([str(installed), *command[1:]], stdout=subprocess.PIPE, text=True, check=False)
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode or 1, {"error": {"code": "no_answer", "message": f"no JSON came back: {done.stdout!r}"}}


def show_findings(
    console: Console, user_ids: list[str], users: np.ndarray, urls: list[str], items: np.ndarray, seed: int
) -> None:
    """Print how well neighbours share what was planted."""
    main_interests = interests_of_user_ids(user_ids, seed)[:, 0].astype(np.int64)
    sampled = spread_rows(len(user_ids), SAMPLED_USERS)
    topics = np.array([TOPICS.index(topic_of_url(url) or TOPICS[0]) for url in urls])
    table = Table(title="Did the vectors find what was planted?", title_justify="left")
    for heading in ("nearest by cosine", "found", "chance", "same for everybody"):
        table.add_column(heading, justify="left" if heading == "nearest by cosine" else "right")
    for what, finding in (
        (f"{USER_NEIGHBOURS} users who share a user's main interest",
         measure_neighbours(users, main_interests, sampled, USER_NEIGHBOURS)),
        (f"{ITEM_NEIGHBOURS} pages that share a page's topic",
         measure_neighbours(items, topics, np.arange(len(urls)), ITEM_NEIGHBOURS)),
    ):  # fmt: skip
        table.add_row(what, f"[bold]{finding.found:.1%}[/bold]", f"{finding.chance:.1%}", f"{finding.everybody:.1%}")
    console.print(table)


def show_pages(console: Console, urls: list[str], items: np.ndarray) -> None:
    """Print three pages and their nearest pages."""
    chosen = np.array(choose_pages(urls, 3), np.int64)
    for row, neighbours in zip(chosen, nearest_rows(items, chosen, ITEM_NEIGHBOURS), strict=True):
        table = Table(title=f"Pages nearest to {urls[row]} ({topic_of_url(urls[row])})", title_justify="left")
        table.add_column("page", min_width=70, no_wrap=True)
        table.add_column("topic")
        for neighbour in neighbours:
            same = topic_of_url(urls[neighbour]) == topic_of_url(urls[row])
            table.add_row(
                urls[neighbour], Text(topic_of_url(urls[neighbour]) or "-", style="green" if same else "yellow")
            )
        console.print(table)


def show_user(
    console: Console, user_id: str, vector: np.ndarray, urls: list[str], items: np.ndarray, seed: int
) -> None:
    """Print the pages that rank first for one user, beside the interests planted."""
    interests = [TOPICS[i] for i in interests_of_user_ids([user_id], seed)[0] if i >= 0]
    table = Table(title=f"Ranked first for user {user_id}, who likes {', '.join(interests)}", title_justify="left")
    table.add_column("page", min_width=70, no_wrap=True)
    table.add_column("topic")
    for row in np.argsort(-(items @ vector), kind="stable")[:ITEM_NEIGHBOURS]:
        topic = topic_of_url(urls[row]) or "-"
        table.add_row(urls[row], Text(topic, style="green" if topic in interests else "yellow"))
    console.print(table)


def show_next(console: Console, result: dict[str, Any], root: Path, user_id: str) -> None:
    """Print quality, where things are and what to type next."""
    metrics = result["metrics"]
    hit, popularity = metrics["hit_at_10"], metrics["popularity_hit_at_10"]
    console.print(f"Held-out next page among the first 10: [bold]{hit:.1%}[/bold], by popularity {popularity:.1%}")
    table = Table(show_header=False, box=None)
    for name, text in (
        ("report", result["report"]),
        ("vectors", result["export_dir"]),
        ("then try", f"surf2vec similar {user_id} --root {root}"),
        ("", f"surf2vec doctor --root {root}"),
        ("on your logs", "surf2vec run --root my-root --logs 'my-logs/*.csv' --set ingest.columns.user=my_user_column"),
    ):
        table.add_row(f"[bold]{name}[/bold]", Text(str(text), overflow="fold"))
    console.print(table)


def demo(folder: Path, users: int, seed: int, console: Console) -> int:
    """Make logs, run the job, print what it found; the exit code."""
    logs = folder / "logs"
    console.print(
        f"[bold]$ surf2vec sample-logs --users {users} --days {DAYS} --items {ITEMS} --seed {seed} --out {logs}"
    )
    totals = write_sample_logs(logs, users, DAYS, ITEMS, seed, "csv")
    console.print(f"{totals['events']:,} events of {totals['users']:,} users, {totals['bytes'] / 1e6:,.0f} MB")
    command = run_command(folder / "root", f"{logs}/*.csv")
    console.print(f"[bold]$ {shlex.join(command)}")
    code, result = run_job(command)
    if code != 0 or "error" in result:
        message = result.get("error", {}).get("message", "no reason was given")
        console.print(f"surf2vec run ended with exit code {code}: {message}", style="red", markup=False)
        return code if code > 0 else 1
    export = Path(result["export_dir"])
    user_ids, user_vectors = read_vectors(export / "user_vectors", "user_id")
    urls, items = read_vectors(export / "item_vectors", "url")
    show_findings(console, user_ids, user_vectors, urls, items, seed)
    show_pages(console, urls, items)
    example = int((interests_of_user_ids(user_ids, seed) >= 0).sum(axis=1).argmax())
    show_user(console, user_ids[example], user_vectors[example], urls, items, seed)
    show_next(console, result, folder / "root", user_ids[example])
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.demo", description="The main job on made-up logs.")
    parser.add_argument("--root", type=Path, default=Path("demo"), help="folder for the logs and the project root")
    parser.add_argument("--users", type=int, default=20_000, help="users in the logs")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other logs")
    arguments = parser.parse_args()
    try:
        return demo(arguments.root, arguments.users, arguments.seed, Console())
    except SurfError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
