"""The cost model's arithmetic by literal examples, and that its bytes are the planner's."""

import dataclasses
import math

import pytest

from surf2vec.trainer.config import TrainConfig
from tests.benchmarks.workers_clusters import GPU, network, plan
from tests.benchmarks.workers_cost import Device, Epoch, Memory, Network, Volume, named, plan_epoch, predict_epoch

DEVICE = Device(tokens_per_second=1000.0, visit_seconds=0.0001, touched_bytes_per_second=1e6, is_overlapped=False)
NETWORK = Network(
    sum_bytes_per_second=1e5, pass_bytes_per_second=2e5, sum_seconds=0.01, pass_seconds=0.02, meet_seconds=0.005
)
SHARDED = Epoch(
    "sharded", 2, tokens=4000, num_meetings=8, num_blocks=2, num_exchanges=5, summed_bytes=5000, num_turns=2,
    passed_bytes=40_000,
)  # fmt: skip


def test_one_worker_takes_its_tokens_by_its_rate() -> None:
    seconds = predict_epoch(Epoch("alone", 1, tokens=4000), DEVICE)
    assert seconds.total == pytest.approx(4 + 0.4)
    assert (seconds.summing, seconds.passing, seconds.meeting) == (0, 0, 0)


def test_what_is_summed_passed_and_told_adds_up() -> None:
    seconds = predict_epoch(SHARDED, DEVICE, NETWORK)
    assert seconds.training == pytest.approx(4 + 4000 * 2 * 0.0001)
    # Of two workers, a sum sends what it adds up.
    assert seconds.summing == pytest.approx(5 * 0.01 + 5000 / 1e5 + 8 * 5000 / 1e6)
    assert seconds.passing == pytest.approx(2 * 0.02 + 40_000 / 2e5)
    assert seconds.meeting == pytest.approx(8 * 0.005)


def test_four_workers_add_up_less_than_they_send() -> None:
    one = predict_epoch(Epoch("replicated", 4, tokens=0, summed_bytes=6000), DEVICE, NETWORK)
    assert one.summing == pytest.approx(6000 / 1e5 + 8 * 4000 / 1e6)  # 2 x 3/4 of 4,000


def test_a_device_that_sends_while_it_computes_waits_for_the_rest_alone() -> None:
    device = dataclasses.replace(DEVICE, is_overlapped=True)
    doubled = dataclasses.replace(SHARDED, num_blocks=4, passed_bytes=1_000_000.0)
    assert predict_epoch(SHARDED, device, NETWORK).passing == pytest.approx(0.24)  # one block a worker
    assert predict_epoch(doubled, device, NETWORK).passing == pytest.approx(0.04 + 5 - 4)
    apart = dataclasses.replace(SHARDED, mode="asynchronous")
    assert predict_epoch(apart, device, NETWORK).summing == pytest.approx(13 * 5000 / 1e6)


def test_the_slowest_worker_of_each_place_counts() -> None:
    volume = Volume(users=[10] * 4, tokens=[100, 300, 200, 200], num_items=1000)
    epoch = plan_epoch(volume, 2, named(TrainConfig(vector_size=7), "replicated"), Memory(10**9))
    assert 400 <= epoch.tokens <= 500  # the same in all, but not at each place
    assert epoch.summed_bytes == epoch.num_exchanges * 1000 * 32
    apart = plan_epoch(volume, 2, named(TrainConfig(vector_size=7), "asynchronous"), Memory(10**9))
    assert apart.tokens == 400


def test_a_sharded_epoch_passes_about_the_table_on() -> None:
    volume = Volume(users=[100] * 8, tokens=[2500] * 8, num_items=32_000)
    epoch = plan_epoch(volume, 2, named(TrainConfig(parts="interest", vector_size=127), "sharded"), Memory(10**9))
    table_bytes = 32_000 * 512
    assert (epoch.num_blocks, epoch.num_turns) == (2, 2)
    assert table_bytes < epoch.passed_bytes < 1.05 * table_bytes


def test_predictions_for_gpus_are_of_all_tokens() -> None:
    alone = predict_epoch(plan(20_000_000, 1, "auto"), GPU)
    assert alone.total == pytest.approx(500e6 / 300e6, rel=0.001)
    assert network(8).sum_seconds == pytest.approx(6 * 3e-6)
    assert math.isinf(network(1).sum_bytes_per_second)
