"""Full softmax by hand beside torch's autograd, and the comparison of losses and of seconds on literal figures."""

import numpy as np
import pytest
import torch

from surf2vec.trainer.model.rows import EPSILON
from tests.benchmarks.tree import FullSoftmax, Trained, alike_batches, judge_loss, zipf_counts

ROWS, CLASSES = torch.tensor([2, 0]), torch.tensor([1, 3])


@pytest.mark.parametrize("is_adagrad", [False, True])
def test_a_step_of_full_softmax_follows_the_gradient(is_adagrad: bool) -> None:
    rng = np.random.default_rng(1)
    full = FullSoftmax(rng.normal(size=(3, 5)).astype(np.float32), 4, is_adagrad, l2=0.5)
    full.classes = torch.from_numpy(rng.normal(size=(4, 5)).astype(np.float32))
    users, classes = full.users.clone().requires_grad_(), full.classes.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(users[ROWS] @ classes.T, CLASSES, reduction="sum")
    (loss + 0.25 * users[ROWS].square().sum()).backward()
    expected = []
    for table in (users, classes):
        assert table.grad is not None
        rates = torch.full((len(table),), 0.1)
        if is_adagrad:
            rates = 0.1 / torch.sqrt(table.grad.square().mean(dim=1) + EPSILON)
        expected.append((table - rates[:, None] * table.grad).detach())
    full.step(ROWS, CLASSES, alpha=0.1)
    torch.testing.assert_close(full.users, expected[0])
    torch.testing.assert_close(full.classes, expected[1])


def test_losses_are_those_of_log_softmax() -> None:
    full = FullSoftmax(np.eye(2, dtype=np.float32), 2, is_adagrad=False, l2=0)
    full.classes = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    losses = full.losses(np.array([0, 1]), np.array([0, 0]))
    assert losses == pytest.approx([np.log(1 + np.exp(-1)), np.log(2)])


def test_a_tree_is_judged_at_equal_loss() -> None:
    full = Trained(np.array([[3.0, 3.0], [2.0, 2.0], [1.0, 1.0]]), [10.0, 10.0, 10.0])
    tree = Trained(np.array([[2.5, 2.5], [2.0, 2.4], [2.4, 2.6]]), [0.5, 0.5, 0.5])
    case = judge_loss(tree, full, has_mark=False)
    assert case["loss"] == pytest.approx(2.2)
    assert case["epochs"] == 2
    assert case["ratio"] == pytest.approx(20 / 1)  # full softmax is as low after two epochs
    assert case["loss above full"] == pytest.approx(1.2)
    assert case["s.e."] == pytest.approx(0.2)


def test_a_tree_that_full_softmax_never_reaches_is_held_against_all_of_its_best_training() -> None:
    full = Trained(np.array([[3.0, 3.0], [2.0, 2.0]]), [10.0, 10.0])
    case = judge_loss(Trained(np.array([[1.0, 1.0]]), [0.1]), full, has_mark=True)
    assert case["ratio"] == pytest.approx(200)
    assert case["passed"]


def test_batches_hold_every_user_once_and_ends_together() -> None:
    lengths = np.random.default_rng(1).integers(1, 50, size=1000)
    batches = list(alike_batches(lengths, np.random.default_rng(2)))
    assert sorted(np.concatenate([batch for _, batch in batches]).tolist()) == list(range(1000))
    assert [done for done, _ in batches] == [0, 0.25, 0.5, 0.75]
    assert max(np.ptp(lengths[batch]) for _, batch in batches) <= 14


def test_zipf_counts_fall_and_have_ten_a_class() -> None:
    counts = zipf_counts(1000)
    assert (np.diff(counts) <= 0).all()
    assert counts.min() >= 1
    assert counts.sum() == pytest.approx(10_000, rel=0.1)
