"""Nearest users by the registered model in one process, beside faiss alone with the same index and the same vectors."""

import time
from pathlib import Path
from typing import Any

import faiss
import mlflow.pyfunc
import numpy as np
import pandas as pd

from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.mlflow_runs import use_uri
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.release.release_reader import unit_rows
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.system.files import read_json
from tests.benchmarks.harness import make_case
from tests.benchmarks.serving import RandomVectors, name_user, write_users
from tests.roots.releases import STORAGES, export_release, write_run_record

CALLS, INDEX_SECONDS, INDEX_MARK = (1, 1000), 10.0, 0.8


def measure_index(folder: Path, users: int) -> list[dict[str, Any]]:
    """A case for each number of users a call."""
    root = Root(folder / "index")
    export = export_release(root, "r1", root.corpus("window"), RandomVectors(write_users(root.corpus("window"), users)))  # type: ignore[arg-type]
    tracking.read(root.tracking_uri)
    publish_release(root, STORAGES["copy"], write_run_record("r1"), export, None)
    with use_uri(root.tracking_uri):
        model = mlflow.pyfunc.load_model("models:/surf2vec-users@champion")
    manifest = read_json(export / "manifest.json")
    index = faiss.read_index(str(export / manifest["index"]["file"]), faiss.IO_FLAG_MMAP_IFC)
    if "nprobe" in manifest["index"]:
        index.nprobe = manifest["index"]["nprobe"]
    asked = [name_user(number) for number in np.random.default_rng(3).choice(users, CALLS[-1], replace=False).tolist()]
    vectors = unit_rows(np.array(model.predict(pd.DataFrame({"user_id": asked}))["vector"].tolist(), np.float32))
    cases = []
    for at_once in CALLS:
        groups = [slice(start, start + at_once) for start in range(0, len(asked), at_once)]
        frames = [pd.DataFrame({"user_id": asked[group]}) for group in groups]
        ours = rate([lambda frame=frame: model.predict(frame, params={"k": 10}) for frame in frames], at_once)
        alone = rate([lambda group=group: index.search(vectors[group], 11) for group in groups], at_once)
        cases.append(
            make_case(
                f"{at_once:,} users a call, {users:,} users",
                ours / alone,
                f">= {INDEX_MARK} x faiss",
                ours / alone >= INDEX_MARK,
            )
            | {"queries_a_second": ours, "faiss_alone": alone, "kind": manifest["index"]["kind"]}
        )
    return cases


def rate(calls: list[Any], at_once: int) -> float:
    """Queries a second, after each call was made once: files are open and ids in memory, as in a service that runs."""
    for call in calls:
        call()
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < INDEX_SECONDS:
        calls[done % len(calls)]()
        done += 1
    return done * at_once / (time.perf_counter() - started)
