"""The planner never goes above the budget and never refuses what fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import TrainConfig
from trainer.errors import ConfigError, ResourceError
from trainer.plan import Sizes, parse_bytes, plan_training, training_sizes

SIZES = st.lists(st.integers(0, 100_000), min_size=1, max_size=64).filter(any)
PLENTY = 10**15


def sizes_of(num_items: int, dim: int) -> Sizes:
    return training_sizes(TrainConfig(vector_size=dim), num_items, num_items, 0)


def smallest_budget(users: list[int], num_items: int, dim: int, overhead: int) -> int:
    """The smallest budget with a plan, by bisection."""
    low, high = 0, 10**13
    while low < high:
        middle = (low + high) // 2
        try:
            plan_training(users, num_items, sizes_of(num_items, dim), middle, overhead, PLENTY)
            high = middle
        except ResourceError:
            low = middle + 1
    return low


@given(SIZES, st.integers(1, 10**6), st.integers(1, 512), st.integers(0, 10**9), st.integers(0, 10**12))
def test_never_above_the_budget(users: list[int], num_items: int, dim: int, overhead: int, budget: int) -> None:
    try:
        plan = plan_training(users, num_items, sizes_of(num_items, dim), budget, overhead, PLENTY)
    except ResourceError as error:
        assert "raise --host-memory" in str(error)
        return
    assert plan.peak_bytes <= budget
    assert plan.num_chunks * plan.chunk_partitions >= len(users)
    assert plan.is_resident == (plan.num_chunks == 1)


@given(SIZES, st.integers(1, 10**5), st.integers(1, 256))
def test_every_budget_above_the_smallest_has_a_plan(users: list[int], num_items: int, dim: int) -> None:
    smallest = smallest_budget(users, num_items, dim, 0)
    for budget in (smallest, smallest + 1, 2 * smallest, 100 * smallest):
        assert plan_training(users, num_items, sizes_of(num_items, dim), budget, 0, PLENTY).peak_bytes <= budget


def test_a_refusal_has_the_numbers_and_the_way_out() -> None:
    with pytest.raises(ResourceError, match=r"needs 144\.6 MB.*50,000 users.*budget is 100\.0 MB.*--host-memory"):
        plan_training([50_000] * 8, 10_000, sizes_of(10_000, 128), 10**8, 50 * 10**6, PLENTY)
    with pytest.raises(ResourceError, match=r"of disk and 1\.0 MB are free"):
        plan_training([50_000] * 8, 1000, sizes_of(1000, 128), 10**12, 0, 10**6)


@pytest.mark.parametrize(
    ("text", "expected"), [("4GB", 4 * 10**9), ("512MiB", 2**29), ("1.5 kb", 1500), ("7", 7), ("12G", 12 * 10**9)]
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-4GB", "4 elephants", "1e9", "four"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="write for instance 4GB"):
        parse_bytes(text)


def test_sizes_by_hand() -> None:
    """128 dimensions: 512 bytes of float32 or 256 of bfloat16, and 4 of optimizer state."""
    plain = training_sizes(TrainConfig(), 1000, 1000, 0)
    assert (plain.user_bytes, plain.work_bytes, plain.item_table_bytes) == (516, 0, 516_000)
    half = training_sizes(TrainConfig(dtype="bfloat16"), 1000, 1000, 0)
    assert (half.user_bytes, half.work_bytes) == (260, 512)
    context = training_sizes(TrainConfig(dm=1, accumulate=8), 1000, 1000, 0)
    assert context.item_table_bytes == 2 * 516_000
    assert context.item_extra_bytes - plain.item_extra_bytes == 3 * 516_000  # the inputs' copy, and both sums
