"""Plans of some trainings with all their numbers and reasons: `python -m tests.trainer.plan.golden_plans` writes them anew.

A difference means that the planner counts otherwise than before. Where that is wanted, write the text anew, and say why.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.plan.alone import Budget, Division, plan_training
from surf2vec.trainer.plan.prediction import Rates
from surf2vec.trainer.plan.sizes import Work, training_sizes

GOLDEN = Path(__file__).parent / "golden_plans.txt"
RATES = Rates(1e6, 5e8, 2e8)
GB, MB = 10**9, 10**6
INTEREST: dict[str, Any] = {"parts": "interest", "vector_size": 128}
CASES: dict[str, tuple[dict[str, Any], int, Budget, Division | None]] = {
    "all in memory": (INTEREST, 100_000, Budget(4 * GB, 300 * MB, 100 * GB), None),
    "both parts": ({}, 100_000, Budget(4 * GB, 300 * MB, 100 * GB), None),
    "a trail alone": ({"parts": "trail", "trail_weight": 1.0}, 100_000, Budget(4 * GB, 300 * MB, 100 * GB), None),
    "users out of core": (INTEREST, 100_000, Budget(800 * MB, 300 * MB, 100 * GB), None),
    "items in blocks": (INTEREST, 2_000_000, Budget(1600 * MB, 300 * MB, 100 * GB), None),
    "resumed in blocks": (INTEREST, 2_000_000, Budget(1800 * MB, 300 * MB, 100 * GB), Division(1, 4)),
    "resumed in blocks, all users in memory": (
        INTEREST,
        2_000_000,
        Budget(1800 * MB, 300 * MB, 100 * GB),
        Division(8, 4),
    ),
    "resumed in blocks, too small": (INTEREST, 2_000_000, Budget(900 * MB, 300 * MB, 100 * GB), Division(2, 4)),
    "on a GPU": (INTEREST, 100_000, Budget(4 * GB, 300 * MB, 100 * GB, 2 * GB), None),
    "both parts on a GPU": ({}, 100_000, Budget(4 * GB, 300 * MB, 100 * GB, 2 * GB), None),
    "a GPU too small": (INTEREST, 2_000_000, Budget(4 * GB, 300 * MB, 100 * GB, 800 * MB), None),
    "host too small": ({}, 100_000, Budget(400 * MB, 300 * MB, 100 * GB), None),
    "disk too small": (INTEREST, 100_000, Budget(4 * GB, 300 * MB, 900 * MB), None),
}
"""By name: settings, items, budgets, and the division of a training that goes on."""


def lines() -> Iterator[str]:
    """Each case: its name, then the plan's values and reasons, or the refusal."""
    users = [150_000, 120_000, 110_000, 100_000, 90_000, 80_000, 70_000, 60_000]
    work = Work(users, [25 * num for num in users], 10, 60.0)
    for name, (settings, num_items, budget, began) in CASES.items():
        yield f"== {name}"
        sizes = training_sizes(TrainConfig(**settings), num_items, None)
        try:
            plan = plan_training(work, sizes, budget, RATES, began).to_json()
        except ResourceError as error:
            yield str(error)
            continue
        reasons = plan.pop("reasons")
        yield from (f"{key}: {value}" for key, value in plan.items())
        yield from reasons


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(GOLDEN)
