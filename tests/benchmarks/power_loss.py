"""Power losses at random moments of every command that writes: the disks that they may leave, each tried.

A run of each command is recorded by strace: every write, truncation, sync, rename, link and removal, of all its processes.
From that the disks are drawn that POSIX allows after a power loss (tests/faults/power_loss/losses.py). On each, `doctor` looks,
the same command runs again, and what comes of it is compared with the undisturbed run, bit for bit. It must be the same, or be
refused by name. What the command had said to be done must be there without another run.

    python -m tests.benchmarks.power_loss [--losses 10000] [--seed 1] [--only NAME] [--keep DIR]

--only: one command, with all the losses. --keep: where disks that show a fault are left. Equal seeds draw the same moments and
ways; the steps themselves depend on threads, so that a fault is best looked at in the folder of --keep.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import make_case, run_benchmark
from tests.faults.power_loss.trial import Tally, try_command

SHARES = (
    {"commit": 0.42, "ingest": 0.14, "corpus": 0.11, "export": 0.11, "push": 0.10}
    | {"repartition": 0.05, "register": 0.008, "promote": 0.008, "rollback": 0.008, "gc": 0.008}
    | {"forget": 0.008, "pull": 0.008, "restore": 0.008, "first night": 0.002, "second night": 0.002}
)
"""The share of the losses that each command gets: a commit takes a tenth of a second, a night many."""
FEWEST = 12


def measure_power_loss(
    data: Path, losses: int = 10_000, seed: int = 1, only: str = "", keep: str = ""
) -> list[dict[str, Any]]:
    """A case for each command."""
    shares = {only: 1.0} if only else SHARES
    memory = Path("/dev/shm")
    cases = []
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        for name, share in shares.items():
            world = Path(folder) / name.replace(" ", "-")
            tally = try_command(name, world, max(FEWEST, round(share * losses)), seed, Path(keep) if keep else None)
            print(f"{name}: {tally}", file=sys.stderr, flush=True)
            cases.append(describe(name, tally, seed))
    return cases


def describe(name: str, tally: Tally, seed: int) -> dict[str, Any]:
    return (
        make_case(name, 1.0 if not tally.faults else 0.0, "0 silent differences", not tally.faults)
        | {"steps": tally.steps, "losses": tally.losses, "disks": tally.disks}
        | {"same": tally.outcomes["same"], "refused": tally.outcomes["refused"]}
        | {"faults": len(tally.faults), "seconds": round(tally.seconds, 1), "seed": seed}
    )


def summarize(cases: Any) -> dict[str, Any]:
    return {name: sum(case[name] for case in cases) for name in ("losses", "disks", "same", "refused", "faults")}


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_power_loss, small={"losses": 12, "only": "commit"}, summarize=summarize))
