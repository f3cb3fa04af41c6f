"""The planner never goes above the budget and never refuses what fits."""

import importlib
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.kernels.cpu import make_ledger, move_items
from surf2vec.trainer.model.rows import Rows
from surf2vec.trainer.model.trees import make_tree
from surf2vec.trainer.plan.alone import Budget, Division, Plan, plan_training
from surf2vec.trainer.plan.prediction import Rates
from surf2vec.trainer.plan.sizes import Sizes, Work, training_sizes

USERS = st.lists(st.integers(0, 100_000), min_size=1, max_size=64).filter(any)
PLENTY = 10**15
RATES = Rates(1e6, 1e8, 1e8)


def sizes_of(num_items: int, dim: int, **settings: Any) -> Sizes:
    return training_sizes(TrainConfig(parts="interest", vector_size=dim, bias=0, **settings), num_items, None)


def work_of(users: list[int], epochs: int = 1, tokens_a_user: int = 25) -> Work:
    return Work(users, [tokens_a_user * num for num in users], epochs, 60.0)


def smallest_budget(users: list[int], sizes: Sizes) -> int:
    """The smallest budget with a plan, by bisection."""
    low, high = 0, 10**13
    while low < high:
        middle = (low + high) // 2
        try:
            plan_training(work_of(users), sizes, Budget(middle, 0, PLENTY), RATES)
            high = middle
        except ResourceError:
            low = middle + 1
    return low


@given(
    USERS, st.integers(0, 5000), st.integers(1, 10**7), st.integers(1, 512), st.integers(0, 10**9), st.integers(0, 10**12),
    st.booleans(),
)  # fmt: skip
def test_never_above_the_budget(
    users: list[int], tokens_a_user: int, num_items: int, dim: int, overhead: int, budget: int, is_dm: bool
) -> None:
    work = work_of(users, tokens_a_user=tokens_a_user)
    try:
        plan = plan_training(work, sizes_of(num_items, dim, dm=int(is_dm)), Budget(budget, overhead, PLENTY), RATES)
    except ResourceError as error:
        assert "raise --host-memory" in str(error)
        return
    assert plan.peak_bytes <= budget
    if plan.place_bytes is not None:
        files_bytes = max(users) * (4 * dim + 4), 4 * tokens_a_user * max(users)
        assert all(place > file for place, file in zip(plan.place_bytes, files_bytes, strict=True))
        assert 3 * plan.chunk_partitions * sum(plan.place_bytes) < budget
    assert plan.num_chunks * plan.chunk_partitions >= len(users)
    assert plan.is_resident == (plan.num_chunks == 1)
    assert plan.num_blocks == 1 or not is_dm
    assert (plan.moved_bytes == 0) == (plan.is_resident and plan.num_blocks == 1)


@settings(max_examples=25)
@given(USERS, st.integers(1, 10**6), st.integers(1, 256))
def test_every_budget_above_the_smallest_has_a_plan(users: list[int], num_items: int, dim: int) -> None:
    sizes = sizes_of(num_items, dim)
    smallest = smallest_budget(users, sizes)
    moved = []
    for budget in (smallest, smallest + 1, 2 * smallest, 100 * smallest):
        plan = plan_training(work_of(users), sizes, Budget(budget, 0, PLENTY), RATES)
        assert plan.peak_bytes <= budget
        moved.append(plan.moved_bytes)
    assert moved == sorted(moved, reverse=True)  # more memory never moves more


@given(USERS, st.integers(1, 10**6), st.integers(1, 256), st.integers(0, 10**11))
def test_a_training_that_began_keeps_its_blocks(users: list[int], num_items: int, dim: int, budget: int) -> None:
    """Its order hangs on them; with one block any chunks will do."""
    for began in (Division(1, 1), Division(min(2, len(users)), 3)):
        try:
            plan = plan_training(work_of(users), sizes_of(num_items, dim), Budget(budget, 0, PLENTY), RATES, began)
        except ResourceError as error:
            assert "this training, as it began, needs" in str(error)
            continue
        assert plan.num_blocks == began.num_blocks
        assert plan.peak_bytes <= budget
        assert began.num_blocks == 1 or plan.chunk_partitions == began.chunk_partitions


def test_items_that_do_not_fit_are_divided_into_blocks() -> None:
    """10 million items of 300 dimensions, 12.04 GB, in a budget of 12 GB: three blocks' images of 1 / B each."""
    plan = plan_training(work_of([50_000] * 400), sizes_of(10**7, 300), Budget(12 * 10**9, 4 * 10**8, PLENTY), RATES)
    assert plan.num_blocks > 3
    assert plan.peak_bytes <= 12 * 10**9
    shared_bytes = 10**7 // 32 * 1204  # the most frequent items are in every block
    block_bytes = shared_bytes - (-(12_040_000_000 - shared_bytes) // plan.num_blocks)
    assert plan.moved_bytes == 20_000_000 * 1204 + plan.num_chunks * (plan.num_blocks - 1) * block_bytes
    with pytest.raises(ResourceError, match="10,000,000 items and"):
        plan_training(work_of([50_000] * 400), sizes_of(10**7, 300, dm=1), Budget(12 * 10**9, 0, PLENTY), RATES)


def test_the_headline_fits_four_gigabytes() -> None:
    plan = plan_training(work_of([50_000] * 400), sizes_of(10**6, 128), Budget(4 * 10**9, 4 * 10**8, PLENTY), RATES)
    assert (plan.num_blocks, plan.is_resident) == (1, False)
    assert plan.disk_bytes == 2 * (20_000_000 + 1_000_000) * 516
    users_bytes, token_bytes = 50_000 * 516 + 3 * 4096, 1_250_000 * 4 + 2 * 4096
    assert plan.place_bytes == (users_bytes, token_bytes)
    assert plan.slot_bytes == plan.chunk_partitions * (users_bytes + token_bytes + 50_000 * 44)


def test_users_who_stay_leave_their_tokens_mapped() -> None:
    plan = plan_training(work_of([1000] * 4, tokens_a_user=10**6), sizes_of(1000, 128), Budget(10**9, 0, PLENTY), RATES)
    assert plan.is_resident
    assert plan.place_bytes is None


def test_a_gpu_holds_a_block_and_two_micro_partitions() -> None:
    work, sizes, host = work_of([50_000] * 400), sizes_of(10**7, 300), 10**12
    plan = plan_training(work, sizes, Budget(host, 0, PLENTY, device_bytes=12 * 10**9), RATES)
    assert plan.num_blocks == 2
    assert plan.device_bytes <= 12 * 10**9
    two_places = 2 * 50_000 * (1204 + 36 + 25 * 4)
    a_block = 5_000_000 * (1204 + 24)
    assert plan.device_bytes > 7 * 10**8 + two_places + a_block
    with pytest.raises(ResourceError, match=r"on the GPU.*budget is 750\.0 MB: raise --device-memory"):
        plan_training(work, sizes, Budget(host, 0, PLENTY, device_bytes=750 * 10**6), RATES)


def trail_plan(budget: Budget, num_items: int = 10**6, **settings: Any) -> Plan:
    sizes = training_sizes(TrainConfig(**settings), num_items, None)
    return plan_training(work_of([50_000] * 40), sizes, budget, RATES)


def test_a_gpu_trains_the_trail_where_both_item_tables_fit_beside_the_items() -> None:
    """A million rows of 64 numbers, three times."""
    host, both_bytes = Budget(10**12, 0, PLENTY), 2 * 10**6 * 260 + 24 * 10**6
    plan = trail_plan(replace(host, device_bytes=4 * 10**9))
    assert plan.trail_on_device
    assert "the GPU trains the trail, too" in plan.reasons
    without = trail_plan(replace(host, device_bytes=4 * 10**9), trail_weight=0.0, parts="interest", vector_size=64)
    trail_bytes = plan.device_bytes - without.device_bytes
    assert both_bytes < trail_bytes < 1.05 * both_bytes
    tiny = trail_plan(replace(host, device_bytes=14 * 10**8))
    assert not tiny.trail_on_device
    assert tiny.num_blocks == 1
    assert any("the CPU trains the trail beside the GPU, as both would need" in line for line in tiny.reasons)
    assert not any("trail" in line and "GPU" in line for line in without.reasons)


@pytest.mark.parametrize("settings", [{"vector_size": 512}, {"trail_negative": 1000}])
def test_a_gpu_trains_a_trail_of_any_number_of_negatives(settings: dict[str, Any]) -> None:
    assert trail_plan(Budget(10**12, 0, PLENTY, device_bytes=10**11), **settings).trail_on_device


def test_where_items_are_divided_the_cpu_trains_the_trail_and_the_plan_says_so() -> None:
    plan = trail_plan(Budget(10**12, 0, PLENTY, device_bytes=15 * 10**8), 5 * 10**6)
    assert not plan.trail_on_device
    assert "the CPU trains the trail beside the GPU, as the items are divided" in plan.reasons


def test_a_trail_alone_is_no_work_for_a_gpu() -> None:
    plan = trail_plan(Budget(10**12, 0, PLENTY, device_bytes=10**11), parts="trail", vector_size=64)
    assert not plan.trail_on_device


def test_the_prediction_is_training_or_moving_and_the_last_commit() -> None:
    """2.5 M tokens at 1 M a second; 51.6 MB to write at the end at 100 MB a second."""
    sizes = sizes_of(1000, 128)
    resident = plan_training(work_of([50_000] * 2), sizes, Budget(10**12, 0, PLENTY), RATES)
    assert resident.seconds == pytest.approx(2.5 + 0.516 + 0.00516)
    slow_disk = Rates(1e9, 1e7, 1e7)
    swapped = plan_training(work_of([50_000] * 4), sizes, Budget(140_000_000, 0, PLENTY), slow_disk)
    assert swapped.num_chunks == 4
    # In the first epoch users begin in memory and are only written.
    assert swapped.seconds == pytest.approx(10.32 + 0.0516)
    again = plan_training(work_of([50_000] * 4, epochs=3), sizes, Budget(140_000_000, 0, PLENTY), slow_disk)
    assert again.seconds == pytest.approx(10.32 + 2 * 20.64 + 0.0516)


def test_a_refusal_has_the_numbers_and_the_way_out() -> None:
    work = work_of([50_000] * 8)
    with pytest.raises(ResourceError, match=r"needs \d\d\d\.\d MB.*50,000 users.*budget is 100\.0 MB.*--host-memory"):
        plan_training(work, sizes_of(10_000, 128), Budget(10**8, 50 * 10**6, PLENTY), RATES)
    with pytest.raises(ResourceError, match=r"of disk and 1\.0 MB are free"):
        plan_training(work, sizes_of(1000, 128), Budget(10**12, 0, 10**6), RATES)


@pytest.mark.parametrize(("num_negatives", "num_items"), [(4, 20_000), (10, 1_000_000)])
def test_the_memory_of_accumulated_gradients_is_counted(num_negatives: int, num_items: int) -> None:
    config = TrainConfig(parts="interest", vector_size=64, accumulate=100, negative=num_negatives)
    work, rng = Work(users=[100], tokens=[40_000], epochs=1, commit_seconds=60), np.random.default_rng(0)
    outputs = Rows(np.zeros((num_items, 64), np.float32), np.zeros(num_items, np.float32))
    importlib.import_module("scipy.sparse")  # as before a plan, when the kernel is warmed up
    tracemalloc.start()
    ledger = make_ledger(40_000, num_negatives, 64)
    ledger.rows[:], ledger.pulls[:], ledger.hiddens[:] = rng.integers(0, num_items, ledger.rows.shape, np.int32), 1, 1
    move_items(outputs, ledger, config, np.float32(0.1))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sizes = training_sizes(config, num_items, None)
    assert 0.3 * sizes.accumulation_bytes(work, 1) < peak_bytes < sizes.accumulation_bytes(work, 1)
    assert training_sizes(TrainConfig(), 1000, None).accumulation_bytes(work, 1) == 0


def test_a_tree_is_divided_below_its_upper_levels() -> None:
    """Every block has the 316 rows of the root of a two-level tree, and about its share of the others."""
    tree = make_tree(TrainConfig(parts="interest", hs=1, tree="two_level"), np.arange(1, 100_001))
    assert tree is not None
    sizes = training_sizes(TrainConfig(parts="interest", hs=1, tree="two_level", vector_size=128), 100_000, tree)
    assert sizes.can_split
    assert sizes.shared_bytes == 316 * 516
    assert sizes.block_bytes(1) == (316 + 100_000) * 516
    assert sizes.block_bytes(4) == (316 + 25_000 + 317) * 516
