"""The losses of the curve are those that the kernels descend."""

from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.model.trees import log_probabilities
from surf2vec.trainer.training.curve import Targets, token_losses
from tests.trainer.kernels.work import make_config, make_rows, make_work


@pytest.mark.parametrize("tree", ["huffman", "two_level", "balanced"])
def test_the_loss_down_a_tree_is_the_items_log_probability(tree: str) -> None:
    config = make_config(hs=1, tree=tree, tree_branching=5)
    work = make_work(config)
    users, items = make_rows(work)
    assert work.tree is not None
    wanted = np.arange(30)
    vectors = users.vectors[:30] * 10
    found = token_losses(
        Targets(config, work.sampling, work.tree), vectors, items.outputs.vectors, wanted, wanted[:, None]
    )
    expected = log_probabilities(work.tree, items.outputs.vectors, vectors)[np.arange(30), wanted]
    np.testing.assert_allclose(found, -expected, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "rivals", "loss"),
    [
        ({"ns_exponent": 0.0, "discount": 0.0, "negative_weight": 3.0}, [1, 0], np.log(1 + 3 * np.exp(1.0 - 2.0))),
        ({"objective": "negative_sampling"}, [1], np.log1p(np.exp(-2.0)) + np.log1p(np.exp(1.0))),
    ],
)
def test_losses_by_hand(settings: dict[str, Any], rivals: list[int], loss: float) -> None:
    """Scores are 2 and 1. A rival that is the token itself does not count."""
    config, user = make_config(**settings), np.zeros((1, 19), np.float32)
    user[0, :2] = (2.0, 1.0)
    targets = Targets(config, make_work(config).sampling, None)
    found = token_losses(targets, user, np.eye(30, 19, dtype=np.float32), np.array([0]), np.array([rivals]))
    np.testing.assert_allclose(found, [loss], atol=1e-6)
