"""Serving by reference: what registering sends, what loading costs, and how much of the table a lookup reads.

`--users N` (200,000 by default) users with random vectors of 128 numbers go through the project's own export and registering.
A process of its own, with none of our code, then loads the model and asks as many users as 10,000 are to 20 million.
"Sent" is all that the registering process wrote, to files or to the database; "read" all that the asking process read,
footers of files included; memory is the asking process's peak after that. Neighbours are asked last, of ten users:
their index is mapped into memory, so of it only what is not of the file counts (`neighbours_anonymous_mb`).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.system.files import describe_file, read_json, write_json
from tests.benchmarks.harness import make_case, run_benchmark
from tests.data.corpora import RULES, user_hash
from tests.roots.releases import STORAGES, export_release, write_run_record

VECTOR_SIZE = 128
NUM_ITEMS = 10_000
PARTITION_USERS = 50_000
USERS_AN_ASKED = 2_000
RELEASE = "r1"

MAX_SENT_MB, MAX_LOAD_SECONDS, MAX_MEMORY_MB, MAX_SHARE_READ = 100, 10, 1000, 0.1

CONSUMER = """
import json, sys, time
started = time.monotonic()
import mlflow.pyfunc
import pandas as pd

def read_counter(path, name):
    with open(path) as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))

asked = pd.DataFrame({"user_id": json.load(sys.stdin)})
imported = time.monotonic()
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/surf2vec-users@champion")
loaded = time.monotonic()
model.predict(asked[:0])
before, started_asking = read_counter("/proc/self/io", "rchar"), time.monotonic()
vectors = model.predict(asked)["vector"]
told = {
    "import_seconds": imported - started, "load_seconds": loaded - started, "asked_seconds": time.monotonic() - started_asking,
    "read_bytes": read_counter("/proc/self/io", "rchar") - before, "found": int(vectors.notna().sum()),
    "first": vectors[0], "peak_bytes": 1024 * read_counter("/proc/self/status", "VmHWM"),
}
anonymous, started_asking = read_counter("/proc/self/status", "RssAnon"), time.monotonic()
told["neighbours"] = int(model.predict(asked[:10], params={"k": 10})["neighbours"].map(len).min())
told["neighbours_seconds"] = time.monotonic() - started_asking
told["neighbours_anonymous_bytes"] = 1024 * (read_counter("/proc/self/status", "RssAnon") - anonymous)
assert not [name for name in ("tasks", "trainer", "flows", "sql", "torch") if name in sys.modules]
print(json.dumps(told))
"""


MAKE_USERS = """
create table users as
select user_id, hash, (hash % $partitions)::int as part
from (select printf('user-%09d', range) as user_id, md5_number_lower(user_id) as hash from range($num_users))
order by part, user_id
"""
COPY_PARTITION = "copy (select user_id, hash from users where part = $part order by user_id) to $path (format parquet)"
COPY_ITEMS = """
copy (select range as item_ix, '/page/' || range as url, 1 as count, 1 as users from range($num_items))
to $path (format parquet)
"""


@dataclass
class RandomVectors:
    """A generation whose vectors are drawn when they are read; `rows` are the users of each micro-partition."""

    rows: list[int]
    generation: int = 1
    num_items: int = NUM_ITEMS
    vector_size: int = VECTOR_SIZE
    has_item_vectors: bool = True
    bias: float = 0.0
    trail: None = None

    @property
    def config(self) -> TrainConfig:
        return TrainConfig(parts="interest", vector_size=self.vector_size, bias=self.bias)

    @property
    def num_partitions(self) -> int:
        return len(self.rows)

    def read_users(self, partition: int, /) -> NDArray[np.float32]:
        rng = np.random.default_rng(partition)
        return rng.standard_normal((self.rows[partition], self.vector_size), np.float32)

    def read_items(self, start: int, stop: int, /) -> NDArray[np.float32]:
        rng = np.random.default_rng(len(self.rows) + start)
        return rng.standard_normal((stop - start, self.vector_size), np.float32)


def name_user(number: int) -> str:
    return f"user-{number:09d}"


def write_users(folder: Path, num_users: int) -> list[int]:
    """What export reads of a corpus: its users by micro-partition, its items, its manifest. Answers users a partition."""
    folder.mkdir(parents=True)
    partitions = 8
    while partitions * PARTITION_USERS < num_users:
        partitions *= 2
    with duckdb.connect(config={"memory_limit": "2GB", "temp_directory": str(folder.parent), "threads": 2}) as database:
        database.execute(MAKE_USERS, {"num_users": num_users, "partitions": partitions})
        rows = []
        for part in range(partitions):
            path = folder / f"p{part:05d}.users.parquet"
            database.execute(COPY_PARTITION, {"part": part, "path": str(path)})
            rows.append(pq.read_metadata(path).num_rows)
        database.execute(COPY_ITEMS, {"num_items": NUM_ITEMS, "path": str(folder / "vocabulary.parquet")})
    manifest = {"partitions": partitions, "num_users": num_users, "num_items": NUM_ITEMS, "users": rows}
    manifest["files"] = {path.name: describe_file(path) for path in folder.iterdir()}
    write_json(folder / "manifest.json", manifest | {"window_id": folder.name, "made_from": {"rules": RULES}})
    return rows


def read_written_bytes() -> int:
    """What this process has written so far, to files and sockets."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def ask_elsewhere(root: Root, folder: Path, num_users: int) -> dict[str, Any]:
    """What CONSUMER tells, with random users to ask for; it must have found them all, and the right vector."""
    asked = np.random.default_rng(3).choice(num_users, max(10, num_users // USERS_AN_ASKED), replace=False)
    ids = [name_user(number) for number in asked.tolist()]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MLFLOW"))}
    done = subprocess.run(
        [sys.executable, "-I", "-c", CONSUMER, root.tracking_uri],
        input=json.dumps(ids), stdout=subprocess.PIPE, text=True, check=True, cwd=folder, env=clean,
    )  # fmt: skip
    told = json.loads(done.stdout)
    rows = read_json(root.corpus("window") / "manifest.json")["users"]
    part = user_hash(ids[0]) % len(rows)
    part_ids = pq.read_table(root.corpus("window") / f"p{part:05d}.users.parquet")["user_id"].to_pylist()
    expected = RandomVectors(rows).read_users(part)[part_ids.index(ids[0])]
    np.testing.assert_allclose(told["first"], expected, atol=0.05)
    assert told["found"] == len(ids)
    assert told["neighbours"] == 10
    return told | {"asked": len(ids)}


def measure_serving(_: Path, users: int = 200_000) -> list[dict[str, Any]]:
    """A case a mark."""
    with tempfile.TemporaryDirectory() as name:
        root = Root(Path(name) / "root")
        generation = RandomVectors(write_users(root.corpus("window"), users))
        started = time.monotonic()
        export_dir = export_release(root, RELEASE, root.corpus("window"), generation)
        export_seconds = time.monotonic() - started
        tracking.read(root.tracking_uri)
        before, started = read_written_bytes(), time.monotonic()
        publish_release(root, STORAGES["reference"], write_run_record(RELEASE), export_dir)
        sent_bytes, register_seconds = read_written_bytes() - before, time.monotonic() - started
        manifest = read_json(export_dir / "manifest.json")
        table_bytes = sum(about["bytes"] for about in manifest["user_files"].values())
        told = ask_elsewhere(root, Path(name), users)
    export = (
        {"export_seconds": export_seconds, "register_seconds": register_seconds}
        | {"table_mb": table_bytes / 1e6, "index": manifest["index"]["kind"]}
        | {"index_mb": manifest["index"]["bytes"] / 1e6}
    )
    asking = (
        {"asked": told["asked"], "asked_seconds": told["asked_seconds"]}
        | {"neighbours_seconds": told["neighbours_seconds"]}
        | {"neighbours_anonymous_mb": told["neighbours_anonymous_bytes"] / 1e6}
    )
    show = partial(show_case, users)
    return [
        show("MB sent", sent_bytes / 1e6, MAX_SENT_MB) | export,
        show("seconds to load", told["load_seconds"], MAX_LOAD_SECONDS) | {"import_seconds": told["import_seconds"]},
        show("MB of memory", told["peak_bytes"] / 1e6, MAX_MEMORY_MB),
        show("share of the table read", told["read_bytes"] / table_bytes, MAX_SHARE_READ) | asking,
    ]


def show_case(num_users: int, what: str, measured: float, limit: float) -> dict[str, Any]:
    """What was measured for a mark; the ratio is how many times as much would still do."""
    return make_case(
        f"{num_users:,} users x {VECTOR_SIZE}: {what}", limit / measured, f"<= {limit:g} at 20 M", measured <= limit
    ) | {"measured": measured}


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_serving, small={"users": 20_000}))
