"""How several workers share the item table: which way, and that it fits all of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.plan.alone import Budget, Plan
from surf2vec.trainer.plan.prediction import Rates
from surf2vec.trainer.plan.sharing import Sharing, sent_by_sum, share_users
from surf2vec.trainer.plan.sizes import TRAIL_BYTES_PER_ITEM, Sizes, Work, training_sizes
from surf2vec.trainer.plan.together import SharingPlan, TeamSpec, WorkerSpec, form_team, plan_together

PLENTY = 10**15
TOKENS_A_USER = 25


def team_of(host_bytes: list[int], users: list[int], epochs: int = 2) -> TeamSpec:
    """Workers with these budgets, who share micro-partitions of so many users."""
    weights = [float(host) for host in host_bytes]
    tokens = np.array(users) * TOKENS_A_USER
    share, members = share_users(0, tokens, weights), []
    for host, own in zip(host_bytes, share.partitions, strict=True):
        work = Work([users[p] for p in own], tokens[own].tolist(), epochs, 60)
        members.append(WorkerSpec(work, Budget(host, 0, PLENTY), Rates(1e6, 1e8, 1e8)))
    return form_team(members, weights, share, TrainConfig(epochs=epochs))


def sizes_of(num_items: int, **settings: object) -> Sizes:
    config = TrainConfig(**{"parts": "interest", "vector_size": 128} | settings)  # type: ignore[arg-type]
    return training_sizes(config, num_items, None)


def test_a_small_table_is_replicated_and_a_large_one_goes_round() -> None:
    team = team_of([8 * 10**9] * 2, [50_000] * 64)
    small = plan_together(team, sizes_of(10_000))
    assert [plan.sharing.mode for plan in small] == ["replicated"] * 2
    assert "2 workers have 50.0%, 50.0% of the tokens" in small[0].reasons
    assert (
        small[0].reasons[-1].endswith("the table fits every worker, and a token costs 33 bytes to add up, at most 100")
    )
    large = plan_together(team, sizes_of(1_000_000))
    assert [plan.sharing.mode for plan in large] == ["sharded"] * 2
    assert large[0].num_blocks == 4  # blocks of 129 MB: one is passed on while another is trained
    assert "sharded: 4 item blocks" in large[0].reasons[-1]
    assert "taken because with all of it at each worker a token costs 3,302 bytes to add up" in large[0].reasons[-1]
    context = plan_together(team_of([16 * 10**9] * 2, [50_000] * 64), sizes_of(1_000_000, dm=1))
    assert context[0].sharing.mode == "asynchronous"
    assert context[0].sharing.staleness == 2
    assert "taken because the table cannot be divided" in context[0].reasons[-1]


def test_with_gpus_a_table_goes_round_only_where_it_does_not_fit_them() -> None:
    """Sharding would bring all users to the GPU once for each block."""
    for device_bytes, mode in ((8 * 10**9, "replicated"), (3 * 10**9, "sharded")):
        team = team_of([32 * 10**9] * 2, [50_000] * 64)
        members = [replace(one, budget=replace(one.budget, device_bytes=device_bytes)) for one in team.members]
        plans = plan_together(replace(team, members=members), sizes_of(2_000_000))
        assert [plan.sharing.mode for plan in plans] == [mode] * 2
        assert ("fits every GPU" if mode == "replicated" else "does not fit every worker") in plans[0].reasons[-1]


def test_gpus_train_the_trail_where_it_fits_each_of_them() -> None:
    """Its tables and two copies of them, for sums: 2 million rows of 260 B, three times. Otherwise the CPUs of all train it."""
    sizes = sizes_of(1_000_000, parts="both")
    team = team_of([32 * 10**9] * 2, [50_000] * 64)

    def plans_for(*device_bytes: int) -> list[Plan]:
        budgets = [replace(one.budget, device_bytes=each) for one, each in zip(team.members, device_bytes, strict=True)]
        members = [replace(one, budget=budget) for one, budget in zip(team.members, budgets, strict=True)]
        return plan_together(replace(team, members=members), sizes)

    both, one = plans_for(4 * 10**9, 4 * 10**9), plans_for(4 * 10**9, 2 * 10**9)
    assert [plan.trail_on_device for plan in both + one] == [True, True, False, False]
    assert 3 * 520 * 10**6 < both[0].device_bytes - one[0].device_bytes < 3.1 * 520 * 10**6
    assert any("both do not fit the GPU of every worker" in line for line in one[0].reasons)
    assert any("as both would need" in line for line in one[1].reasons)


def test_copies_of_the_trail_for_sums_are_counted_however_items_are_shared() -> None:
    """Its table, a copy for a commit, the last state, and changes: of each of three."""
    for sharing, num_images in (("replicated", 4), ("sharded", 4), ("asynchronous", 2 + 1 + 2 * 3)):
        sizes = sizes_of(100_000, parts="both", sharing=sharing)
        plan = plan_together(team_of([8 * 10**9] * 2, [1000] * 8), sizes)[0]
        beside = replace(sizes, trail_bytes=0)
        without = plan_together(team_of([8 * 10**9] * 2, [1000] * 8), beside)[0]
        tables_bytes = TRAIL_BYTES_PER_ITEM * 100_000
        assert plan.item_bytes - without.item_bytes == num_images * 2 * 100_000 * 260 + tables_bytes


def test_a_table_that_fits_no_worker_fits_all_together() -> None:
    """10 million items at 128 dimensions take 5.2 GB; each of eight workers has 4 GB."""
    users = [50_000] * 128
    with pytest.raises(ResourceError, match="8 workers, replicated: the smallest plan needs"):
        plan_together(team_of([4 * 10**9] * 8, users), sizes_of(10**7, sharing="replicated"))
    plans = plan_together(team_of([4 * 10**9] * 8, users), sizes_of(10**7))
    assert {plan.sharing.mode for plan in plans} == {"sharded"}
    assert max(plan.peak_bytes for plan in plans) <= 4 * 10**9
    with pytest.raises(ResourceError, match="2 workers, sharded: the smallest plan needs .* raise --host-memory"):
        plan_together(team_of([10**9] * 2, users), sizes_of(10**7, sharing="sharded"))


def test_the_disk_has_to_hold_the_users_of_all_and_the_first_worker_writes_the_items() -> None:
    team, sizes = team_of([8 * 10**9] * 2, [50_000] * 64), sizes_of(10_000)
    plans = plan_together(team, sizes)
    both_bytes = 2 * (64 * 50_000 + 10_000) * 516
    assert [plan.disk_bytes for plan in plans] == [both_bytes] * 2
    assert plans[0].written_bytes - plans[1].written_bytes == 10_000 * 516 * plans[0].num_commits
    members = [replace(one, budget=replace(one.budget, disk_free_bytes=both_bytes - 1)) for one in team.members]
    with pytest.raises(
        ResourceError, match=r"two generations need 3\.312720000 GB of disk and 3\.312719999 GB are free"
    ):
        plan_together(replace(team, members=members), sizes)
    sharded = plan_together(team, sizes_of(10_000, sharing="sharded"))
    assert sharded[0].written_bytes == sharded[1].written_bytes


def test_what_cannot_be_divided_is_not_sharded() -> None:
    with pytest.raises(ConfigError, match="sharing is sharded, but with train.dm"):
        plan_together(team_of([10**9] * 2, [1000] * 8), sizes_of(1000, sharing="sharded", dm=1))


def test_unequal_devices_have_unequal_shares_and_chunks_of_as_many_places() -> None:
    """Neither has room for all its users."""
    plans = plan_together(team_of([400 * 10**6, 200 * 10**6], [20_000] * 96), sizes_of(10_000, sharing="sharded"))
    assert [plan.num_partitions for plan in plans] == [64, 32]
    assert plans[0].chunk_places == plans[1].chunk_places
    assert all(plan.num_chunks > 1 for plan in plans)
    for plan, budget in zip(plans, (400 * 10**6, 200 * 10**6), strict=True):
        assert plan.peak_bytes <= budget


@given(
    st.integers(2, 5), st.integers(8, 40), st.integers(10**8, 10**10), st.integers(1, 10**6), st.sampled_from(
        ["auto", "replicated", "asynchronous", "sharded"]
    )
)  # fmt: skip
def test_never_above_a_budget(num_workers: int, num_partitions: int, host: int, num_items: int, sharing: str) -> None:
    team = team_of([host] * num_workers, [5000] * num_partitions)
    try:
        plans = plan_together(team, sizes_of(num_items, sharing=sharing))
    except ResourceError:
        return
    assert all(plan.peak_bytes <= host for plan in plans)
    assert len({(plan.num_blocks, plan.chunk_places, plan.sharing) for plan in plans}) == 1
    assert plans[0].num_blocks % num_workers == 0 or not plans[0].sharing.is_sharded


def test_a_training_goes_on_as_it_began() -> None:
    sizes = sizes_of(100_000)
    team = team_of([8 * 10**9] * 2, [1000] * 8)
    began = SharingPlan(Sharing("sharded", (1.0, 1.0), 500.0), 6, 2)
    plans = plan_together(team, sizes, began)
    assert plans[0].sharing == began.sharing
    assert (plans[0].num_blocks, plans[0].chunk_places) == (6, 2)
    assert plans[0].reasons[-1].endswith("taken because this training began so")
    tight = team_of([60 * 10**6] * 2, [1000] * 8)
    with pytest.raises(ResourceError, match="began with 2 workers, sharded, in 6 item blocks"):
        plan_together(tight, sizes, replace(began, chunk_places=4))


def test_bytes_on_the_wire() -> None:
    assert sent_by_sum(1000, 2) == 1000
    assert sent_by_sum(1000, 4) == 1500
