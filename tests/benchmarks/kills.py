"""`kill -9` of whole commands at random moments: the process tree, or the main process alone; then the same command again.

What comes of it is compared with the undisturbed command in the same world: bytes, vectors, aliases and records. No process may
be left, and no temporary file or folder that is older than the command that went on (tests/faults/command_kills.py).

    python -m tests.benchmarks.kills [--moments 100] [--only NAME] [--seed 1]

--only: one command, with all the moments. Equal seeds draw the same shares of an undisturbed run's seconds.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import make_case, run_benchmark
from tests.faults.command_kills import COMMANDS, try_kills

SHARES = {"run": 0.08, "backfill": 0.04}
"""The share of the moments of the commands that take minutes; the others have the rest, equally."""


def measure_kills(data: Path, moments: int = 100, seed: int = 1, only: str = "") -> list[dict[str, Any]]:
    """A case for each command."""
    rest = (1 - sum(SHARES.values())) / (len(COMMANDS) - len(SHARES))
    shares = {only: 1.0} if only else {name: SHARES.get(name, rest) for name in COMMANDS}
    memory = Path("/dev/shm")
    cases = []
    for name, share in shares.items():
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            tally = try_kills(name, max(2, round(share * moments)), seed, Path(folder))
        print(f"{name}: {tally}", file=sys.stderr, flush=True)
        figures = {key: round(value, 1) for key, value in vars(tally).items() if key != "faults"}
        cases.append(
            make_case(name, 1.0 if not tally.faults else 0.0, "0 faults", not tally.faults)
            | figures
            | {"faults": len(tally.faults), "seed": seed}
        )
    return cases


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_kills, small={"moments": 1, "only": "rollback"}))
