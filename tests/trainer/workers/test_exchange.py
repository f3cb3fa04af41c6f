"""Rows that every worker has: after an exchange all have what all changed."""

import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.first_rows import begin_items, begin_trail
from surf2vec.trainer.kernels.signature import LEAST_LAG
from surf2vec.trainer.workers.exchange import Exchange
from surf2vec.trainer.workers.group import Workers
from tests.trainer.workers.thread_group import Threads


def rows_of(table: torch.Tensor) -> SimpleNamespace:
    """Rows without Adagrad's sums."""
    return SimpleNamespace(vectors=table, squares=table[:0])


def change_and_exchange(workers: Workers, staleness: int, turns: int) -> tuple[torch.Tensor, Exchange, torch.Tensor]:
    """A table after so many turns in each of which this worker changes it, the exchange, and the sum of its changes."""
    table, changed = torch.zeros(5, 3), torch.zeros(5, 3)
    exchange = Exchange(workers, 5, staleness)
    exchange.attach(rows_of(table))
    generator, patience = torch.Generator().manual_seed(workers.rank), random.Random(workers.rank)
    for _ in range(turns):
        step = torch.randint(-8, 8, (5, 3), generator=generator).float()
        table += step
        changed += step
        time.sleep(patience.random() * 0.002)
        exchange.run()
    exchange.drain()
    return table, exchange, changed


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_all_end_with_the_sum_of_all_changes(num_workers: int, staleness: int) -> None:
    """Whole numbers, so that sums are the same in any order."""
    told = Threads(num_workers).run(lambda workers: change_and_exchange(workers, staleness, 30))
    total = sum(changed for _, _, changed in told)
    for table, exchange, _ in told:
        assert torch.equal(table, total)
        assert exchange.num_exchanges == 30
        assert exchange.staleness_most <= staleness
        assert exchange.sent_bytes == 30 * 2 * (num_workers - 1) * 60 // num_workers
    assert staleness == 0 or any(exchange.staleness_sum for _, exchange, _ in told), "nobody went on without waiting"


def test_rows_of_another_block_go_on_from_the_same_values() -> None:
    """The rows that all blocks share move from one block's memory to another's between exchanges."""

    def work(workers: Workers) -> torch.Tensor:
        exchange, table = Exchange(workers, 2, 0), torch.zeros(2)
        exchange.attach(rows_of(table))
        table += 1
        exchange.run()
        moved = table.clone()
        exchange.attach(rows_of(moved))
        moved += 10
        exchange.run()
        return moved

    assert all(torch.equal(moved, torch.full((2,), 22.0)) for moved in Threads(2).run(work))


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_lag_that_all_workers_lower_does_not_fall_below_the_least(staleness: int) -> None:
    """Two workers halve a weight of 1, and the sum of their steps takes it to 0; then one of them raises it."""

    def work(workers: Workers) -> torch.Tensor:
        config = TrainConfig(vector_size=8, trail_window=2)
        trail, exchange = begin_trail(config, 3), Exchange(workers, 3, staleness)
        exchange.attach(begin_items(config, 3, 3).outputs, [], [trail])
        for step in (-0.5, 0.25 * workers.rank):
            trail.lags.vectors[0] += step
            trail.outputs.vectors += 1
            exchange.run()
            exchange.drain()
        np.testing.assert_allclose(trail.outputs.vectors, begin_trail(config, 3).outputs.vectors + 4, rtol=1e-5)
        return trail.lags.vectors[:, 0]

    for lags in Threads(2).run(work):
        np.testing.assert_allclose(lags, [LEAST_LAG + 0.25, 0.5, 1, 0.5])


def test_rows_on_the_host_and_on_a_device_are_summed_by_themselves() -> None:
    """A trail that the host trains beside items on a GPU. The device here has no memory (meta), so only the host's are seen."""

    def work(workers: Workers) -> torch.Tensor:
        exchange, table = Exchange(workers, 2, 0), torch.zeros(3)
        exchange.attach(rows_of(torch.zeros(2, device="meta")), [rows_of(table)])
        table += 1
        exchange.run()
        return table

    assert all(torch.equal(table, torch.full((3,), 2.0)) for table in Threads(2).run(work))


def test_a_table_too_small_to_share_any_of_it_is_exchanged_for_nothing() -> None:
    exchange = Exchange(Workers(), 0, 0)
    exchange.attach(rows_of(torch.zeros(3)))
    exchange.run()
    exchange.drain()
    assert (exchange.num_exchanges, exchange.sent_bytes) == (1, 0)
