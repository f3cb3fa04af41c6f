"""What is predicted of a training's traffic: by hand, within bounds for any plan, and as a real training then measures it."""

import dataclasses
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.plan.prediction import Rates, known_rates, predict
from surf2vec.trainer.plan.sizes import Work
from surf2vec.trainer.system.units import parse_bytes
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories, write_corpus

RATES = Rates(1000.0, 100.0, 100.0)


def test_users_in_memory_are_written_by_commits() -> None:
    """Two epochs of 60 s, a commit every 20 s: six commits with the last, but each user changes only twice."""
    work = Work([10, 10, 10], [20_000] * 3, epochs=2, commit_seconds=20.0)
    told = predict(work, 1, 0, block_bytes=7, resident_bytes=100, rates=RATES)
    assert (told.num_commits, told.read_bytes, told.written_bytes) == (6, 0, 6 * 7 + 2 * 100)
    assert told.seconds == pytest.approx(120 + 1.07)  # the disk was idle: only the last commit is waited for


def test_users_that_go_are_written_once_an_epoch_and_read_but_in_the_first() -> None:
    work = Work([10] * 4, [250] * 4, epochs=3, commit_seconds=60.0)
    told = predict(work, 1, moved_bytes=500, block_bytes=7, resident_bytes=0, rates=RATES)
    assert (told.num_commits, told.read_bytes, told.written_bytes) == (1, 1000, 1507)
    assert told.seconds == pytest.approx(5 + 2 * 10 + 0.07)


def test_commits_at_every_end_of_a_micro_partition() -> None:
    work = Work([10] * 4, [250] * 4, epochs=3, commit_seconds=0.0)
    assert predict(work, 2, 0, 7, 100, RATES).num_commits == 3 * 4 * 2
    assert predict(work, 1, 0, 7, 100, RATES).num_commits == 3 * 4


@given(
    st.integers(1, 50), st.integers(0, 10**10), st.integers(1, 100), st.sampled_from([0.0, 1e-320, 1.0, 60.0]),
    st.integers(1, 8), st.integers(0, 10**12),
)  # fmt: skip
def test_bounds(
    num_partitions: int, tokens_each: int, epochs: int, commit_seconds: float, num_blocks: int, table_bytes: int
) -> None:
    work = Work([5] * num_partitions, [tokens_each] * num_partitions, epochs, commit_seconds)
    told = predict(work, num_blocks, table_bytes, 8, table_bytes, RATES)
    assert 1 <= told.num_commits <= num_partitions * epochs * num_blocks
    assert 0 <= told.read_bytes <= epochs * table_bytes
    assert told.written_bytes <= epochs * table_bytes * (1 + num_blocks) + 8 * told.num_commits
    assert told.seconds >= work.num_tokens * epochs / 1000


@pytest.mark.parametrize(("num_items", "spare_bytes", "num_chunks"), [(60, 100_000, 8), (40_000, 6_000_000, 1)])
def test_a_real_training_moves_what_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_items: int, spare_bytes: int, num_chunks: int
) -> None:
    """3,000 users, in chunks, or with items in blocks: headers of files come on top; what stays over an epoch's end is less."""
    write_corpus(tmp_path / "corpus", planted_histories(num_users=3000, num_items=num_items), partitions=8)
    monkeypatch.setattr("surf2vec.trainer.training.preparation.private_bytes", lambda: 0)
    config = TrainConfig(parts="interest", vector_size=64, epochs=4, threads=1, negative=2)
    job = Job(tmp_path / "corpus", tmp_path / "store", config, host_memory_bytes=1)
    with pytest.raises(ResourceError, match="the smallest plan needs") as refusal:
        train(job)
    needed_bytes = parse_bytes(str(refusal.value).split("needs ")[1].split(":")[0])
    result = train(dataclasses.replace(job, host_memory_bytes=needed_bytes + spare_bytes))
    plan = result["plan"]
    assert (plan["num_chunks"], plan["num_blocks"] > 1) == (num_chunks, num_chunks == 1)
    assert (result["num_commits"], result["num_processes"]) == (plan["num_commits"], 1)
    assert 0.8 < result["bytes_read"] / plan["read_bytes"] < 1.05
    assert 0.8 < result["bytes_written"] / plan["written_bytes"] < 1.05


def test_what_is_written_has_both_item_tables_of_a_trail(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", planted_histories(num_users=300, num_items=4000), partitions=4)
    config = TrainConfig(vector_size=64, epochs=2, threads=1)
    result = train(Job(tmp_path / "corpus", tmp_path / "store", config, host_memory_bytes=4 * 10**9))
    assert list((tmp_path / "store").glob("trail-*"))
    assert 0.8 < result["bytes_written"] / result["plan"]["written_bytes"] < 1.05


LAST: dict[str, Any] = {
    "kernel": "cpu", "tokens_done": 4e6, "train_seconds": 3.0, "stall_seconds": 1.0, "loads": [],
    "config": asdict(TrainConfig(vector_size=64)),
}  # fmt: skip


def test_a_store_says_how_fast_it_was_trained_last() -> None:
    rates = known_rates(LAST, TrainConfig(vector_size=128), "cpu", threads=2)
    assert (rates.tokens_per_second, rates.source) == (1e6, "as in the store's last training")
    assert known_rates(LAST | {"loads": [{}, {}]}, TrainConfig(vector_size=128), "cpu", 2).tokens_per_second == 5e5


@pytest.mark.parametrize(
    "last",
    [{}, LAST | {"kernel": "gpu"}, LAST | {"tokens_done": 1e5}, LAST | {"config": asdict(TrainConfig(hs=1))}],
)
def test_without_a_training_of_the_same_kind_rates_are_assumed(last: dict[str, Any]) -> None:
    one, two = (known_rates(last, TrainConfig(), "cpu", threads) for threads in (1, 2))
    assert one.source.startswith("assumed")
    assert two.tokens_per_second == 2 * one.tokens_per_second
    tree = known_rates({}, TrainConfig(hs=1), "gpu", 1)
    assert tree.tokens_per_second < known_rates({}, TrainConfig(), "gpu", 1).tokens_per_second
