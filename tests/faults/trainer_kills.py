"""Trainers as processes of their own, and the killing of them."""

import dataclasses
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from surf2vec.trainer.model.rows import Rows
from surf2vec.trainer.store.generation import has_generation, open_generation
from surf2vec.trainer.store.layout import STORE_MANIFEST
from surf2vec.trainer.system.files import read_json
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.faults.faulty_trainer import SAYS_BEGIN, SAYS_END
from tests.roots.store_contents import count_differences, read_tables

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120


def command(job: Job, fault: str = "none") -> list[str]:
    """The command line of a trainer for this job, under a fault (see `tests/faults/faulty_trainer.py`)."""
    settings = job.store_dir.with_name(f"{job.store_dir.name}.json")
    settings.write_text(json.dumps(dataclasses.asdict(job.config)))
    places = ["--corpus", str(job.corpus_dir), "--store", str(job.store_dir), "--config", str(settings)]
    return [
        *(sys.executable, "-m", "tests.faults.faulty_trainer", fault, *places),
        *("--host-memory", str(job.host_memory_bytes), "--resume"),
    ]


def start(job: Job, fault: str = "none") -> subprocess.Popen[str]:
    """A trainer for this job; who starts it also ends it."""
    return subprocess.Popen(command(job, fault), cwd=ROOT, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def run(job: Job, fault: str = "none") -> tuple[int, str]:
    """The exit code of a trainer that is left alone, and what it wrote to standard error."""
    with start(job, fault) as process:
        errors = process.communicate(timeout=PATIENCE_SECONDS)[1]
    return process.returncode, errors


def wait_for_commit(process: subprocess.Popen[str], store_dir: Path) -> None:
    """Return when the trainer has committed for the first time."""
    while not has_generation(store_dir):
        assert process.poll() is None, "the trainer ended before its first commit"
        time.sleep(0.002)


def budgets(store_dir: Path) -> list[int]:
    """Budgets by which the training that ended in the store is about a chunk a micro-partition, one chunk, and a few."""
    manifest = open_generation(store_dir).manifest
    plan = manifest["plan"]
    assert plan["num_chunks"] == 1
    without_users = plan["peak_bytes"] - plan["slot_bytes"]
    few, many = 0.9, max(0.3, 4 / manifest["partitions"])  # three slots of one micro-partition, and some room
    return [int(without_users + many * plan["slot_bytes"]), 4 * 10**9, int(without_users + few * plan["slot_bytes"])]


@dataclass
class Life:
    """A trainer that was killed: seconds from its start to its first commit, and whether it died inside one."""

    first_commit_seconds: float | None
    was_committing: bool
    has_ended: bool


def live_and_die(job: Job, rng: np.random.Generator, seconds: float, *, inside_commit: bool) -> Life:
    """Start a trainer and send it SIGKILL: up to so many seconds later, or while it commits."""
    lines: list[tuple[float, str]] = []
    has_begun = threading.Event()
    commits_to_see = rng.integers(2, 6)

    def listen() -> None:
        assert process.stderr
        for line in process.stderr:
            lines.append((time.monotonic(), line.strip()))
            if [said for _, said in lines].count(SAYS_BEGIN) == commits_to_see:
                has_begun.set()
        has_begun.set()

    started = time.monotonic()
    with start(job, "told") as process:
        listener = threading.Thread(target=listen)
        listener.start()
        if inside_commit:
            assert has_begun.wait(PATIENCE_SECONDS)
            time.sleep(rng.uniform(0, 0.01))
        else:
            time.sleep(rng.uniform(0, seconds))
        process.send_signal(signal.SIGKILL)
        listener.join()
    assert process.returncode in (0, -signal.SIGKILL), [line for _, line in lines]
    commits = [(at, line) for at, line in lines if line in (SAYS_BEGIN, SAYS_END)]
    first_end = next((at for at, line in commits if line == SAYS_END), None)
    return Life(
        first_commit_seconds=None if first_end is None else first_end - started,
        was_committing=bool(commits) and commits[-1][1] == SAYS_BEGIN,
        has_ended=process.returncode == 0,
    )


@dataclass
class Tally:
    """What killing came to."""

    kills: int = 0
    inside_commits: int = 0
    trainings: int = 0
    vectors: int = 0
    differences: int = 0
    slowest_resume_seconds: float = 0.0
    chunks: set[int] = field(default_factory=set)


def kill_again_and_again(
    job: Job, undisturbed: Path, host_memory_bytes: Sequence[int], num_kills: int, rng: np.random.Generator
) -> Tally:
    """Kill trainers of this job, a third of them inside commits, each with another budget; compare what they end with.

    A training that came to its end between two kills is compared, and the next begun.
    """
    tally = Tally()
    one = dataclasses.replace(job, store_dir=job.store_dir / "0")
    job.store_dir.mkdir(parents=True)
    while tally.kills < num_kills or tally.inside_commits * 3 < num_kills:
        turn = tally.kills + tally.kills // 3  # so that those that are aimed, every third, have each of the budgets
        one = dataclasses.replace(one, host_memory_bytes=host_memory_bytes[turn % len(host_memory_bytes)])
        is_aimed = tally.inside_commits * 3 <= tally.kills
        life = live_and_die(one, rng, 2 * (tally.slowest_resume_seconds or 1), inside_commit=is_aimed)
        tally.slowest_resume_seconds = max(tally.slowest_resume_seconds, life.first_commit_seconds or 0)
        if has_generation(one.store_dir):
            tally.chunks.add(count_chunks(one.store_dir))
        if life.has_ended:
            compare_to_the_end(one, undisturbed, tally)
            one = dataclasses.replace(job, store_dir=job.store_dir / str(tally.trainings))
        else:
            tally.kills += 1
            tally.inside_commits += life.was_committing
    compare_to_the_end(dataclasses.replace(one, host_memory_bytes=job.host_memory_bytes), undisturbed, tally)
    return tally


def count_chunks(store_dir: Path) -> int:
    """Chunks in the plan of the trainer that committed last."""
    return open_generation(store_dir).manifest["plan"]["num_chunks"]


def compare_to_the_end(job: Job, undisturbed: Path, tally: Tally) -> None:
    """Let the training come to its end, and count what differs from the undisturbed one."""
    code, errors = run(job)
    assert code == 0, errors
    num_vectors, num_different = count_differences(read_tables(job.store_dir), read_tables(undisturbed))
    tally.chunks.add(count_chunks(job.store_dir))
    tally.trainings += 1
    tally.vectors += num_vectors
    tally.differences += num_different


def remember_positions(job: Job) -> dict[int, list[Rows]]:
    """Train undisturbed, with a commit after each micro-partition; the tables by the number of micro-partitions done."""
    assert job.config.commit_seconds == 0
    tables: dict[int, list[Rows]] = {}

    def remember(name: str, values: dict[str, Any]) -> None:
        if name == "progress" and (before := values["done"] - 1):
            while not has_generation(job.store_dir) or read_json(job.store_dir / STORE_MANIFEST)["position"] != before:
                time.sleep(0.001)  # it is written while training goes on, and the files of the one before are removed
            tables[before] = read_tables(job.store_dir)

    train(job, remember)
    return tables | {open_generation(job.store_dir).position: read_tables(job.store_dir)}


@dataclass
class Deaths:
    """What dying at every step came to: the position on disk after each death, and what differed there."""

    positions: list[int] = field(default_factory=list)
    vectors: int = 0
    differences: int = 0


def die_at_every_step(job: Job, expected: dict[int, list[Rows]]) -> Deaths:
    """Trainers of one training, of which the nth dies at the nth step that it does on the disk, until one comes to the end.

    After each death the store is compared with what the undisturbed training held at that position.
    """
    deaths = Deaths()
    with subprocess.Popen(
        command(job, "steps"),
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as steps:
        assert steps.stdin
        assert steps.stdout
        code = None
        while code != 0:
            print(len(deaths.positions) + 1, file=steps.stdin, flush=True)
            code = int(steps.stdout.readline())
            assert code in (0, 9)
            position = open_generation(job.store_dir).position if has_generation(job.store_dir) else 0
            deaths.positions.append(position)
            if position:
                num_vectors, num_different = count_differences(read_tables(job.store_dir), expected[position])
                deaths.vectors += num_vectors
                deaths.differences += num_different
        steps.stdin.close()
    return deaths
