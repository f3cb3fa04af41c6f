"""Several workers beside one, as `torchrun` starts them with gloo on this machine.

wikispeedia, EPOCHS epochs, one thread a worker (tests/benchmarks/workers_quality.py): one worker under torchrun against
`python -m surf2vec.trainer`, bit for bit; teams that train twice, bit for bit; hit@20 and MRR of the held-out users
beside one worker, three seeds; a worker killed with -9 three times.
Made-up users (NUM_USERS with 25 Zipf tokens in no order, so without a trail; NUM_ITEMS items, 128 dimensions, otherwise as
shipped): bytes that went over the loopback
interface, in a network namespace of its own where one can be made, by what the planner predicted and what the workers
counted, both with what tries the network; the balance of load; tokens a second, each side in turn, the fastest epoch of
REPEATS trainings (one with MOST workers).
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surf2vec.trainer.plan.sharing import sent_by_sum
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.training.preparation import NETWORK_BYTES
from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import find_log, make_corpus
from tests.benchmarks.swap import write_corpus
from tests.benchmarks.workers_quality import MODES, balance, compare_with_one, kill_workers
from tests.benchmarks.workers_runs import Team, run_team

LOG = "wikispeedia_unfinished"
NUM_USERS, NUM_ITEMS, PARTITIONS = 40_000, 20_000, 32
EPOCHS, REPEATS, MOST = 3, 2, 4
BYTES_MARK = 0.05

TRIALS = 2
"""Sums by which the planner tries the network before a training."""

Told = Mapping[str, Any]


def measure_workers(data: Path) -> list[dict[str, Any]]:
    """All cases."""
    with tempfile.TemporaryDirectory(prefix="workers.") as name:
        folder = Path(name)
        corpus = make_corpus(find_log(data, LOG, folder), folder / "root")
        cases = [*compare_with_one(corpus, folder), *kill_workers(corpus, folder)]
        write_corpus(folder / "made", NUM_USERS, NUM_ITEMS, PARTITIONS)
        return cases + measure_made(open_corpus(folder / "made"), folder)


def measure_made(corpus: Corpus, folder: Path) -> list[dict[str, Any]]:
    """Bytes, balance and speed, on made-up users."""
    runs: dict[str, list[Told]] = {}
    for repeat in range(REPEATS):
        for side, team in sides().items():
            if repeat == 0 or team.num_workers < MOST:
                runs.setdefault(side, []).append(run_team(corpus.folder, folder / "store", team))
    best = {side: min(map(epoch_seconds, told)) for side, told in runs.items()}
    unequal = run_team(corpus.folder, folder / "unequal", made_team(2, "replicated", host_memory="2GB,1GB", epochs=1))
    return [
        *(compare_bytes(side, told[0]) for side, told in runs.items() if told[0].get("workers")),
        *(balance(corpus, runs[f"{num} workers, sharded"][0], f"made-up users, {num}") for num in (2, MOST)),
        balance(corpus, unequal, "2 GB and 1 GB:", (2.0, 1.0)),
        *(show_speed(corpus, side, best) for side in best),
    ]


def sides() -> dict[str, Team]:
    """What trains."""
    named = {"1 worker": made_team(0), "1 worker, 2 threads": made_team(0, threads=2)}
    return named | {f"{num} workers, {mode}": made_team(num, mode) for num in (2, MOST) for mode in MODES}


def made_team(num_workers: int, mode: str = "", host_memory: str = "2GB", **settings: Any) -> Team:
    """A team for made-up users."""
    sharing = {"sharing": mode} if mode else {}
    return Team(num_workers, {"threads": 1, "epochs": EPOCHS} | sharing | settings, host_memory)


def epoch_seconds(told: Told) -> float:
    """Of the fastest epoch: the others were disturbed."""
    ends = {point["epoch"]: point["seconds"] for point in told["curve"]} | {0: 0.0}
    return min(ends[n] - ends[n - 1] for n in range(1, EPOCHS + 1))


def compare_bytes(side: str, told: Told) -> dict[str, Any]:
    """Bytes of all workers: on the wire, as the planner predicted, as the workers counted."""
    wire = told["wire"]["sent_bytes"]
    num_workers = len(told["workers"])
    trial = TRIALS * num_workers * sent_by_sum(NETWORK_BYTES, num_workers)
    predicted = told["plan"]["sent_bytes"] * num_workers + trial
    counted = sum(load["passed_bytes"] + load["summed_bytes"] for load in told["workers"])
    ratio = wire / predicted
    return {
        "case": f"bytes, {side}", "ratio": ratio, "mark": f"within {BYTES_MARK:.0%} of predicted",
        "passed": abs(ratio - 1) <= BYTES_MARK, "on the wire": wire, "predicted": predicted, "counted": counted + trial,
        "to try the network": trial, "wire over counted": wire / (counted + trial),
        "own namespace": told["wire"]["isolated"],
    }  # fmt: skip


def show_speed(corpus: Corpus, side: str, best: Mapping[str, float]) -> dict[str, Any]:
    """Tokens a second, as they are; the ratio is to one worker with one thread."""
    return {
        "case": f"speed, {side}", "ratio": best["1 worker"] / best[side], "mark": "none", "passed": True,
        "tokens a second": float(corpus.tokens.sum()) / best[side], "epoch, seconds": best[side],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_workers, small={"EPOCHS": 1, "REPEATS": 1, "NUM_USERS": 2_000, "MOST": 2}))
