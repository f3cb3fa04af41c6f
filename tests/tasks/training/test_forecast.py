"""What a training would take is asked by its size alone, and refused with the numbers when it cannot be."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.config import ResourcesConfig
from surf2vec.tasks.night.config import PipelineConfig
from surf2vec.tasks.night.context import NightContext
from surf2vec.tasks.root.records import RunRecord, Steps
from surf2vec.tasks.training.forecast import Volume, plan_equal, plan_job, plan_size, spread, spread_volume, zipf_counts
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.plan.alone import Budget
from surf2vec.trainer.plan.prediction import Rates
from surf2vec.trainer.plan.sizes import training_sizes
from surf2vec.trainer.training import preparation
from tests.roots.training import prepare

CONFIG = TrainConfig(vector_size=16, epochs=2)


def test_a_small_training_stays_in_memory_and_has_its_seconds(tmp_path: Path) -> None:
    plan = plan_size(tmp_path / "not-there", Volume(1000, 100, 25_000, 8), CONFIG, ResourcesConfig())
    assert (plan["kernel"], plan["num_chunks"], plan["num_blocks"]) == ("cpu", 1, 1)
    assert plan["seconds"] > 0
    assert plan["reasons"][-1].startswith("50,000 tokens at ")
    assert list(tmp_path.iterdir()) == []


def test_several_workers_share_users_and_say_what_they_send(tmp_path: Path) -> None:
    volume = Volume(1000, 100, 25_000, 8)
    alone = plan_size(tmp_path, volume, CONFIG, ResourcesConfig())
    plan = plan_size(tmp_path, volume, CONFIG, ResourcesConfig(), 4)
    assert (alone["workers"], alone["sent_bytes"], plan["workers"]) == (1, 0, 4)
    assert plan["num_partitions"] == 2
    assert plan["sent_bytes"] > 0
    assert plan["reasons"][0].startswith("4 equal workers, 1 on each machine")
    assert any(reason.startswith(f"{plan['sharing']['mode']}: ") for reason in plan["reasons"])
    here = plan_size(tmp_path, volume, CONFIG, ResourcesConfig(workers=2))
    assert (here["workers"], here["budget_bytes"]) == (2, alone["budget_bytes"] // 2)
    assert here["reasons"][0].startswith("2 equal workers, 2 on each machine")


def test_more_workers_than_micro_partitions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"9 workers cannot share 8 micro-partitions"):
        plan_size(tmp_path, Volume(1000, 100, 25_000, 8), CONFIG, ResourcesConfig(), 9)


@given(st.sampled_from([2, 3, 8]), st.sampled_from(["replicated", "asynchronous", "sharded"]))
def test_equal_workers_divide_all_tokens(num_workers: int, sharing: str) -> None:
    config = TrainConfig(vector_size=16, epochs=2, sharing=sharing)
    work = spread_volume(Volume(10_000, 500, 400_000, 16), config.epochs, 60)
    sizes = training_sizes(config, 500, None)
    each = Budget(10**9, 10**8, 10**10), Rates(10**6, 10**9, 10**9)
    plan = plan_equal(work, sizes, config, each, num_workers)
    assert plan.sharing.mode == sharing
    assert plan.num_partitions >= 16 // num_workers
    assert plan.sent_bytes > 0
    assert plan.num_blocks % num_workers == 0 if sharing == "sharded" else plan.num_blocks == 1
    assert plan == plan_equal(work, sizes, config, each, num_workers), "it is pure"


def test_what_does_not_fit_is_refused_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(
        ResourceError, match=r"10,000,000 items in 256 blocks.*budget is 100\.0 MB: raise --host-memory"
    ):
        plan_size(tmp_path, Volume(10**6, 10**7, 10**7, 16), CONFIG, ResourcesConfig(host_memory="100MB"))


def test_plan_and_a_night_refuse_the_same_budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan` has a new process; that of a night has read logs before."""
    root, window_id = prepare(tmp_path / "root", 2)
    night = NightContext(root, None, None, PipelineConfig(train=CONFIG))

    def refused(fresh_mb: int, plan: Callable[[], Any]) -> str:
        monkeypatch.setattr(preparation, "private_bytes", lambda: fresh_mb * 10**6)
        with pytest.raises(ResourceError) as raised:
            plan()
        return str(raised.value).partition(": ")[2].partition(" for the process")[0]

    def train() -> None:
        job = replace(night.job(RunRecord(run_id="r", window_id=window_id, steps=Steps())), host_memory_bytes=10**7)
        plan_job(job, tmp_path, ignore_event)

    def foresee() -> None:
        plan_size(tmp_path, Volume(60, 10, 1000, 2), CONFIG, ResourcesConfig(host_memory="10MB"))

    assert refused(124, foresee) == refused(234, train) == "250.0 MB"
    assert refused(280, foresee) == refused(280, train) == "280.0 MB"


@given(st.integers(0, 10**10), st.integers(0, 12), st.floats(0, 4))
def test_users_and_tokens_are_spread_and_none_is_lost(total: int, exponent: int, extra: float) -> None:
    shares = spread(total, 2**exponent, extra)
    assert (sum(shares), len(shares)) == (total, 2**exponent)
    assert min(shares) >= 0
    assert max(shares) >= total / 2**exponent


def test_the_first_micro_partition_may_have_a_quarter_more_tokens() -> None:
    work = spread_volume(Volume(40_000, 1, 4000, 4), epochs=1, commit_seconds=60)
    assert (work.users, work.tokens) == ([10_400, 10_000, 10_000, 9_600], [1250, 1000, 1000, 750])
    assert spread(4001, 1, 0.25) == [4001]


def test_zipf_counts_fall_and_sum_up() -> None:
    counts = zipf_counts(1000, 10**6)
    assert counts.min() >= 1
    assert (counts[:-1] >= counts[1:]).all()
    assert counts.sum() == pytest.approx(10**6, rel=0.01)
