"""The planner never goes above the budget and never refuses what fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import ConfigError, ResourceError
from trainer.plan import parse_bytes, plan_training

SIZES = st.lists(st.integers(0, 100_000), min_size=1, max_size=64).filter(any)
PLENTY = 10**15


def smallest_budget(users: list[int], num_items: int, dim: int, overhead: int) -> int:
    """The smallest budget with a plan, by bisection."""
    low, high = 0, 10**13
    while low < high:
        middle = (low + high) // 2
        try:
            plan_training(users, num_items, dim, middle, overhead, PLENTY)
            high = middle
        except ResourceError:
            low = middle + 1
    return low


@given(SIZES, st.integers(1, 10**6), st.integers(1, 512), st.integers(0, 10**9), st.integers(0, 10**12))
def test_never_above_the_budget(users: list[int], num_items: int, dim: int, overhead: int, budget: int) -> None:
    try:
        plan = plan_training(users, num_items, dim, budget, overhead, PLENTY)
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
        assert plan_training(users, num_items, dim, budget, 0, PLENTY).peak_bytes <= budget


def test_a_refusal_has_the_numbers_and_the_way_out() -> None:
    with pytest.raises(ResourceError, match=r"needs 143\.9 MB.*50,000 users.*budget is 100\.0 MB.*--host-memory"):
        plan_training([50_000] * 8, 10_000, 128, 10**8, 50 * 10**6, PLENTY)
    with pytest.raises(ResourceError, match=r"of disk and 1\.0 MB are free"):
        plan_training([50_000] * 8, 1000, 128, 10**12, 0, 10**6)


@pytest.mark.parametrize(
    ("text", "expected"), [("4GB", 4 * 10**9), ("512MiB", 2**29), ("1.5 kb", 1500), ("7", 7), ("12G", 12 * 10**9)]
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-4GB", "4 elephants", "1e9", "four"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="write for instance 4GB"):
        parse_bytes(text)
