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

import numpy as np

from tests.faulty_trainer import SAYS_BEGIN, SAYS_END
from tests.stores import count_differences, read_tables
from trainer.loop import Job
from trainer.store import has_generation, open_generation

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 120


def command(job: Job, fault: str = "none") -> list[str]:
    """The command line of a trainer for this job, under a fault (see `tests/faulty_trainer.py`)."""
    settings = job.store_dir.with_name(f"{job.store_dir.name}.json")
    settings.write_text(json.dumps(dataclasses.asdict(job.config)))
    places = ["--corpus", str(job.corpus_dir), "--store", str(job.store_dir), "--config", str(settings)]
    return [
        *(sys.executable, "-m", "tests.faulty_trainer", fault, *places),
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
    """Budgets by which the training that ended in the store is one chunk, several, and as many as can be."""
    manifest = open_generation(store_dir).manifest
    plan, num_partitions = manifest["plan"], manifest["partitions"]
    assert plan["num_chunks"] == 1
    largest_bytes = plan["slot_bytes"] / num_partitions * 1.2  # micro-partitions are not all of one size
    without_users = plan["peak_bytes"] - plan["slot_bytes"]
    return [4 * 10**9, int(without_users + 7 * largest_bytes), int(without_users + 4 * largest_bytes)]


@dataclass
class Life:
    """A trainer that was killed: seconds from its start to its first commit, and whether it died inside one."""

    first_commit_seconds: float | None
    was_committing: bool
    has_ended: bool


def live_and_die(job: Job, rng: np.random.Generator, *, inside_commit: bool) -> Life:
    """Start a trainer and send it SIGKILL: up to two seconds later, or while it commits."""
    lines: list[tuple[float, str]] = []
    has_begun = threading.Event()
    commits_to_see = rng.integers(1, 6)

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
            time.sleep(rng.uniform(0, 2))
        process.send_signal(signal.SIGKILL)
        listener.join()
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
        budget = host_memory_bytes[tally.kills % len(host_memory_bytes)]
        is_aimed = tally.inside_commits * 3 <= tally.kills
        life = live_and_die(dataclasses.replace(one, host_memory_bytes=budget), rng, inside_commit=is_aimed)
        tally.slowest_resume_seconds = max(tally.slowest_resume_seconds, life.first_commit_seconds or 0)
        if has_generation(one.store_dir):
            tally.chunks.add(open_generation(one.store_dir).manifest["plan"]["num_chunks"])
        if life.has_ended:
            compare_to_the_end(one, undisturbed, tally)
            one = dataclasses.replace(job, store_dir=job.store_dir / str(tally.trainings))
        else:
            tally.kills += 1
            tally.inside_commits += life.was_committing
    compare_to_the_end(one, undisturbed, tally)
    return tally


def compare_to_the_end(job: Job, undisturbed: Path, tally: Tally) -> None:
    """Let the training come to its end, and count what differs from the undisturbed one."""
    code, errors = run(job)
    assert code == 0, errors
    num_vectors, num_different = count_differences(read_tables(job.store_dir), read_tables(undisturbed))
    tally.trainings += 1
    tally.vectors += num_vectors
    tally.differences += num_different
