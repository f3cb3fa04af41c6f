"""What the benchmark of the defaults says of a log: above every peer in hit@20 and no lower in MRR@20, or not."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.benchmarks.defaults import METRICS, Side, climb, judge, mean_side


def side(setting: str, *ranks: float) -> Side:
    values = {name: metric(np.array(ranks, dtype=float)) for name, metric in METRICS.items()}
    return Side(setting, values, seconds=1.0)


def test_reciprocal_ranks_below_the_twentieth_are_zero() -> None:
    one = side("", 1, 4, 20, 20.5, 100)
    assert one.mean("hit@20") == pytest.approx(3 / 5)
    assert one.mean("MRR@20") == pytest.approx((1 + 1 / 4 + 1 / 20) / 5)


def test_each_metric_has_its_own_best_setting_and_peer() -> None:
    ours = side("", 1, 10, 10, 10)
    peers = {
        "rules": [side("wide", 20, 20, 20, 30), side("sharp", 1, 1, 30, 30)],
        "neighbours": [side("", 19, 19, 19, 30)],
    }
    case = judge("log", ours, peers)
    assert case["hit@20 ratio"] == pytest.approx(4 / 3)
    assert case["hit@20 best peer"] == "rules"
    assert case["MRR@20 ratio"] == pytest.approx(1.3 / 2)
    assert case["MRR@20 best peer"] == "rules"
    assert case["ratio"] == pytest.approx(1.3 / 2)
    assert case["passed"]  # MRR@20 is lower, but by less than two standard errors
    assert "hit@20 0.7500 (+1.0 s.e., 1.0 s, wide)" in case["rules"]
    assert "MRR@20 0.5000 (-0.7 s.e., 1.0 s, sharp)" in case["rules"]


def test_passed_is_a_hit_rate_above_all_and_reciprocal_ranks_not_clearly_below() -> None:
    assert judge("log", side("", 1, 2), {"peer": [side("", 2, 2)]})["passed"] is False  # hit@20 is level
    assert judge("log", side("", 1, 2), {"peer": [side("", 2, 21)]})["passed"]
    assert judge("log", side("", *[4] * 50), {"peer": [side("", *[2] * 49, 30)]})["passed"] is False


def test_with_several_seeds_ours_are_the_means_a_user() -> None:
    mean = mean_side([Side("", side("", 1, 30).values, 1, 3), Side("", side("", 4, 20).values, 2, 5)])
    assert mean.values["hit@20"].tolist() == [1, 0.5]
    assert mean.values["MRR@20"].tolist() == [0.625, 0.025]
    assert (mean.seconds, mean.cpu_seconds) == (1.5, 4)


def test_one_setting_after_the_other_is_tried_and_the_best_are_asked_of_all() -> None:
    hits = {(1, "a"): 1, (2, "a"): 2, (3, "a"): 0, (2, "b"): 3, (1, "b"): 4, (3, "b"): 0}
    tried, asked = [], []

    def ask(_: Any, setting: str, point: tuple[int, str], most: int = 0) -> Side:
        (tried if most else asked).append(point)
        return side(setting, *[1.0] * hits[point], *[30.0] * (5 - hits[point]))

    with patch("tests.benchmarks.defaults.ask", ask):
        found = [one.setting for one in climb(None, {"k": (1, 2, 3), "decay": ("a", "b")}, lambda *point: point)]
    assert tried == [(1, "a"), (2, "a"), (3, "a"), (2, "b"), (1, "b"), (3, "b")]  # with decay b another k is best
    assert asked == [(1, "b"), (2, "b")]
    assert found == ["k 1, decay b", "k 2, decay b"]
