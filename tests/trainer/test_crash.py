"""Real trainers that die, are stopped, or meet another: the next goes on and ends bit for bit as the undisturbed one.

What the disk does to them is in test_crash_disk.py; `python -m tests.benchmarks.crash` kills them 30 times and more.
"""

import dataclasses
import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories, write_corpus
from tests.faults.trainer_kills import (
    budgets,
    die_at_every_step,
    kill_again_and_again,
    remember_positions,
    run,
    start,
    wait_for_commit,
)
from tests.roots.store_contents import assert_same_bits

CONFIG = TrainConfig(vector_size=16, epochs=4, threads=1, alpha=0.1, negative=5, commit_seconds=0)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A short training: 4 epochs of 8 micro-partitions, with a commit after each."""
    folder = tmp_path_factory.mktemp("short")
    write_corpus(folder / "corpus", planted_histories(num_users=400), partitions=8)
    return Job(folder / "corpus", folder / "store", CONFIG, 4 * 10**9)


@pytest.mark.slow
def test_killed_anywhere_on_changing_budgets(tmp_path: Path) -> None:
    """Five of them here; half of the users fit the smaller budgets."""
    write_corpus(tmp_path / "corpus", planted_histories(num_users=12_000), partitions=16)
    config = dataclasses.replace(CONFIG, vector_size=64, epochs=8)
    job = Job(tmp_path / "corpus", tmp_path / "undisturbed", config, 4 * 10**9)
    code, errors = run(job)
    assert code == 0, errors
    seed = time.time_ns()
    killed = dataclasses.replace(job, store_dir=tmp_path / "killed")
    tally = kill_again_and_again(killed, job.store_dir, budgets(job.store_dir), 5, np.random.default_rng(seed))
    assert tally.differences == 0, f"seed {seed}"
    assert tally.kills >= 5
    assert tally.inside_commits >= 2
    assert 1 in tally.chunks
    assert max(tally.chunks) > 4, "no budget divided the users"
    assert tally.slowest_resume_seconds < 30
    assert tally.vectors >= 12_000


def test_death_at_every_step_of_commits(job: Job, tmp_path: Path) -> None:
    """After each death the store holds, bit for bit, what the undisturbed training held at that position."""
    config = dataclasses.replace(CONFIG, epochs=3)
    beside, dying = (dataclasses.replace(job, store_dir=tmp_path / name, config=config) for name in ("beside", "dying"))
    deaths = die_at_every_step(dying, remember_positions(beside))
    assert deaths.differences == 0
    assert deaths.vectors > 400 * len(deaths.positions) / 2
    assert len(deaths.positions) > 20, "a commit has more steps than these deaths tried"
    assert deaths.positions == sorted(deaths.positions)
    assert deaths.positions[-1] == 3 * 8
    assert_same_bits(dying.store_dir, beside.store_dir)
    assert not list(dying.store_dir.glob(".*.tmp"))
    assert len(list(dying.store_dir.glob("*.safetensors"))) == 8 + 2  # users, items, trail


def seconds_of_ended_processes() -> float:
    """The processor's seconds that this process's children used, of those that have ended."""
    times = os.times()
    return times.children_user + times.children_system


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_sigterm_and_ctrl_c_commit_and_end_within_seconds(job: Job, tmp_path: Path, number: signal.Signals) -> None:
    """Seconds of the processor: by the clock it also waits for the disk and for other tests."""
    config = dataclasses.replace(CONFIG, epochs=1000, commit_seconds=60)
    stopped = dataclasses.replace(job, store_dir=tmp_path / "stopped", config=config)
    ended_before = seconds_of_ended_processes()
    with start(stopped) as process:
        assert process.stderr
        while not process.stderr.readline().startswith("epoch"):
            assert process.poll() is None
        before = sum(psutil.Process(process.pid).cpu_times()[:2])  # user and system
        process.send_signal(number)
        errors = process.communicate(timeout=60)[1]
    assert 0 < seconds_of_ended_processes() - ended_before - before < 3
    assert process.returncode == 1
    assert "after committing generation 1: run the same command to resume" in errors
    assert "Traceback" not in errors
    assert 0 < open_generation(stopped.store_dir).position < 300 * 8
    train(stopped)
    beside = dataclasses.replace(stopped, store_dir=tmp_path / "beside")
    train(beside)
    assert_same_bits(stopped.store_dir, beside.store_dir)


def test_a_second_trainer_is_refused_and_the_lock_of_a_killed_one_is_free(job: Job, tmp_path: Path) -> None:
    shared = dataclasses.replace(job, store_dir=tmp_path / "shared", config=dataclasses.replace(CONFIG, epochs=10_000))
    with start(shared) as first:
        wait_for_commit(first, shared.store_dir)
        code, errors = run(shared)
        assert code == 1
        assert f"process {first.pid} is training on the store {shared.store_dir}" in errors
        first.kill()
    assert (shared.store_dir / ".lock").read_text() == f"process {first.pid}"
    position = open_generation(shared.store_dir).position
    with start(shared) as next_one:
        while open_generation(shared.store_dir).position == position:
            assert next_one.poll() is None
            time.sleep(0.01)
        next_one.kill()


def test_a_clock_that_goes_back_changes_nothing(job: Job, tmp_path: Path) -> None:
    """The first is killed, its files are from the future, and every look at the clock finds it earlier."""
    odd = dataclasses.replace(job, store_dir=tmp_path / "odd")
    with start(odd, "clock") as process:
        wait_for_commit(process, odd.store_dir)
        process.kill()
    assert open_generation(odd.store_dir).position < 4 * 8
    tomorrow = time.time() + 86_400
    for path in odd.store_dir.iterdir():
        os.utime(path, (tomorrow, tomorrow))
    code, errors = run(odd, "clock")
    assert code == 0, errors
    beside = dataclasses.replace(job, store_dir=tmp_path / "beside")
    train(beside)
    assert_same_bits(odd.store_dir, beside.store_dir)
