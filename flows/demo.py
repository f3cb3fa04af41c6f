"""`make demo`: runs three nights on sample logs, and measures whether the vectors reflect the interests behind them.

The users in the logs have known interests, so it can be measured whether users with close vectors have the same interests.
The first night trains all users. The second has one more day. The third gets only half of its day's log, and the gate holds
it. Each night is a `surf2vec run` command in a process of its own.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import polars as pl
from rich.box import SIMPLE
from rich.console import Console
from rich.text import Text

from surf2vec.flows.cli.show import show_gate, show_table
from surf2vec.tasks.export.vector_files import directions_of, interests_of
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.sample.logs import interests_of_keys, write_sample_logs
from surf2vec.tasks.sample.world import TOPICS, topic_of_url
from surf2vec.trainer.errors import SurfError
from surf2vec.trainer.system.files import read_json

DAYS = 14
ITEMS = 3_000
SAMPLED_USERS = 2_000
USER_NEIGHBOURS = 10
PAGE_NEIGHBOURS = 5

console = Console()


class Vectors(NamedTuple):
    """Names (user ids or URLs) and their vectors, float32 (n, D)."""

    names: list[str]
    values: np.ndarray


def read_vectors(folder: Path, name: str) -> Vectors:
    """Returns the vectors of all parts in a folder of an export; `name` is the column of their names."""
    table = pl.read_parquet(folder / "part-*.parquet", columns=[name, "vector"])
    return Vectors(table[name].to_list(), table["vector"].to_numpy())


def read_interests(export: Path) -> Vectors:
    """Returns the interests of the users of an export; their vectors if these have one part."""
    users = read_vectors(export / "user_vectors", "user_id")
    return Vectors(users.names, interests_of(users.values, read_json(export / EXPORT_MANIFEST)))


def nearest_rows(vectors: np.ndarray, rows: np.ndarray, num: int) -> np.ndarray:
    """Returns the `num` rows nearest to each of `rows` by cosine, without the row itself: int64 (len(rows), num), nearest first.

    vectors: float32 (n, D). With fewer than num others, returns all of them.
    """
    num = min(num, len(vectors) - 1)
    unit = np.ascontiguousarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)
    index = faiss.IndexFlatIP(unit.shape[1])
    index.add(unit)
    found = index.search(unit[rows], num + 1)[1]
    is_other = found != rows[:, None]
    is_other[is_other.all(axis=1), -1] = False  # the row itself is missing if many rows are equal to it
    return found[is_other].reshape(len(rows), num)


def spread_rows(num_rows: int, num_wanted: int) -> np.ndarray:
    """Returns at most `num_wanted` rows, evenly spread over all; the same at every call."""
    num = min(num_rows, num_wanted)
    return np.arange(num) * num_rows // max(1, num)


def measure_neighbours(vectors: np.ndarray, labels: np.ndarray, rows: np.ndarray, num: int) -> tuple[float, ...]:
    """Returns the share of the nearest neighbours of `rows` with the same label; for comparison also that of random
    neighbours, and that of the rows nearest to the mean vector. labels: integers (n,).
    """
    wanted = labels[rows][:, None]
    with_mean = np.concatenate([vectors, vectors.mean(axis=0, keepdims=True)])
    middle = nearest_rows(with_mean, np.array([len(vectors)]), num)
    chance = (np.bincount(labels)[labels[rows]] - 1) / (len(labels) - 1)
    found = labels[nearest_rows(vectors, rows, num)] == wanted
    return float(found.mean()), float(chance.mean()), float((labels[middle] == wanted).mean())


def share_unmoved(before: Vectors, after: Vectors) -> float:
    """Returns, of the users in both releases, the share whose vectors are the same to the last bit."""
    _, *rows = np.intersect1d(before.names, after.names, assume_unique=True, return_indices=True)
    return float((before.values[rows[0]] == after.values[rows[1]]).all(axis=1).mean())


def deliver(files: list[Path], folder: Path, share: float) -> None:
    """Copy the first `share` of the lines of each log file into a folder, as a web server's log rotation would."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        lines = path.read_bytes().splitlines(keepends=True)
        (folder / path.name).write_bytes(b"".join(lines[: round(len(lines) * share)]))


def run_job(command: list[str]) -> tuple[int, dict[str, Any]]:
    """Run a `surf2vec` command, with progress on our standard error. Returns its exit code and the JSON it printed."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command, which commits and reports it
    try:
        program = Path(sys.executable).with_name(command[0])
        done = subprocess.run([program, *command[1:]], stdout=subprocess.PIPE, text=True, check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode or 1, {"error": {"code": "no_answer", "message": f"no JSON came back: {done.stdout!r}"}}


def show_first_night(result: dict[str, Any], root: Path, seed: int) -> None:
    """Print how well the vectors reflect the interests, the quality, the places of files, and next commands."""
    export = Path(result["export_dir"])
    users, pages = read_vectors(export / "user_vectors", "user_id"), read_vectors(export / "item_vectors", "url")
    manifest = read_json(export / EXPORT_MANIFEST)
    directions = directions_of(pages.values, manifest)
    interests = interests_of_keys(np.array([int(name, 16) for name in users.names], np.uint64), seed)
    topics = np.array([TOPICS.index(topic) if (topic := topic_of_url(url)) else len(TOPICS) for url in pages.names])
    sampled, mains = spread_rows(len(users.names), SAMPLED_USERS), interests[:, 0].astype(np.int64)
    parts = {f", by {part}": slice(*columns) for part, columns in manifest.get("parts", {}).items()}
    of_users = {
        f"{USER_NEIGHBOURS} users' main interest{by}": measure_neighbours(
            users.values[:, columns], mains, sampled, USER_NEIGHBOURS
        )
        for by, columns in (parts or {"": slice(None)}).items()
    }
    of_pages = measure_neighbours(directions, topics, np.arange(len(topics)), PAGE_NEIGHBOURS)
    console.print("\n[bold]Did the vectors find what was planted?[/bold]")
    shares = of_users | {f"{PAGE_NEIGHBOURS} pages with a page's topic": of_pages}
    rows = ((what, *(f"{share:.1%}" for share in found)) for what, found in shares.items())
    show_table(("nearest by cosine", ">vectors", ">random", ">popularity"), rows, box=SIMPLE)
    user_id = users.names[0]
    hit, popularity = (result["metrics"].get(name, 0) for name in ("hit_at_10", "popularity_hit_at_10"))
    console.print(f"\nHeld-out next page among the first 10: [bold]{hit:.1%}[/bold], by popularity {popularity:.1%}")
    program, mlflow = (
        name if shutil.which(name) else os.path.relpath(Path(sys.executable).with_name(name))
        for name in ("surf2vec", "mlflow")
    )
    for name, text in (
        ("report", f"open {result['report']} in a browser"),
        ("MLflow", f"{mlflow} ui --backend-store-uri {result['tracking_uri']}, then open http://127.0.0.1:5000"),
        ("vectors", result["export_dir"]),
        ("then try", f"{program} similar {user_id} --root {root}"),
        ("", f"{program} doctor --root {root}"),
        ("", f"{program} push parquet://{(root / 'store').resolve()} --root {root}"),
        ("on your logs", f"{program} run --root my-root --logs 'my-logs/*.csv' --set ingest.columns.user=my_column"),
    ):
        console.print(Text.assemble((f"{name:>13}  ", "bold"), text), soft_wrap=True)


def show_second_night(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Print the cost of the second night beside the first, and how many users kept their interest."""
    night = second["night"]
    rows = [
        ("users trained", f"{first['users']:,}", f"{night['changed']:,}"),
        ("of them new", f"{first['users']:,}", f"{night['new_users']:,}"),
        ("seconds of training", *(f"{result['training']['train_seconds']:.1f}" for result in (first, second))),
        ("space", first["night"]["space_id"], night["space_id"]),
    ]
    show_table(("", ">first night", ">second night"), rows, box=SIMPLE)
    same = share_unmoved(*(read_interests(Path(night["export_dir"])) for night in (first, second)))
    console.print(f"Of the users of both nights [bold]{same:.1%}[/bold] have the same interest to the last bit.")


def demo(folder: Path, users: int, seed: int) -> int:
    """Make logs, run three nights and print the results. Returns the exit code."""
    logs, delivered, root = folder / "logs", folder / "delivered", folder / "root"
    for old in (delivered, root):  # of an earlier demo, which has all three nights already
        shutil.rmtree(old, ignore_errors=True)
    sizes = f"--users {users} --days {DAYS} --items {ITEMS} --seed {seed}"
    console.print(f"[bold]$ surf2vec sample-logs {sizes} --out {logs}")
    totals = write_sample_logs(logs, users, DAYS, ITEMS, seed, "csv")
    console.print(f"{totals['events']:,} events of {totals['users']:,} users, {totals['bytes'] / 1e6:,.0f} MB")
    *before, day, half_day = sorted(logs.glob("*.csv"))
    command = ["surf2vec", "run", "--root", str(root), "--logs", f"{delivered}/*.csv"]
    results: list[dict[str, Any]] = []
    for title, files, share, expected in (
        (f"Night 1: the logs of {len(before)} days", before, 1.0, 0),
        ("Night 2: a day more", [day], 1.0, 0),
        ("Night 3: of its day only half was delivered", [half_day], 0.5, 3),
    ):
        deliver(files, delivered, share)
        console.print(f"\n[bold]{title}[/bold]\n[bold]$ {shlex.join(command)}")
        code, result = run_job([*command, "--json"])  # whose numbers are printed below
        if code != expected or "error" in result:
            message = result.get("error", {}).get("message", "no reason was given")
            console.print(f"surf2vec run ended with exit code {code}: {message}", style="red", markup=False)
            return code if code > 0 else 1
        results.append(result)
        if len(results) == 1:
            show_first_night(result, root, seed)
        elif len(results) == 2:
            show_second_night(*results)
        else:
            show_gate(result["gate"], result["facts"]["Gate"][0])
            version, champion = result["model_version"], results[1]["release"]
            console.print(f"Version {version} is registered as {result['alias']}; release {champion} keeps serving.")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m surf2vec.flows.demo", description="Three nights on made-up logs.")
    parser.add_argument("--root", type=Path, default=Path("demo"), help="folder for the logs and the project root")
    parser.add_argument("--users", type=int, default=20_000, help="users in the logs")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other logs")
    arguments = parser.parse_args()
    try:
        return demo(arguments.root, arguments.users, arguments.seed)
    except SurfError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped: the same command starts the demo again", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
