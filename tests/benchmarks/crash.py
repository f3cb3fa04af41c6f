"""kill -9, many times, on a real log: what is lost, how long until a trainer goes on, and what commits cost.

Killed: trainers of wikispeedia, as shipped but on one thread and with a commit every 0.2 seconds, each life with another
memory budget (one chunk, a few, many), get SIGKILL at a random moment, a third of them inside a commit. Steps: one
trainer after the other dies before the nth thing that it does to the disk, for every n. What they leave and end with is
compared, bit for bit, with an undisturbed training. A resume is timed from the process's start to its first own commit.
Commits: 200,000 users of about 25 tokens and 20,000 items, as shipped, with a commit every minute; the share of all
seconds of training that passes in commits, which are written behind it: `waited` is the part that it waits for.

    python -m tests.benchmarks.crash [--kills 30]
"""

import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.training.job import Job
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import MEMORY_BYTES, THREADS, find_log, make_corpus
from tests.data.corpora import planted_histories, write_corpus
from tests.faults.faulty_trainer import SAYS_BEGIN, SAYS_END
from tests.faults.trainer_kills import budgets, die_at_every_step, kill_again_and_again, remember_positions, run, start

LOG = "wikispeedia_unfinished"
RESUME_SECONDS = 30
COMMIT_SHARE, COMMIT_USERS = 0.03, 200_000


def measure_crash(data: Path, kills: int = 30) -> list[dict[str, Any]]:
    """A case each for kills, deaths at steps, and commits."""
    with tempfile.TemporaryDirectory() as folder:
        corpus_dir = make_corpus(find_log(data, LOG, Path(folder)), Path(folder) / "root").folder
        config = dataclasses.replace(TrainConfig(), threads=1, commit_seconds=0.2)
        job = Job(corpus_dir, Path(folder) / "undisturbed", config, MEMORY_BYTES)
        return [kill(job, kills), die_at_steps(job), cost_commits(Path(folder))]


def kill(job: Job, num_kills: int) -> dict[str, Any]:
    """kill -9 at random moments."""
    code, errors = run(job)
    assert code == 0, errors
    seed = time.time_ns()
    killed = dataclasses.replace(job, store_dir=job.store_dir.with_name("killed"))
    tally = kill_again_and_again(killed, job.store_dir, budgets(job.store_dir), num_kills, np.random.default_rng(seed))
    return (
        make_case(
            "kill -9",
            RESUME_SECONDS / tally.slowest_resume_seconds,
            f"0 differences, resumes <= {RESUME_SECONDS} s",
            tally.differences == 0 and tally.slowest_resume_seconds <= RESUME_SECONDS,
        )
        | {"faults": tally.kills, "inside commits": tally.inside_commits, "trainings": tally.trainings}
        | {"chunks": ", ".join(map(str, sorted(tally.chunks))), "vectors compared": tally.vectors}
        | {"differences": tally.differences, "slowest resume, seconds": tally.slowest_resume_seconds}
        | {"seed": seed}
    )


def die_at_steps(job: Job) -> dict[str, Any]:
    """An exit at every step."""
    config = dataclasses.replace(job.config, epochs=3, commit_seconds=0)
    beside, dying = (
        dataclasses.replace(job, store_dir=job.store_dir.with_name(name), config=config) for name in ("beside", "dying")
    )
    deaths = die_at_every_step(dying, remember_positions(beside))
    return (
        make_case(
            "exit at every step", 1.0 if deaths.differences == 0 else 0.0, "0 differences", deaths.differences == 0
        )
        | {"faults": len(deaths.positions) - 1, "vectors compared": deaths.vectors}
        | {"differences": deaths.differences}
    )


def cost_commits(folder: Path) -> dict[str, Any]:
    """The share of commits in the seconds of a training of some minutes."""
    histories = planted_histories(num_users=COMMIT_USERS, num_items=20_000, topics=100, length=49)
    write_corpus(folder / "planted", histories, partitions=8)
    config = dataclasses.replace(TrainConfig(), epochs=24, threads=THREADS)
    job = Job(folder / "planted", folder / "long", config, MEMORY_BYTES)
    begun_at, commit_seconds = 0.0, []
    with start(job, "told") as process:
        assert process.stderr
        for line in process.stderr:
            if line.strip() == SAYS_BEGIN:
                begun_at = time.monotonic()
            elif line.strip() == SAYS_END:
                commit_seconds.append(time.monotonic() - begun_at)
    assert process.returncode == 0
    manifest = open_generation(job.store_dir).manifest
    share = sum(commit_seconds) / (sum(commit_seconds) + manifest["train_seconds"])
    return (
        make_case("commits", COMMIT_SHARE / share, f"<= {COMMIT_SHARE:.0%} of training", share <= COMMIT_SHARE)
        | {"share": share, "waited": manifest["commit_stall_seconds"] / manifest["train_seconds"]}
        | {"commits": len(commit_seconds), "seconds a commit": sum(commit_seconds) / len(commit_seconds)}
        | {"bytes a commit": manifest["bytes_written"] // manifest["num_commits"]}
        | {"training, seconds": manifest["train_seconds"]}
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_crash, small={"kills": 1, "COMMIT_USERS": 2_000}))
