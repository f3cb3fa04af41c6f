"""`make demo`: runs three nights on sample logs, and measures whether the vectors reflect the interests behind them.

The users in the logs have known interests, so it can be measured whether users with close vectors have the same interests.
The first night trains all users. The second has one more day. The third gets only half of its day's log, and the gate holds it.
"""

import argparse
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from rich.box import SIMPLE

import surf2vec
from surf2vec.flows.cli.show import console, show_run, show_table
from surf2vec.tasks.export.vector_files import directions_of, interests_of
from surf2vec.tasks.sample.logs import interests_of_keys
from surf2vec.tasks.sample.world import TOPICS, topic_of_url
from surf2vec.trainer.errors import HeldBackError, SurfError

DAYS = 14
ITEMS = 3_000
SAMPLED_USERS = 2_000
NUM_USERS = 10  # neighbours of a user
NUM_PAGES = 5  # neighbours of a page


def nearest_rows(vectors: np.ndarray, rows: np.ndarray, num: int) -> np.ndarray:
    """Return the `num` rows nearest to each of `rows` by cosine, without the row itself: int64 (len(rows), num), nearest first.

    vectors: float32 (n, D). With fewer than num others, returns all of them.
    """
    unit = np.ascontiguousarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)
    index = faiss.IndexFlatIP(unit.shape[1])
    index.add(unit)
    found = index.search(unit[rows], min(num + 1, len(unit)))[1]
    others_first = np.argsort(found == rows[:, None], axis=1, kind="stable")  # a row may be missing among equal ones
    return np.take_along_axis(found, others_first, axis=1)[:, : min(num, len(unit) - 1)]


def measure_neighbours(vectors: np.ndarray, labels: np.ndarray, rows: np.ndarray, num: int) -> tuple[float, ...]:
    """Return the share of the nearest neighbours of `rows` with the same label; for comparison also that of random
    neighbours, and that of the rows nearest to the mean vector. labels: integers (n,).
    """
    wanted = labels[rows][:, None]
    with_mean = np.concatenate([vectors, vectors.mean(axis=0, keepdims=True)])
    middle = nearest_rows(with_mean, np.array([len(vectors)]), num)
    chance = (np.bincount(labels)[labels[rows]] - 1) / (len(labels) - 1)
    found = labels[nearest_rows(vectors, rows, num)] == wanted
    return float(found.mean()), float(chance.mean()), float((labels[middle] == wanted).mean())


def deliver(files: list[Path], folder: Path, share: float) -> None:
    """Copy the first `share` of the lines of each log file into a folder, as a web server's log rotation would."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        lines = path.read_bytes().splitlines(keepends=True)
        (folder / path.name).write_bytes(b"".join(lines[: round(len(lines) * share)]))


def show_found(result: dict[str, Any], root: Path, seed: int) -> None:
    """Print how well the vectors reflect the interests of users and the topics of pages."""
    release = surf2vec.open_release(root, result["release"])
    users, pages, manifest = release.user_vectors().collect(), release.item_vectors().collect(), release.manifest
    interests = interests_of_keys(np.array([int(name, 16) for name in users["user_id"]], np.uint64), seed)[:, 0]
    topics = np.array([TOPICS.index(str(topic_of_url(url))) for url in pages["url"]])
    sampled = np.linspace(0, len(users) - 1, min(len(users), SAMPLED_USERS)).astype(int)
    found = {
        f"{NUM_USERS} users' main interest, by {part}": measure_neighbours(
            users["vector"].to_numpy()[:, slice(*columns)], interests, sampled, NUM_USERS
        )
        for part, columns in manifest["parts"].items()
    }
    directions = directions_of(pages["vector"].to_numpy(), manifest)
    found[f"{NUM_PAGES} pages with a page's topic"] = measure_neighbours(
        directions, topics, np.arange(len(topics)), NUM_PAGES
    )
    rows = ((what, *(f"{share:.1%}" for share in shares)) for what, shares in found.items())
    title = "Did the vectors find what was planted?"
    show_table(("nearest by cosine", ">vectors", ">random", ">popularity"), rows, title=title, box=SIMPLE)
    if "hit_at_10" in result["metrics"]:
        hit, popularity = (result["metrics"][name] for name in ("hit_at_10", "popularity_hit_at_10"))
        console.print(f"Held-out next page among the first 10: {hit:.1%}, by popularity {popularity:.1%}")


def share_unmoved(before: surf2vec.Release, after: surf2vec.Release) -> float:
    """Returns, of the users in both releases, the share whose interests are the same to the last bit."""
    both = before.user_vectors().join(after.user_vectors(), on="user_id").collect()
    one, other = (interests_of(both[name].to_numpy(), after.manifest) for name in ("vector", "vector_right"))
    return float((one == other).all(axis=1).mean())


def demo(folder: Path, users: int, seed: int) -> None:
    """Make logs, run three nights and print the results. Raises SurfError if a night fails or the gate errs."""
    logs, delivered, root = folder / "logs", folder / "delivered", folder / "root"
    for old in (delivered, root):  # of an earlier demo, which has all three nights already
        shutil.rmtree(old, ignore_errors=True)
    sizes = f"--users {users} --days {DAYS} --items {ITEMS} --seed {seed}"
    console.print(f"$ surf2vec sample-logs {sizes} --out {logs}", style="bold")
    surf2vec.sample_logs(logs, users, DAYS, ITEMS, seed)
    *before, day, half_day = sorted(logs.glob("*.csv"))
    releases: list[surf2vec.Release] = []
    for title, files, share in (
        (f"Night 1: the logs of {len(before)} days", before, 1.0),
        ("Night 2: a day more", [day], 1.0),
        ("Night 3: of its day only half was delivered", [half_day], 0.5),
    ):
        deliver(files, delivered, share)
        console.print(f"\n{title}\n$ surf2vec run --root {root} --logs '{delivered}/*.csv'", style="bold")
        result = surf2vec.run(f"{delivered}/*.csv", root)
        show_run(result)
        if result["gate"]["passes"] != (share == 1):
            raise HeldBackError(f"the gate's verdict was {result['gate']['verdict']!r}, which is not the expected one")
        releases.append(surf2vec.open_release(root, result["release"]))
        if len(releases) == 1:
            show_found(result, root, seed)
        elif len(releases) == 2:
            same = share_unmoved(*releases)
            console.print(f"Of the users of both nights {same:.1%} have the same interest to the last bit.")
    console.print(f"Release {releases[1].manifest['release']} keeps serving.\n")
    show_next(root, result["tracking_uri"])


def show_next(root: Path, tracking_uri: str) -> None:
    """Print commands to try next."""
    program, mlflow = (
        name if shutil.which(name) else os.path.relpath(Path(sys.executable).with_name(name))
        for name in ("surf2vec", "mlflow")
    )
    user_id = surf2vec.open_release(root).user_vectors().first().collect()["user_id"][0]
    for text in (
        f"{program} similar {user_id} --root {root}",
        f"{program} doctor --root {root}",
        f"{program} push parquet://{(root / 'store').resolve()} --root {root}",
        f"{mlflow} ui --backend-store-uri {tracking_uri}, then open http://127.0.0.1:5000",
        f"{program} run --root my-root --logs 'my-logs/*.csv' --set ingest.columns.user=my_column",
    ):
        console.print(f"then try  {text}", soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m surf2vec.flows.demo", description="Three nights on made-up logs.")
    parser.add_argument("--root", type=Path, default=Path("demo"), help="folder for the logs and the project root")
    parser.add_argument("--users", type=int, default=20_000, help="users in the logs")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other logs")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")  # libraries' deprecation warnings are for developers
    try:
        demo(arguments.root, arguments.users, arguments.seed)
    except SurfError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped: the same command starts the demo again", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
