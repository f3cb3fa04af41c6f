"""The rules of the gate, which decide whether tonight's release may serve. Pure functions.

Challenger and champion rank the same held-out events, which neither has seen. A paired bootstrap over users judges the
difference of two shares, so that a night is held only if it is worse by more than noise. A rule without data (a first night, a
log without times) gives a reason and holds nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
NO_CHAMPION = "there is no champion"


@dataclass(frozen=True)
class Rule:
    """A limit of a figure: a minimum if `is_floor`, else a maximum. form: the format specification of its figures."""

    name: str
    description: str
    limit: float
    is_floor: bool = True
    form: str = ".2f"

    def show(self, value: float) -> str:
        """Return a figure of this rule as text: 0.98, 97.3 %."""
        return format(value, self.form).replace("%", " %")


@dataclass(frozen=True)
class Judgement:
    """A rule's figure for tonight, or None and a reason. interval: the range of 95 % of the resamples."""

    rule: Rule
    value: float | None
    interval: tuple[float, float] | None = None
    reason: str = ""

    @property
    def holds_back(self) -> bool:
        """Whether the figure breaks the rule by more than noise: the complete interval is past the limit."""
        if self.value is None:
            return False
        low, high = self.interval or (self.value, self.value)
        return high < self.rule.limit if self.rule.is_floor else low > self.rule.limit


def compare(rule: Rule, challenger: NDArray[np.float64], champion: NDArray[np.float64], seed: int = 0) -> Judgement:
    """Return the relative difference of two means over the same users, float64[m] each, with a paired bootstrap interval.

    The judgement has no value without users, or if the champion's mean is zero.
    """
    num_users = len(champion)
    if num_users == 0 or champion.mean() == 0:
        return Judgement(rule, None, reason="no user was compared" if num_users == 0 else "the champion finds nothing")
    rng = np.random.default_rng(seed)
    ratios = np.empty(RESAMPLES)
    for resample in range(RESAMPLES):
        users = rng.integers(0, num_users, num_users)
        base = champion[users].mean()
        ratios[resample] = challenger[users].mean() / base - 1 if base > 0 else 0.0
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Judgement(rule, float(challenger.mean() / champion.mean() - 1), (float(low), float(high)))


def make_table(judgements: Sequence[Judgement], is_first: bool = False) -> list[dict[str, str]]:
    """Return the table of the gate: rule, figure, limit (≥: Prefect shows ">=" as a quotation), verdict, and its reason.

    The first release always serves: its broken rules get the verdict "would hold", and those that need a champion are one row.
    """
    held = "would hold" if is_first else "held"
    rows = [
        {
            "rule": judgement.rule.description,
            "tonight": _show_figure(judgement),
            "limit": f"{'≥' if judgement.rule.is_floor else '≤'} {judgement.rule.show(judgement.rule.limit)}",
            **_give_verdict(judgement, held),
        }
        for judgement in judgements
        if judgement.reason != NO_CHAMPION
    ]
    if num_left := len(judgements) - len(rows):
        rest = {"rule": f"the other {num_left} rules", "tonight": "", "limit": ""}
        rows.append(rest | {"verdict": "not checked", "reason": NO_CHAMPION})
    return rows


def _show_figure(judgement: Judgement) -> str:
    shown = "" if judgement.value is None else judgement.rule.show(judgement.value)
    if judgement.interval is None:
        return shown
    return f"{shown} ({judgement.rule.show(judgement.interval[0])} to {judgement.rule.show(judgement.interval[1])})"


def _give_verdict(judgement: Judgement, held: str) -> dict[str, str]:
    if judgement.value is None:
        return {"verdict": "not checked", "reason": judgement.reason}
    distance = judgement.value - judgement.rule.limit
    distance = distance if judgement.rule.is_floor else -distance  # negative past the limit
    if not judgement.holds_back:
        return {"verdict": "passed", "reason": "" if distance >= 0 else "within noise"}
    return {"verdict": held, "reason": f"{judgement.rule.show(abs(distance)).removeprefix('+')} past the limit"}
