"""Several workers as real processes: the same answers, however many they are and whoever dies."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from torch.distributed import HashStore

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.workers.group import find_each_other
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.store_contents import assert_same_bits, find_topics
from tests.servers.torchrun import run_and_kill, run_workers

CONFIG = TrainConfig(vector_size=16, epochs=12, threads=1, alpha=0.1, negative=5, commit_seconds=0.2)


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "corpus"
    write_corpus(folder, planted_histories(num_users=1000, num_items=200), partitions=8)
    return folder


def job_of(corpus_dir: Path, store_dir: Path, **settings: object) -> Job:
    return Job(corpus_dir, store_dir, dataclasses.replace(CONFIG, **settings), 4 * 10**9)  # type: ignore[arg-type]


def test_one_worker_of_torchrun_is_the_training_without_it(corpus_dir: Path, tmp_path: Path) -> None:
    run_workers(job_of(corpus_dir, tmp_path / "torchrun", epochs=3), 1)
    train(job_of(corpus_dir, tmp_path / "alone", epochs=3))
    assert_same_bits(tmp_path / "torchrun", tmp_path / "alone")


@pytest.mark.long
def test_sharded_workers_end_with_the_same_bits_also_where_one_was_killed(corpus_dir: Path, tmp_path: Path) -> None:
    undisturbed, killed = (
        job_of(corpus_dir, tmp_path / name, sharing="sharded", epochs=20) for name in ("undisturbed", "killed")
    )
    told = run_workers(undisturbed, 2)
    assert told["plan"]["sharing"]["mode"] == "sharded"
    again = run_and_kill(killed, 2, num_kills=2)
    assert_same_bits(killed.store_dir, undisturbed.store_dir)
    assert again["num_processes"] == 3
    assert open_generation(killed.store_dir).num_blocks == 1, "a night can go on from it"
    assert again["heldout_loss"] == told["heldout_loss"]
    assert find_topics(killed.store_dir) > 0.9
    sent = sum(worker["passed_bytes"] + worker["summed_bytes"] for worker in told["workers"])
    assert sent == pytest.approx(2 * told["plan"]["sent_bytes"], rel=0.02)
    tokens = [worker["tokens"] for worker in told["workers"]]
    assert max(tokens) < 1.1 * np.mean(tokens)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["replicated", pytest.param("asynchronous", marks=pytest.mark.long)])
def test_replicated_workers_end_although_one_was_killed(corpus_dir: Path, tmp_path: Path, sharing: str) -> None:
    job = job_of(corpus_dir, tmp_path / "killed", sharing=sharing, epochs=20)
    told = run_and_kill(job, 2, num_kills=1)
    assert told["num_processes"] == 2
    assert find_topics(job.store_dir) > 0.9
    beside = job_of(corpus_dir, tmp_path / "beside", epochs=20)
    alone = train(beside)
    assert told["heldout_loss"] < 1.1 * alone["heldout_loss"]
    late = max(worker["staleness_most"] for worker in told["workers"])
    assert late <= CONFIG.staleness
    assert sharing == "asynchronous" or late == 0


@pytest.mark.slow
def test_workers_with_unequal_budgets_have_unequal_shares(corpus_dir: Path, tmp_path: Path) -> None:
    """And both stop at the same epoch."""
    job = job_of(corpus_dir, tmp_path / "store", sharing="sharded", epochs=60, alpha=1.0, patience=1)
    told = run_workers(job, 2, host_memory="4GB,2GB")
    first, second = (worker["tokens"] for worker in told["workers"])
    assert 1.5 < first / second < 3.5
    assert told["stopped_after_epoch"] < 60
    assert told["best"]["epoch"] < told["stopped_after_epoch"]
    assert told["heldout_loss"] >= told["best"]["heldout_loss"]


def test_a_log_whose_tokens_all_fall_into_one_block_is_trained(tmp_path: Path) -> None:
    histories = {f"user-{n}": [0, n % 3] * 4 for n in range(300)} | {f"other-{n}": list(range(2, 40)) for n in range(3)}
    write_corpus(tmp_path / "corpus", histories, partitions=4)
    job = job_of(tmp_path / "corpus", tmp_path / "store", sharing="sharded", sample=0, epochs=3)
    told = run_workers(job, 2)
    assert told["tokens"] == 3 * sum(map(len, histories.values())) - 3 * withheld(histories)
    assert np.isfinite(open_generation(job.store_dir).read_items()).all()


def withheld(histories: dict[str, list[int]]) -> int:
    """Tokens from the held-out one on."""
    total = 0
    for history in histories.values():
        new = [n for n in range(1, len(history)) if history[n] not in history[:n]]
        total += len(history) - new[-1] if new else 0
    return total


def test_workers_who_start_again_do_not_take_the_dead_for_the_living() -> None:
    """torchrun keeps the store: what the dead wrote is still there."""
    store = HashStore()
    names = []
    for start in range(3):
        with ThreadPoolExecutor(3) as pool:
            found = set(pool.map(lambda rank: find_each_other(store, rank, 3), range(3)))
        assert len(found) == 1, f"start {start}"
        names += found
    assert len(set(names)) == 3
