"""The item table larger than the budget: 1 million items x 300 dimensions (1.2 GB) in --host-memory 1.2GB, one epoch.

`python -m surf2vec.trainer` in a process of its own, in a memory cgroup where one can be made, caches dropped before. Sampling
and Huffman's tree have 400,000 users of 25 Zipf tokens, the two-level tree, of which a token moves 2,000 rows, 4,000 users.

Passed: peak memory within the budget. The ratio is the peak by the budget.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import THREADS
from tests.benchmarks.swap import run_alone, write_corpus

TENTH_ITEMS, DIMS, TENTH_BUDGET = 1_000_000, 300, 1_200_000_000
FASTEST = {"negative": 8}
TENTHS: dict[str, tuple[int, dict[str, Any]]] = {
    "sampling": (400_000, FASTEST),
    "Huffman": (400_000, {"hs": 1}),
    "two-level": (4_000, {"hs": 1, "tree": "two_level"}),
}
"""Users and settings of each case."""


def measure_blocks(data: Path) -> list[dict[str, Any]]:
    """All cases."""
    with tempfile.TemporaryDirectory(prefix="blocks.") as folder:
        return [train_tenth(Path(folder), name, *case) for name, case in TENTHS.items()]


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


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_blocks, small={"TENTH_ITEMS": 2_000, "TENTHS": {"sampling": (400, FASTEST)}}))
