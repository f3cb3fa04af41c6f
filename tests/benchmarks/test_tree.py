"""Full softmax by hand beside torch's autograd."""

import numpy as np
import torch

from tests.benchmarks.tree import FullSoftmax

ROWS, CLASSES = torch.tensor([2, 0]), torch.tensor([1, 3])


def test_a_step_of_full_softmax_follows_the_gradient() -> None:
    rng = np.random.default_rng(1)
    full = FullSoftmax(rng.normal(size=(3, 5)).astype(np.float32), 4)
    full.classes = torch.from_numpy(rng.normal(size=(4, 5)).astype(np.float32))
    tables = full.users.clone().requires_grad_(), full.classes.clone().requires_grad_()
    torch.nn.functional.cross_entropy(tables[0][ROWS] @ tables[1].T, CLASSES, reduction="sum").backward()
    full.step(ROWS, CLASSES, alpha=0.1)
    for found, table in zip((full.users, full.classes), tables, strict=True):
        torch.testing.assert_close(found, (table - 0.1 * table.grad).detach())
