"""What the benchmark of the defaults says of a log: above every peer in both metrics, or not."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.benchmarks.defaults import METRICS, Side, climb, judge


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
    assert not case["passed"]
    assert "hit@20 0.7500 (+1.0 s.e., 1.0 s, wide)" in case["rules"]
    assert "MRR@20 0.5000 (-0.7 s.e., 1.0 s, sharp)" in case["rules"]


def test_passed_is_above_all_and_level_is_not_above() -> None:
    ours = side("", 1, 2)
    assert judge("log", ours, {"peer": [side("", 2, 2)]})["passed"] is False  # hit@20 is level
    assert judge("log", ours, {"peer": [side("", 2, 21)]})["passed"]


def test_one_setting_after_the_other_is_chosen() -> None:
    hits = {(1, "a"): 1, (2, "a"): 2, (3, "a"): 0, (2, "b"): 3, (1, "b"): 4, (3, "b"): 0}

    def ask(_: Any, setting: str, point: tuple[int, str]) -> Side:
        return side(setting, *[1.0] * hits[point], *[30.0] * (5 - hits[point]))

    with patch("tests.benchmarks.defaults.ask", ask):
        asked = [one.setting for one in climb(None, {"k": (1, 2, 3), "decay": ("a", "b")}, lambda *point: point)]
    first = ["k 1, decay a", "k 2, decay a", "k 3, decay a", "k 2, decay b"]
    assert asked == [*first, "k 1, decay b", "k 3, decay b"]  # with decay b another k is best
