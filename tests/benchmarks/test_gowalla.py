"""Recall and NDCG on rankings that a person can work out, and the ranking that leaves the training items out."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from tests.benchmarks import gowalla
from tests.benchmarks.gowalla import judge, recall_and_ndcg, top_items
from tests.benchmarks.peers import Vectors

SECOND, THIRD = 1 / np.log2(3), 1 / np.log2(4)  # gains of a hit there; in the first place 1


def test_recall_and_ndcg() -> None:
    top = np.array([[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 3, 2], [0, 1, 2]])
    test = csr_matrix(
        [
            [0, 1, 0, 0, 0],  # the only one, in the second place
            [1, 0, 0, 1, 0],  # both, first and third
            [1, 0, 0, 0, 1],  # none
            [1, 1, 1, 1, 1],  # three of five: all that three places can hold
            [0, 0, 0, 0, 0],  # nothing to find: not asked
        ],
        dtype=np.float32,
    )
    recall, ndcg = recall_and_ndcg(top, test)
    assert recall == pytest.approx((1 + 1 + 0 + 3 / 5) / 4)
    assert ndcg == pytest.approx((SECOND + (1 + THIRD) / (1 + SECOND) + 0 + 1) / 4)


def test_training_items_do_not_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gowalla, "TOP", 2)
    monkeypatch.setattr(gowalla, "BATCH_USERS", 1)
    items = np.array([[1], [2], [3], [4]], dtype=np.float32)
    users = np.array([[1], [-1]], dtype=np.float32)
    training = csr_matrix(np.array([[0, 0, 1, 0], [1, 0, 0, 0]], dtype=np.float32))
    assert top_items(Vectors(users, items, 0.0), training).tolist() == [[3, 1], [1, 2]]


def test_both_metrics_have_to_reach_their_marks() -> None:
    assert judge(64, "", (0.19, 0.16))["passed"]
    missed = judge(256, "", (0.39, 0.1485))
    assert not missed["passed"]
    assert missed["ratio"] == pytest.approx(0.9)
