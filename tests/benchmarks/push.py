"""How long a night's push takes: 1 % of the users changed, .1 % new, .1 % gone, and every item changed.

Three pushes follow each other. The first two fill the two sides of the store; the third is what every later night does: its side
is two releases behind, so that about 2 % of the users are written. The mark is for the third, and 5 s for a rollback. Qdrant
runs in its client's local mode, which is for trials: it gets a fiftieth of the users, and no mark. --percent 100 is a night with
a path, which moves all users.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from surf2vec.tasks.stores.places import open_store
from surf2vec.tasks.stores.push import Pushed, roll_back
from tests.benchmarks.harness import run_benchmark
from tests.roots.pushes import push_to, start_postgres, write_rows_of

VECTOR_SIZE = 128
USERS_AN_ITEM = 100
MAX_SECONDS, MAX_ROLLBACK_SECONDS = 60, 5
LOCAL_QDRANT_SHARE = 50


def write_nights(folder: Path, num_users: int, num_nights: int, changed_percent: int) -> Iterator[Pushed]:
    """Releases of consecutive nights, in `folder`."""
    rng = np.random.default_rng(1)
    users = rng.standard_normal((num_users, VECTOR_SIZE), np.float32)
    first, num_items, one_in_1000 = 0, num_users // USERS_AN_ITEM, num_users // 1000
    for night in range(1, num_nights + 1):
        items = rng.standard_normal((num_items, VECTOR_SIZE), np.float32)
        keys = [f"user-{number:09}" for number in range(first, first + num_users)]
        rows = {"users": (keys, users), "items": ([f"/page/{number}" for number in range(num_items)], items)}
        yield write_rows_of(folder / f"r{night}", f"r{night}", rows, number=night)
        first += one_in_1000  # the oldest users leave, as many come
        users = np.concatenate([users[one_in_1000:], rng.standard_normal((one_in_1000, VECTOR_SIZE), np.float32)])
        changed = rng.choice(num_users, num_users * changed_percent // 100, replace=False)
        users[changed] += np.float32(0.5)


@contextmanager
def start_store(scheme: str, folder: Path, index: str) -> Iterator[str]:
    """The URL of an empty store."""
    if scheme != "postgresql":
        yield f"{scheme}://{folder / 'store'}"
        return
    with start_postgres() as url:
        yield f"{url}&options=-c maintenance_work_mem=1GB&index={index}"


def measure_store(scheme: str, num_users: int, index: str, percent: int) -> dict[str, Any]:
    """The seconds of three pushes and of a rollback."""
    folder = Path(tempfile.mkdtemp(prefix="surf2vec-push-"))
    is_marked = scheme != "qdrant"
    num_users = num_users if is_marked else max(1000, num_users // LOCAL_QDRANT_SHARE)
    try:
        with start_store(scheme, folder, index) as url:
            pushed = [push_to(url, release) for release in write_nights(folder, num_users, 3, percent)]
            with open_store(url) as store:
                started = time.monotonic()
                roll_back(store)
                rollback_seconds = time.monotonic() - started
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    labels = {"qdrant": " (local mode)", "postgresql": f" (index: {index})"}
    seconds = [one["seconds"] for one in pushed]
    passed = seconds[2] <= MAX_SECONDS and rollback_seconds <= MAX_ROLLBACK_SECONDS
    return {
        "case": f"{scheme}{labels.get(scheme, '')}",
        "ratio": MAX_SECONDS / seconds[2],
        "mark": f"<= {MAX_SECONDS} s" if is_marked else "none",
        "passed": passed or not is_marked,
        "users": num_users,
        "first_s": seconds[0],
        "second_s": seconds[1],
        "night_s": seconds[2],
        "rollback_s": round(rollback_seconds, 3),
        "changed": pushed[2]["changed"],
        "new": pushed[2]["new"],
        "checked": pushed[2]["checked"],
    }


def measure_push(
    _: Path,
    users: int = 1_000_000,
    stores: str = "parquet,lancedb,postgresql,qdrant",
    index: str = "hnsw",
    percent: int = 1,
) -> Sequence[dict[str, Any]]:
    """A case for each store."""
    return [measure_store(scheme, users, index, percent) for scheme in stores.split(",")]


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_push, small={"users": 2_000, "stores": "parquet"}))
