"""Readers of `mlflow models serve` while releases come, go back and are collected.

Releases of the same users, each with vectors of its own, are registered one after another by another process, which
then rolls back, promotes again and collects (`surf2vec rollback`, `promote --override`, `gc`). Meanwhile `--readers` readers ask
a served process, in connections of their own, for vectors, nearest users and next items of five users and a stranger. Each
answer is compared with the files of all releases: it must be what exactly one of them gives, and a process must give one and
the same release as long as it lives, that which served when it was started. Once `gc` has removed that release, an answer may
be refused, by a message that names the release; the service is then started anew, and so it is every `--restart` seconds.

    python -m tests.benchmarks.load [--seconds 300] [--readers 8] [--restart 100]
"""

import http.client
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from surf2vec.tasks.registry.promotion import pin_release
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.release.release_reader import unit_rows
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.store.generation import open_generation
from tests.benchmarks.harness import make_case, run_benchmark, run_surf2vec
from tests.roots.ingest import take_in, write_log
from tests.roots.nights import PASSED, commit_generation, make_night
from tests.roots.releases import STORAGES, export_release, make_corpus, read_items, read_users
from tests.tasks.registry.test_serving_elsewhere import Elsewhere

NUM_USERS, NUM_ASKED, K, STRANGER = 2000, 5, 3, "nobody"
PUBLISH = STORAGES["copy"]
UP_SECONDS = 600.0
NEAR, ITEMS = 2e-3, 1e-4
"""How far a cosine may be off, as the index has 16 bits a number, and a dot product, which is summed in another order."""


class Release:
    """What a release gives, by its files and brute force."""

    def __init__(self, export: Path) -> None:
        users = read_users(export)
        self.names, self.vectors = {name: row for row, name in enumerate(users)}, np.stack(list(users.values()))
        urls, items = read_items(export)
        self.urls, self.items, self.units = {url: row for row, url in enumerate(urls)}, items, unit_rows(self.vectors)

    def gives(self, row: dict[str, Any]) -> bool:
        """Whether this is its answer for a user: the vector bit for bit, the nearest users and the best items."""
        if row["user_id"] == STRANGER:
            return row["vector"] is None
        mine = self.names[row["user_id"]]
        if not np.array_equal(self.vectors[mine], np.array(row["vector"], np.float32)):
            return False
        cosines, scores = self.units @ self.units[mine], self.items @ self.vectors[mine]
        near = _is_best(row["neighbours"], row["scores"], self.names, np.delete(cosines, mine), cosines, NEAR)
        return near and _is_best(row["items"], row["item_scores"], self.urls, scores, scores, ITEMS)


def _is_best(names: list[str], told: list[float], rows: dict[str, int], others: Any, scores: Any, off: float) -> bool:
    """Whether these are the K best of `others`, each with its own score, which may be `off`."""
    best, own = np.sort(others)[::-1][:K], scores[[rows[name] for name in names]]
    return len(set(names)) == K and bool(np.allclose(own, told, atol=off) and np.allclose(best, told, atol=off))


@dataclass
class Readings:
    """What all readers of one served process got."""

    releases: dict[str, Release]
    seconds: list[float] = field(default_factory=list)
    given: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def read(self, address: str, seed: int) -> None:
        """Ask until `ended`; a refusal ends the others, too."""
        rng, users = np.random.default_rng(seed), list(next(iter(self.releases.values())).names)
        with closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)) as connection:
            while not self.ended.is_set():
                drawn = rng.choice(len(users), NUM_ASKED, replace=False).tolist()
                ids = [*(users[number] for number in drawn), STRANGER]
                asked = {"dataframe_split": {"columns": ["user_id"], "data": [[one] for one in ids]}}
                body = json.dumps(asked | {"params": {"k": K, "items": K}})
                started = time.perf_counter()
                try:
                    connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
                    response = connection.getresponse()
                    text = response.read().decode()
                except (OSError, http.client.HTTPException) as error:
                    self.faults.append(f"{type(error).__name__}: {error}")
                    break
                if response.status != 200:
                    self.refused.append(text)
                    self.ended.set()
                    break
                self.seconds.append(time.perf_counter() - started)
                self.judge(ids, json.loads(text)["predictions"])

    def judge(self, ids: list[str], rows: list[dict[str, Any]]) -> None:
        """Count the answer for the one release that gives all of it."""
        found = [name for name, one in self.releases.items() if all(map(one.gives, rows))]
        if [row["user_id"] for row in rows] != ids or len(found) != 1:
            self.faults.append(f"of the releases {found}: {rows}"[:600])
        else:
            self.given[found[0]] += 1


def make_exports(root: Root, num: int) -> dict[str, Release]:
    """The exports of r1, r2, ...: generations of the same users, drawn anew."""
    for number in range(1, num + 1):
        corpus = make_corpus(root, NUM_USERS, 4, f"window-r{number}")
        commit_generation(root, corpus, seed=number)
        export_release(root, f"r{number}", corpus, open_generation(root.store))
        pin_release(root, f"r{number}")
    return {f"r{number}": Release(root.export(f"r{number}")) for number in range(1, num + 1)}


def operate(path: Path, num: int, out: Path) -> None:
    """Register a release, roll back, promote it again, collect; on and on. Tells each step, and what serves then, in `out`."""
    root, at = Root(path), ("--root", str(path))
    for number in range(2, num + 1):
        steps = {
            "register": lambda number=number: register(root, f"r{number}"),
            "rollback": lambda: run_surf2vec("rollback", *at),
            "promote": lambda: run_surf2vec("promote", *at, "--override", "load"),
            "gc": lambda: run_surf2vec("gc", *at),
        }
        for name, step in steps.items():
            told = step()
            with open(out, "a", encoding="utf-8") as file:
                gone = [one["place"] for one in told.get("removed", [])]
                serves = told.get("release", f"r{number}")
                file.write(json.dumps({"step": name, "release": serves, "removed": gone}) + "\n")


def register(root: Root, release: str) -> dict[str, Any]:
    """Register a release that has passed the gate."""
    make_night(root, release, PASSED, PUBLISH)
    return {"release": release}


def serve_once(
    root: Root, elsewhere: Elsewhere, releases: dict[str, Release], readers: int, seconds: float, log: Path
) -> dict[str, Any]:
    """Start a service, read from it, end it; what the readers got. log: the operator's, to know what served meanwhile."""
    readings, num_before = Readings(releases), len(read_steps(log))
    before = champion(root)  # after the steps were counted: one that ends in between counts for both
    with elsewhere.serving(root, UP_SECONDS) as address:
        allowed = {before, champion(root), *(step["release"] for step in read_steps(log)[num_before:])}
        threads = [threading.Thread(target=readings.read, args=(address, seed)) for seed in range(readers)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        readings.ended.wait(seconds)
        readings.ended.set()
        for thread in threads:
            thread.join()
    faults = list(readings.faults)
    if len(readings.given) > 1 or not readings.given.keys() <= allowed:
        faults.append(f"served {dict(readings.given)}, started as {allowed} served")
    for text in readings.refused:
        is_gone = any(not root.export(one).exists() and f"release {one} " in text for one in allowed)
        faults += [] if is_gone else [f"refused though the release is there: {text[:600]}"]
    return {"seconds": readings.seconds, "faults": faults, "refused": len(readings.refused)} | {
        "given": dict(readings.given),
        "read_seconds": time.monotonic() - started,
    }


def count_steps(log: Path) -> Counter[str]:
    """What the operator has done so far; `collected`: exports that gc removed."""
    done = read_steps(log)
    collected = sum("/export/" in place for one in done for place in one["removed"])
    return Counter(one["step"] for one in done) + Counter(collected=collected)


def read_steps(log: Path) -> list[dict[str, Any]]:
    """What the operator has done so far."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def champion(root: Root) -> str:
    version = read_registry(root, PUBLISH).champion
    assert version
    return str(version.tags["release"])


def measure_serving(folder: Path, seconds: int, readers: int, restart: int) -> dict[str, Any]:
    """The case of readers during promotions, rollbacks and collections."""
    root, log, elsewhere = Root(folder / "root"), folder / "operations.jsonl", folder / "elsewhere"
    # What makes it a root.
    take_in(root.path, write_log(folder / "log.csv", "user-1,https://a.org/1,2026-01-01T00:00:00Z"))
    num = 4 + seconds // 15
    releases = make_exports(root, num)
    make_night(root, "r1", PASSED, PUBLISH)
    elsewhere.mkdir()
    (elsewhere / ".venv").symlink_to(sys.prefix)
    operator = multiprocessing.get_context("spawn").Process(target=operate, args=(root.path, num, log))
    operator.start()
    services: list[dict[str, Any]] = []
    try:
        while (left := seconds - sum(one["read_seconds"] for one in services)) > 0 or "gc" not in count_steps(log):
            services.append(serve_once(root, Elsewhere(elsewhere), releases, readers, min(max(left, 1), restart), log))
            if not operator.is_alive() and operator.exitcode:
                raise SystemExit(f"the operator ended with {operator.exitcode}")
    finally:
        operator.terminate()
        operator.join()
    took = np.array([second for one in services for second in one["seconds"]]) * 1000
    faults = [fault for one in services for fault in one["faults"]]
    for fault in faults[:5]:
        print(fault, file=sys.stderr)
    steps = count_steps(log)
    return (
        make_case(
            f"{readers} readers for {seconds} s",
            1.0 if not faults else 0.0,
            "0 wrong or mixed answers",
            not faults and len(took) > 0 and {"register", "rollback", "promote", "gc"} <= steps.keys(),
        )
        | {"answers": len(took), "faults": len(faults)}
        | {"refused": sum(one["refused"] for one in services), "p50_ms": float(np.percentile(took, 50))}
        | {"p99_ms": float(np.percentile(took, 99)), "services": len(services)}
        | {"given": [one["given"] for one in services], "steps": dict(steps)}
    )


def measure_load(_: Path, seconds: int = 300, readers: int = 8, restart: int = 100) -> list[dict[str, Any]]:
    """The one case."""
    with tempfile.TemporaryDirectory() as name:
        return [measure_serving(Path(name), seconds, readers, restart)]


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_load, small={"seconds": 5, "readers": 2}))
