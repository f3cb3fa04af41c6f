"""One behaviour suite for every kernel, and each kernel against the reference."""

import dataclasses

import numpy as np
import pytest
import torch

from trainer.draws import epoch_key, initial_vectors
from trainer.kernels import pick_kernel
from trainer.kernels.signature import Pass
from trainer.objectives import make_sampling

KERNELS = ["reference", "cpu"]


def make_work(num_users: int, num_items: int, seed: int = 0, sample: float = 0.0, negative: int = 5) -> Pass:
    """Random histories; repeated items and empty histories among them."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 12, num_users)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    tokens = np.minimum(rng.zipf(1.3, offsets[-1]) - 1, num_items - 1).astype(np.int32)
    return Pass(
        tokens=tokens, starts=offsets[:-1], ends=offsets[1:], hashes=rng.integers(0, 2**63, num_users).astype(np.uint64),
        order=rng.permutation(num_users), alphas=np.full(num_users, 0.05, np.float32),
        sampling=make_sampling(np.bincount(tokens, minlength=num_items), 0.75, sample),
        epoch_key=epoch_key(1, 0), negative=negative, threads=1,
    )  # fmt: skip


def make_tables(work: Pass, num_items: int, dims: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    users = initial_vectors(1, work.hashes, dims) * np.float32(dims)
    return users, rng.normal(0, 0.3, (num_items, dims)).astype(np.float32)


@pytest.mark.parametrize(("num_users", "num_items", "dims"), [(1, 1, 1), (63, 100, 60), (100, 63, 33), (200, 5, 128)])
@pytest.mark.parametrize("sample", [0.0, 0.01])
def test_cpu_does_what_the_reference_does(num_users: int, num_items: int, dims: int, sample: float) -> None:
    work = make_work(num_users, num_items, sample=sample)
    users, items = make_tables(work, num_items, dims)
    expected_users, expected_items = users.copy(), items.copy()
    expected = pick_kernel("reference").train_users(expected_users, expected_items, work)
    assert pick_kernel("cpu").train_users(users, items, work) == expected
    np.testing.assert_allclose(users, expected_users, atol=1e-5)
    np.testing.assert_allclose(items, expected_items, atol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_a_step_is_the_gradient_of_the_loss(name: str) -> None:
    """One user with one token and no negatives drawn twice: the change is -alpha times autograd's gradient."""
    work = make_work(1, 50, negative=1)
    work = dataclasses.replace(
        work, tokens=np.array([3], np.int32), starts=np.array([0]), ends=np.array([1]), order=np.array([0]),
        alphas=np.array([0.01], np.float32), sampling=make_sampling(np.ones(50, np.int64), 0.0, 0.0),
    )  # fmt: skip
    users, items = make_tables(work, 50, 16)
    new_users, new_items = users.copy(), items.copy()
    pick_kernel(name).train_users(new_users, new_items, work)
    changed = np.flatnonzero((new_items != items).any(axis=1))
    assert len(changed) == 2
    assert 3 in changed
    negative = int(changed[changed != 3][0])
    u, v = torch.tensor(users[0], requires_grad=True), torch.tensor(items, requires_grad=True)
    loss = -torch.nn.functional.logsigmoid(u @ v[3]) - torch.nn.functional.logsigmoid(-(u @ v[negative]))
    loss.backward()
    assert u.grad is not None
    assert v.grad is not None
    np.testing.assert_allclose(new_users[0] - users[0], -0.01 * u.grad.numpy(), atol=1e-6)
    np.testing.assert_allclose(new_items - items, -0.01 * v.grad.numpy(), atol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_only_the_users_in_the_order_change(name: str) -> None:
    work = dataclasses.replace(make_work(20, 30), order=np.array([4, 7]), alphas=np.full(2, 0.05, np.float32))
    users, items = make_tables(work, 30, 8)
    before = users.copy()
    users[[0, 19]] = np.nan  # poison: rows that nobody may read
    pick_kernel(name).train_users(users, items, work)
    untouched = [row for row in range(1, 19) if row not in (4, 7)]
    np.testing.assert_array_equal(users[untouched], before[untouched])
    assert np.isfinite(items).all()


@pytest.mark.parametrize("name", KERNELS)
def test_frozen_items_do_not_change(name: str) -> None:
    work = dataclasses.replace(make_work(20, 30), update_items=False)
    users, items = make_tables(work, 30, 8)
    before_users, before_items = users.copy(), items.copy()
    pick_kernel(name).train_users(users, items, work)
    np.testing.assert_array_equal(items, before_items)
    assert not np.array_equal(users, before_users)


@pytest.mark.parametrize("name", KERNELS)
def test_the_same_call_gives_the_same_bits(name: str) -> None:
    work = make_work(50, 30)
    results = []
    for _ in range(2):
        users, items = make_tables(work, 30, 24)
        pick_kernel(name).train_users(users, items, work)
        results.append((users, items))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


@pytest.mark.parametrize("name", KERNELS)
def test_one_item_has_no_negatives(name: str) -> None:
    work = make_work(3, 1)
    users, items = make_tables(work, 1, 4)
    pick_kernel(name).train_users(users, items, work)
    assert np.isfinite(users).all()
    assert np.isfinite(items).all()
