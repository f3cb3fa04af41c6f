"""The gate's rules: literal verdicts, and that chance alone holds nothing back."""

import numpy as np
import pytest

from surf2vec.tasks.gate.rules import Judgement, Rule, compare, make_table

DROP = Rule("hit_at_10", "hit@10 beside the champion's", -0.02)
DRIFT = Rule("drift", "drift", 0.1, is_floor=False)
SHARE = Rule("mrr_at_20", "MRR@20 beside the champion's", -0.05, form="+.1%")


@pytest.mark.parametrize(
    ("judgement", "holds_back"),
    [
        (Judgement(DROP, 0.0), False), (Judgement(DROP, -0.02), False), (Judgement(DROP, -0.03), True),
        (Judgement(DROP, -0.03, (-0.05, -0.01)), False), (Judgement(DROP, -0.05, (-0.07, -0.03)), True),
        (Judgement(DROP, None), False), (Judgement(DRIFT, 0.1), False), (Judgement(DRIFT, 0.2), True),
        (Judgement(DRIFT, 0.2, (0.05, 0.3)), False),
    ],
)  # fmt: skip
def test_a_rule_holds_back_what_breaks_it_and_not_by_chance(judgement: Judgement, holds_back: bool) -> None:
    assert judgement.holds_back is holds_back


def test_the_table_says_which_rule_holds_back_and_by_how_much() -> None:
    judgements = [
        Judgement(DROP, 0.01), Judgement(DRIFT, 0.25), Judgement(DROP, None, reason="no logs"),
        Judgement(SHARE, -0.1, (-0.2, 0.0)),
    ]  # fmt: skip
    assert [judgement.rule for judgement in judgements if judgement.holds_back] == [DRIFT]
    assert make_table(judgements) == [
        {"rule": "hit@10 beside the champion's", "tonight": "0.01", "limit": "≥ -0.02", "verdict": "passed", "reason": ""},
        {"rule": "drift", "tonight": "0.25", "limit": "≤ 0.10", "verdict": "held", "reason": "0.15 past the limit"},
        {"rule": "hit@10 beside the champion's", "tonight": "", "limit": "≥ -0.02",
         "verdict": "not checked", "reason": "no logs"},
        {"rule": "MRR@20 beside the champion's", "tonight": "-10.0 % (-20.0 % to +0.0 %)", "limit": "≥ -5.0 %",
         "verdict": "passed", "reason": "within noise"},
    ]  # fmt: skip


def test_a_difference_has_an_interval_that_shrinks_with_users_and_the_same_every_time() -> None:
    rng = np.random.default_rng(1)
    widths = []
    for num_users in (500, 20_000):
        champion = (rng.random(num_users) < 0.3).astype(float)
        challenger = np.where(rng.random(num_users) < 0.1, 1 - champion, champion)
        judgement = compare(DROP, challenger, champion)
        assert judgement == compare(DROP, challenger, champion)
        assert judgement.interval is not None
        assert judgement.interval[0] < judgement.value < judgement.interval[1]
        widths.append(judgement.interval[1] - judgement.interval[0])
    assert widths[1] < widths[0] / 4


def test_the_same_answers_differ_by_nothing_and_no_answers_by_none() -> None:
    same = np.array([0.0, 1.0, 1.0])
    assert compare(DROP, same, same) == Judgement(DROP, 0.0, (0.0, 0.0))
    assert compare(DROP, np.zeros(0), np.zeros(0)) == Judgement(DROP, None, reason="no user was compared")
    assert compare(DROP, np.ones(3), np.zeros(3)) == Judgement(DROP, None, reason="the champion finds nothing")


def test_a_bad_night_is_held_back_and_an_ordinary_one_is_not() -> None:
    rng = np.random.default_rng(2)
    champion = (rng.random(5_000) < 0.3).astype(float)
    ordinary = np.where(rng.random(5_000) < 0.05, rng.random(5_000) < 0.3, champion)
    bad = champion * (rng.random(5_000) < 0.8)
    assert not compare(DROP, ordinary, champion).holds_back
    assert compare(DROP, bad, champion).holds_back
