"""Rows that every worker has: after an exchange all have what all changed."""

import random
import time

import pytest
import torch

from surf2vec.trainer.workers.exchange import Exchange
from surf2vec.trainer.workers.group import Workers
from tests.trainer.workers.thread_group import Threads


def change_and_exchange(workers: Workers, staleness: int, turns: int) -> tuple[torch.Tensor, Exchange, torch.Tensor]:
    """A table after so many turns in each of which this worker changes it, the exchange, and the sum of its changes."""
    table, changed = torch.zeros(5, 3), torch.zeros(5, 3)
    exchange = Exchange(workers, 5, staleness)
    exchange.attach([table])
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
        exchange.attach([table])
        table += 1
        exchange.run()
        moved = table.clone()
        exchange.attach([moved])
        moved += 10
        exchange.run()
        return moved

    assert all(torch.equal(moved, torch.full((2,), 22.0)) for moved in Threads(2).run(work))


def test_a_table_too_small_to_share_any_of_it_is_exchanged_for_nothing() -> None:
    exchange = Exchange(Workers(), 0, 0)
    exchange.attach([])
    exchange.run()
    exchange.drain()
    assert (exchange.num_exchanges, exchange.sent_bytes) == (1, 0)
