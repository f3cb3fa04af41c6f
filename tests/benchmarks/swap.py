"""Out of core: an epoch with a user table of at least four times the budget beside the same epoch in memory.

Made-up users with 25 Zipf tokens each, 100,000 items, 128 dimensions, 8 negatives, two threads. The order of drawn tokens says
nothing, so that there is no trail and all numbers are the interest: a user has the most bytes for the least work. Each side is
`python -m surf2vec.trainer` in a process of its own, caches dropped before, in turn, five times (--repeats) six
epochs; an epoch's
seconds are those of its fastest after the first (which has nothing to read), what waited for commits included. The side that
swaps has BUDGET_BYTES by --host-memory, and runs in a memory cgroup where one can be made, so that the page cache cannot hide
the swapping; the limit is the budget and LEEWAY_BYTES, for the kernel counts code and cache too.

    swap    ratio of the epochs, the share of time that training waited for the disk, the process's peak of anonymous and
            shared memory, and what it read from the disk in all (by getrusage)
    swapping, bfloat16
            the same budget with users as bfloat16 (train.dtype), which are half the bytes, beside float32 in memory; no mark
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.trainer.draws import mix_array
from surf2vec.trainer.system.files import describe_file, write_json
from tests.benchmarks.cgroups import drop_caches, memory_group
from tests.benchmarks.harness import make_case, run_benchmark
from tests.data.corpora import RULES

NUM_USERS, NUM_ITEMS, TOKENS_A_USER, PARTITIONS = 4_000_000, 100_000, 25, 128
BUDGET_BYTES = 512 * 10**6
LEEWAY_BYTES = 128 * 10**6
PLENTY_BYTES = 16 * 10**9
FASTEST = {"vector_size": 128, "negative": 8, "threads": 2}
EPOCHS, REPEATS = 6, 5  # so many epochs that the curve has a point at each one's end
RATIO_MARK, STALL_MARK = 1.05, 0.03
ROW_BYTES = 4 * 128 + 4
DROPS_CACHES = True
HALVES = "swapping, bfloat16"


def measure_swap(_: Path, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """The ratio of epochs, with users as float32 and as bfloat16."""
    with tempfile.TemporaryDirectory(prefix="swap.") as folder:
        corpus_dir = write_corpus(Path(folder) / "corpus", NUM_USERS)
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in ("in memory", "swapping", HALVES)}
        store = Path(folder) / "store"
        for _ in range(repeats):
            runs["in memory"].append(run_alone(corpus_dir, store, PLENTY_BYTES, EPOCHS))
            runs["swapping"].append(run_alone(corpus_dir, store, BUDGET_BYTES, EPOCHS))
            halved = FASTEST | {"dtype": "bfloat16"}
            runs[HALVES].append(run_alone(corpus_dir, store, BUDGET_BYTES, EPOCHS, halved))
        best = {side: min(told, key=lambda one: one["epoch_seconds"]) for side, told in runs.items()}
    return [show_swap(best, runs["swapping"]), show_halves(best)]


def show_swap(best: dict[str, dict[str, Any]], swapping: list[dict[str, Any]]) -> dict[str, Any]:
    """The case of the mark, from the best run of each side and all that swapped."""
    swap, memory = best["swapping"], best["in memory"]
    ratio = swap["epoch_seconds"] / memory["epoch_seconds"]
    peak = max(one["peak_bytes"] for one in swapping)
    return (
        make_case(
            "swap",
            ratio,
            f"<= {RATIO_MARK}, stall <= {STALL_MARK}, peak <= budget",
            ratio <= RATIO_MARK and swap["stall"] <= STALL_MARK and peak <= BUDGET_BYTES,
        )
        | {"budget_bytes": BUDGET_BYTES, "user_table_bytes": NUM_USERS * ROW_BYTES}
        | {"in memory": memory["epoch_seconds"]}
        | {"tokens_per_second": NUM_USERS * TOKENS_A_USER / swap["epoch_seconds"]}
        | swap
        | {"peak_bytes": peak}
    )


def show_halves(best: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The best epoch with users as bfloat16, beside the one in memory with float32."""
    halves, in_memory = best[HALVES], best["in memory"]["epoch_seconds"]
    ratio = halves["epoch_seconds"] / in_memory
    return {"case": HALVES, "ratio": ratio, "mark": "none", "passed": True, "in memory": in_memory} | halves


def write_corpus(folder: Path, num_users: int, num_items: int = NUM_ITEMS, partitions: int = PARTITIONS) -> Path:
    """A corpus of users who all have TOKENS_A_USER tokens of items that follow Zipf's law, in no order; nobody is held out."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    bounds = np.cumsum(1 / np.arange(1, num_items + 1))
    users = [num_users // partitions] * partitions
    for partition, num in enumerate(users):
        name = f"p{partition:05d}"
        hashes = mix_array(np.arange(num, dtype=np.uint64) + np.uint64(partition * num))
        pq.write_table(pa.table({"user_id": hashes.astype("U20"), "hash": hashes}), folder / f"{name}.users.parquet")
        tokens = np.searchsorted(bounds, rng.random(num * TOKENS_A_USER) * bounds[-1]).astype(np.int32)
        np.save(folder / f"{name}.offsets.npy", np.arange(num + 1, dtype=np.int64) * TOKENS_A_USER)
        np.save(folder / f"{name}.tokens.npy", tokens)
        np.save(folder / f"{name}.held_out.npy", np.full(num, -1, dtype=np.int32))
    manifest = (
        {"format_version": 1, "window_id": folder.name, "partitions": partitions}
        | {"num_users": sum(users), "num_items": num_items, "num_tokens": sum(users) * TOKENS_A_USER}
        | {"users": users, "tokens": [num * TOKENS_A_USER for num in users], "held_out_key_max": -1}
        | {"num_held_out": 0, "since": None, "until": None, "undated": False, "has_order": False}
        | {"funnel": [], "made_from": {"rules": RULES}, "files": {p.name: describe_file(p) for p in folder.iterdir()}}
    )
    write_json(folder / "manifest.json", manifest)
    return folder


def run_alone(
    corpus_dir: Path, store_dir: Path, budget_bytes: int, epochs: int, settings: Mapping[str, Any] = FASTEST
) -> dict[str, Any]:
    """`python -m surf2vec.trainer` into an empty store: what it tells of itself, and the bytes that it had from the disk."""
    shutil.rmtree(store_dir, ignore_errors=True)
    if DROPS_CACHES:
        drop_caches()
    config = corpus_dir.with_name("config.json")
    config.write_text(json.dumps({**settings, "epochs": epochs}))
    command = [sys.executable, "-m", "surf2vec.trainer", "--corpus", str(corpus_dir), "--store", str(store_dir)]
    command += ["--config", str(config), "--host-memory", str(budget_bytes)]
    limit_bytes = None if budget_bytes == PLENTY_BYTES else budget_bytes + LEEWAY_BYTES
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    with memory_group(limit_bytes) as group:
        enter = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group else None
        done = subprocess.run(command, capture_output=True, preexec_fn=enter, check=True)
    result = json.loads(done.stdout)
    ends = {point["epoch"]: point["seconds"] for point in result["curve"]}
    waited = 1 + result["commit_stall"]
    return (
        {"epoch_seconds": min((ends[n] - ends[n - 1] for n in range(2, epochs + 1)), default=0.0) * waited}
        | {"read_bytes": 512 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before)}
        | {"seconds": result["train_seconds"] * waited, "predicted_seconds": result["plan"]["seconds"]}
        | {"chunks": result["plan"]["num_chunks"], "blocks": result["plan"]["num_blocks"]}
        | {"cgroup": f"{limit_bytes:,} bytes" if group else "none"}
        | {name: result[name] for name in ("stall", "commit_stall", "peak_bytes")}
    )


if __name__ == "__main__":
    sys.exit(
        run_benchmark(measure_swap, small={"repeats": 1, "NUM_USERS": 20_000, "PARTITIONS": 8, "DROPS_CACHES": False})
    )
