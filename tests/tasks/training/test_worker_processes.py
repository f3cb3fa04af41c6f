"""A training by two real workers of this machine: what it answers, what listens, what it raises, and how it stops."""

import dataclasses
import os
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from surf2vec.tasks.config import ResourcesConfig
from surf2vec.tasks.training import worker_processes
from surf2vec.tasks.training.worker_processes import (
    STOP_SECONDS,
    Device,
    Reported,
    WorkerProcesses,
    count_workers,
    explain_failure,
    train_together,
)
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, DamageError, ResourceError
from surf2vec.trainer.store.generation import has_generation, open_generation
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.training.job import Job, LearningSchedule, identity
from surf2vec.trainer.training.loop import StoppedError, train
from surf2vec.trainer.workers.group import WorkerLostError
from tests.data.corpora import planted_histories, write_corpus

CONFIG = TrainConfig(vector_size=8, epochs=30, negative=2, threads=1)
CPU = Device("cpu")


def make_job(folder: Path, partitions: int = 4, **values: Any) -> Job:
    write_corpus(folder / "corpus", planted_histories(60), partitions)
    return dataclasses.replace(Job(folder / "corpus", folder / "store", CONFIG, 4 * 10**9), **values)


def descendants() -> set[psutil.Process]:
    """The processes that this one started, and theirs; other tests may have left some."""
    return set(psutil.Process().children(recursive=True))


def listening() -> set[str]:
    """The addresses on which this process's descendants listen."""
    connections = []
    for child in descendants():
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            connections += child.net_connections("all")
    return {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}


@pytest.mark.slow
def test_two_workers_train_what_one_would(tmp_path: Path) -> None:
    job = make_job(tmp_path, start="after release r1, decay 0.9", schedule=LearningSchedule(2, 0.05, 0.005))
    crew, events, addresses, modes = WorkerProcesses(2, CPU, tmp_path / "workers"), [], set(), set()

    def on_event(name: str, values: dict[str, Any]) -> None:
        events.append((name, values))
        addresses.update(listening())
        modes.add((crew.folder / "job.json").stat().st_mode & 0o777)

    told = train_together(job, crew, on_event, threading.Event())
    assert [load["tokens"] > 0 for load in told["workers"]] == [True, True]
    assert sum(load["tokens"] for load in told["workers"]) == told["tokens"]
    assert told["plan"]["budget_bytes"] < 2 * 10**9, "the budget is for both"
    manifest = open_generation(job.store_dir).manifest
    assert manifest["stage"] == "trained"
    alone = train(dataclasses.replace(job, store_dir=tmp_path / "alone"))
    assert told["tokens"] == alone["tokens"]
    assert set(alone) <= set(told)
    assert manifest["identity"] == identity(open_corpus(job.corpus_dir), job.config, job.start)
    assert {"log", "progress", "train"} == {name for name, _ in events}
    done = [values["done"] for name, values in events if name == "progress"]
    assert done == sorted(done)
    assert done[-1] == manifest["num_positions"]
    assert addresses == {"127.0.0.1"}
    assert modes == {0o600}
    assert [path.name for path in crew.folder.iterdir()] == ["torchrun.log"]


@pytest.mark.slow
def test_what_a_worker_refuses_is_raised_here_and_not_tried_again(tmp_path: Path) -> None:
    job, crew, messages = make_job(tmp_path, partitions=1), WorkerProcesses(2, CPU, tmp_path / "workers"), []
    before = descendants()
    with pytest.raises(ConfigError, match=r"^2 workers cannot share 1 micro-partitions: start fewer workers"):
        train_together(job, crew, lambda name, values: messages.append(values), threading.Event())
    assert "Traceback" not in str(messages)
    assert crew.log.read_text().count("error: 2 workers cannot share") <= 2, (
        "what is wrong does not go by starting again"
    )
    assert descendants() <= before


@pytest.mark.slow
def test_stopped_workers_commit_and_go_on(tmp_path: Path) -> None:
    job = make_job(tmp_path, config=dataclasses.replace(CONFIG, epochs=10_000))
    stop, crew, before = threading.Event(), WorkerProcesses(2, CPU, tmp_path / "workers"), descendants()

    def on_event(name: str, values: dict[str, Any]) -> None:
        if name == "progress":
            stop.set()

    with pytest.raises(
        StoppedError, match=r"stopped at \d+% after committing generation 1: run the same command to resume"
    ):
        train_together(job, crew, on_event, stop)
    assert descendants() <= before
    assert has_generation(job.store_dir)
    messages: list[str] = []
    with pytest.raises(StoppedError):  # another number goes on, too
        train(job, lambda name, values: messages.append(str(values)), stop=stop)
    assert any("workers were 2 and are 1 now: epoch " in message for message in messages)


@pytest.mark.long
def test_workers_who_die_again_and_again_are_lost_and_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when memory runs out: fewer workers then resume from the last commit."""
    monkeypatch.setattr(worker_processes, "MAX_RESTARTS", 1)
    job = make_job(tmp_path, config=dataclasses.replace(CONFIG, epochs=10_000, commit_seconds=0))
    crew, before, killed = WorkerProcesses(2, CPU, tmp_path / "workers"), descendants(), set()

    def kill_one(name: str, values: dict[str, Any]) -> None:
        if name == "progress" and values["done"] > 4:  # of each epoch
            with suppress(psutil.NoSuchProcess):  # they end together
                workers = [child for child in descendants() - before if "--events" in child.cmdline()]
                for last in (child for child in workers if child.environ().get("RANK") == "1"):
                    last.kill()
                    killed.add(last.pid)

    with pytest.raises(WorkerLostError, match=r"torchrun\.log"):
        train_together(job, crew, kill_one, threading.Event())
    assert len(killed) == 2
    assert "Signal 9" in crew.log.read_text()
    committed = open_generation(job.store_dir).generation
    stop, messages = threading.Event(), []

    def stop_soon(name: str, values: dict[str, Any]) -> None:
        messages.append(str(values))
        if name == "progress":
            stop.set()

    with pytest.raises(StoppedError):
        train(job, stop_soon, stop=stop)
    assert any(re.search(r"workers were 2 and are 1 now: epoch ([2-9]|\d\d)", message) for message in messages)
    assert open_generation(job.store_dir).generation > committed


@pytest.mark.slow
def test_an_agent_that_is_told_to_end_again_and_again_ends_its_workers_and_itself(tmp_path: Path) -> None:
    job = make_job(tmp_path, config=dataclasses.replace(CONFIG, epochs=10_000))
    crew, before, is_told = WorkerProcesses(2, CPU, tmp_path / "workers"), descendants(), False
    told = 0.0

    def on_event(name: str, values: dict[str, Any]) -> None:
        nonlocal is_told, told
        if name == "progress" and not is_told:
            is_told, told = True, time.monotonic()
            [agent] = [
                child for child in descendants() - before if "surf2vec.tasks.training.loopback_agent" in child.cmdline()
            ]
            for _ in range(1_000):  # as when a parent with many threads is killed: it sends one for each of them
                os.kill(agent.pid, signal.SIGTERM)
                time.sleep(0.0001)

    with pytest.raises(StoppedError, match="after committing generation 1"):
        train_together(job, crew, on_event, threading.Event())
    assert time.monotonic() - told < STOP_SECONDS / 4
    assert "stopped: the agent was asked to end" in crew.log.read_text(), "it heeded between two looks"
    assert descendants() <= before


def test_a_budget_without_room_for_workers_is_refused_before_one_is_started(tmp_path: Path) -> None:
    job, before = make_job(tmp_path), descendants()
    for host_bytes, num_workers in ((10**8, 2), (4 * 10**9, 99)):
        crew = WorkerProcesses(num_workers, CPU, tmp_path / "workers")
        told = rf"this process and torchrun hold .*, too little for {num_workers} workers, .* takes 250\.0 MB before it begins"
        with pytest.raises(ConfigError, match=told):
            train_together(
                dataclasses.replace(job, host_memory_bytes=host_bytes),
                crew,
                lambda name, values: None,
                threading.Event(),
            )
    assert descendants() <= before


def test_the_error_told_is_the_one_that_began_it(tmp_path: Path) -> None:
    crew = WorkerProcesses(2, CPU, tmp_path)
    lost, relayed, own = WorkerLostError("lost"), ResourceError("worker 1 failed"), DamageError("p1 was altered")
    assert explain_failure(Reported(errors=[lost, relayed, own]), crew, is_stopped=False) is own
    assert explain_failure(Reported(errors=[lost, relayed]), crew, is_stopped=False) is relayed
    assert isinstance(explain_failure(Reported(errors=[lost]), crew, is_stopped=True), StoppedError)
    gone = explain_failure(Reported(errors=[lost]), crew, is_stopped=False)
    assert isinstance(gone, WorkerLostError)
    assert "torchrun.log" in str(gone)
    assert "at last: lost" in str(gone)


def test_a_worker_that_torchrun_ended_because_another_died_did_not_stop_the_night(tmp_path: Path) -> None:
    crew = WorkerProcesses(2, CPU, tmp_path)
    lost, ended = WorkerLostError("lost"), StoppedError("stopped")
    reported = Reported(errors=[ended, lost, ended])
    assert reported.final_errors == []
    gone = explain_failure(reported, crew, is_stopped=False)
    assert isinstance(gone, WorkerLostError)
    assert "at last: lost" in str(gone)
    assert explain_failure(reported, crew, is_stopped=True) is ended


def test_workers_are_counted_by_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    gpu, unequal = Device("gpu", (10,)), Device("gpu", (10, 20))
    assert count_workers(CPU, ResourcesConfig()) == 1
    assert count_workers(CPU, ResourcesConfig(workers=0)) == 1
    assert count_workers(CPU, ResourcesConfig(workers=3)) == 3
    assert count_workers(gpu, ResourcesConfig(workers=0)) == 4
    assert count_workers(unequal, ResourcesConfig(workers=2)) == 2
    assert unequal.memory_bytes == 10
    with pytest.raises(ConfigError, match=r"workers is 5, one for each GPU, and 4 are here"):
        count_workers(gpu, ResourcesConfig(workers=5))
    with pytest.raises(ConfigError, match=r"2 budgets for 4 workers"):
        count_workers(unequal, ResourcesConfig(workers=0))
