"""What a training would take is asked by its size alone, and refused with the numbers when it cannot be."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.config import ResourcesConfig
from tasks.forecast import Volume, plan_size, spread_users, zipf_counts
from trainer.config import TrainConfig
from trainer.errors import ResourceError

CONFIG = TrainConfig(vector_size=16, epochs=2)


def test_a_small_training_stays_in_memory_and_has_its_seconds(tmp_path: Path) -> None:
    plan = plan_size(tmp_path / "not-there", Volume(1000, 100, 25_000, 8), CONFIG, ResourcesConfig())
    assert (plan["kernel"], plan["num_chunks"], plan["num_blocks"]) == ("cpu", 1, 1)
    assert plan["seconds"] > 0
    assert plan["reasons"][-1].startswith("50,000 tokens at ")
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_refused_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(
        ResourceError, match=r"10,000,000 items in 256 blocks.*budget is 100\.0 MB: raise --host-memory"
    ):
        plan_size(tmp_path, Volume(10**6, 10**7, 10**7, 16), CONFIG, ResourcesConfig(host_memory="100MB"))


@given(st.integers(1, 10**8), st.integers(0, 12))
def test_users_are_spread_and_none_is_lost(num_users: int, exponent: int) -> None:
    users = spread_users(num_users, 2**exponent)
    assert (sum(users), len(users)) == (num_users, 2**exponent)
    assert min(users) >= 0
    assert max(users) >= num_users / 2**exponent


def test_zipf_counts_fall_and_sum_up() -> None:
    counts = zipf_counts(1000, 10**6)
    assert counts.min() >= 1
    assert (counts[:-1] >= counts[1:]).all()
    assert counts.sum() == pytest.approx(10**6, rel=0.01)
