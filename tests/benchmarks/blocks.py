"""The item table larger than the budget: a tenth of the largest size trained, the largest by plan.

a tenth    1 million items x 300 dimensions (1.2 GB), --host-memory 1.2GB, one epoch: `python -m surf2vec.trainer` in a process
           of its own, in a memory cgroup where one can be made, caches dropped before. Sampling and Huffman's tree have 400,000
           users of 25 Zipf tokens, the two-level tree, of which a token moves 2,000 rows, 4,000 users.
by plan    10 million items x 300, 5 million users, 12 GB on the host and on a GPU, if there is one: what `surf2vec plan` says.
           Without a trail: its item table is never divided, and alone would need 23 GB.

Passed: peak memory within the budget. The ratio is the peak by the budget.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from surf2vec.tasks.config import ResourcesConfig
from surf2vec.tasks.training.forecast import Volume, plan_size
from surf2vec.trainer.config import TrainConfig
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import THREADS
from tests.benchmarks.swap import TOKENS_A_USER, run_alone, write_corpus

TENTH_ITEMS, DIMS, TENTH_BUDGET = 1_000_000, 300, 1_200_000_000
FASTEST = {"negative": 8}
TENTHS: dict[str, tuple[int, dict[str, Any]]] = {
    "sampling": (400_000, FASTEST),
    "Huffman": (400_000, {"hs": 1}),
    "two-level": (4_000, {"hs": 1, "tree": "two_level"}),
}
"""Users and settings of each case."""

PLANNED = Volume(users=5_000_000, items=10_000_000, tokens=5_000_000 * TOKENS_A_USER, partitions=128)
PLAN_BUDGET = 12_000_000_000
PLANS: dict[str, dict[str, Any]] = {"sampling": FASTEST, "two-level": {"hs": 1, "tree": "two_level"}}


def measure_blocks(data: Path) -> list[dict[str, Any]]:
    """All cases."""
    with tempfile.TemporaryDirectory(prefix="blocks.") as folder:
        cases = [train_tenth(Path(folder), name, *case) for name, case in TENTHS.items()]
        cases += [plan_largest(Path(folder), name, settings) for name, settings in PLANS.items()]
    return cases


def train_tenth(folder: Path, name: str, num_users: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One epoch at a tenth of the largest size, within the budget."""
    corpus_dir = folder / f"corpus-{num_users}"
    if not corpus_dir.exists():
        write_corpus(corpus_dir, num_users, TENTH_ITEMS)
    told = run_alone(
        corpus_dir, folder / "store", TENTH_BUDGET, 1, settings | {"vector_size": DIMS, "threads": THREADS}
    )
    return (
        make_case(
            f"a tenth, {name}", told["peak_bytes"] / TENTH_BUDGET, "peak <= budget", told["peak_bytes"] <= TENTH_BUDGET
        )
        | {"budget_bytes": TENTH_BUDGET, "users": num_users}
        | {"item_table_bytes": TENTH_ITEMS * (4 * DIMS + 4)}
        | {
            key: told[key]
            for key in ("peak_bytes", "blocks", "chunks", "predicted_seconds", "seconds", "stall", "cgroup")
        }
    )


def plan_largest(folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What the planner says of 10 million items x 300; trees are for the CPU."""
    device_memory = None if "hs" in settings else str(PLAN_BUDGET)
    resources = ResourcesConfig(host_memory=str(PLAN_BUDGET), device_memory=device_memory)
    config = TrainConfig(vector_size=DIMS, epochs=1, threads=THREADS, parts="interest", **settings)
    plan = plan_size(folder, PLANNED, config, resources)
    return (
        make_case(
            f"by plan, {name}", plan["peak_bytes"] / PLAN_BUDGET, "peak <= budget", plan["peak_bytes"] <= PLAN_BUDGET
        )
        | {"budget_bytes": PLAN_BUDGET, "users": PLANNED.users}
        | {"item_table_bytes": PLANNED.items * (4 * DIMS + 4), "peak_bytes": plan["peak_bytes"]}
        | {"blocks": plan["num_blocks"], "chunks": plan["num_chunks"]}
        | {"predicted_seconds": plan["seconds"], "seconds": None, "stall": None, "cgroup": "none"}
        | {"device_bytes": plan["device_bytes"]}
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_blocks, small={"TENTH_ITEMS": 2_000, "TENTHS": {"sampling": (400, FASTEST)}}))
