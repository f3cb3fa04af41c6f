"""Several workers beside one, as `torchrun` starts them with gloo on this machine, and a cost model for larger ones.

wikispeedia, EPOCHS epochs, one thread a worker (tests/benchmarks/workers_quality.py): one worker under torchrun against
`python -m surf2vec.trainer`, bit for bit; teams that train twice, bit for bit; hit@20 and MRR of the held-out users
beside one worker, three seeds; a worker killed with -9 three times.
Made-up users (NUM_USERS with 25 Zipf tokens in no order, so without a trail; NUM_ITEMS items, 128 dimensions, otherwise as
shipped): bytes that went over the loopback
interface, in a network namespace of its own where one can be made, by what the planner predicted and what the workers
counted, both with what tries the network; the balance of load; tokens a second, each side in turn, the fastest epoch of
REPEATS trainings (one with MOST workers); and the cost model (workers_cost.py), whose rates were measured on half the users
beside these trainings, and then what it predicts of machines that are not here (workers_clusters.py).
"""

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.plan.sharing import sent_by_sum
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.training.preparation import NETWORK_BYTES
from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import find_log, make_corpus
from tests.benchmarks.swap import ROW_BYTES, write_corpus
from tests.benchmarks.workers_clusters import predict_clusters
from tests.benchmarks.workers_cost import ALONE, Device, Memory, Volume, named, plan_epoch, predict_epoch
from tests.benchmarks.workers_quality import MODES, balance, compare_with_one, kill_workers
from tests.benchmarks.workers_rates import measure_here, measure_visit
from tests.benchmarks.workers_runs import Team, run_team, run_teams

LOG = "wikispeedia_unfinished"
NUM_USERS, NUM_ITEMS, PARTITIONS = 40_000, 20_000, 32
EPOCHS, REPEATS, MOST = 3, 2, 4
BYTES_MARK, MODEL_MARK = 0.05, 0.25
HOST_BYTES = 2 * 10**9

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
        write_corpus(folder / "half", NUM_USERS // 2, NUM_ITEMS, PARTITIONS)
        return cases + measure_made(open_corpus(folder / "made"), open_corpus(folder / "half"), folder)


def measure_made(corpus: Corpus, half: Corpus, folder: Path) -> list[dict[str, Any]]:
    """Bytes, balance, speed and the model, on made-up users."""
    runs: dict[str, list[Told]] = {}
    for repeat in range(REPEATS):
        for side, one in sides().items():
            where = half if one.is_half else corpus
            stores = [folder / f"store-{n}" for n in range(one.num_at_once)]
            if repeat == 0 or one.team.num_workers < MOST:
                runs.setdefault(side, []).extend(run_teams(where.folder, stores, one.team))
    best = {side: min(map(epoch_seconds, told)) for side, told in runs.items()}
    unequal = run_team(corpus.folder, folder / "unequal", made_team(2, "replicated", host_memory="2GB,1GB", epochs=1))
    return [
        *(compare_bytes(side, told[0]) for side, told in runs.items() if told[0].get("workers")),
        *(balance(corpus, runs[f"{num} workers, sharded"][0], f"made-up users, {num}") for num in (2, MOST)),
        balance(corpus, unequal, "2 GB and 1 GB:", (2.0, 1.0)),
        *(show_speed(corpus, side, best) for side in best if not side.startswith("half")),
        *check_model(corpus, half, best, folder),
        *predict_clusters(),
    ]


@dataclass(frozen=True)
class Side:
    """A team that trains made-up users, or half of them, and how many such teams do at once, each by itself."""

    team: Team
    is_half: bool = False
    num_at_once: int = 1


def sides() -> dict[str, Side]:
    """What trains. Those of half the users give the model its rates."""
    alone = made_team(0)
    named = {"half, 1 by itself": Side(alone, is_half=True), "half, 2 by themselves": Side(alone, True, 2)}
    named |= {"1 worker": Side(alone), "1 worker, 2 threads": Side(made_team(0, threads=2))}
    return named | {f"{num} workers, {mode}": Side(made_team(num, mode)) for num in (2, MOST) for mode in MODES}


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


def check_model(corpus: Corpus, half: Corpus, best: Mapping[str, float], folder: Path) -> list[dict[str, Any]]:
    """The cost model beside what was measured, with one worker and two."""
    config = TrainConfig(threads=1, parts="interest")  # as made-up users have no order
    network, touched = measure_here(2, NUM_ITEMS * ROW_BYTES, NUM_ITEMS * ROW_BYTES // 2, folder)
    visit = measure_visit(corpus, config)
    volume = Volume(corpus.users.tolist(), corpus.tokens.tolist(), corpus.num_items)
    cases = []
    for side, mode in [("1 worker", "alone"), *((f"2 workers, {mode}", mode) for mode in MODES)]:
        beside = best["half, 1 by itself" if mode == "alone" else "half, 2 by themselves"]
        device = Device(
            float(half.tokens.sum()) / beside, visit if mode == "sharded" else 0.0, touched, is_overlapped=False
        )
        planned = config if mode == "alone" else named(config, mode)
        epoch = plan_epoch(volume, 1 if mode == "alone" else 2, planned, Memory(HOST_BYTES))
        told = predict_epoch(epoch, device, ALONE if mode == "alone" else network)
        ratio = told.total / best[side]
        cases.append(
            {
                "case": f"model, {side}", "ratio": ratio, "mark": f"within {MODEL_MARK:.0%} of measured",
                "passed": abs(ratio - 1) <= MODEL_MARK, "predicted, seconds": told.total, "measured": best[side],
                "training": told.training, "summing": told.summing, "passing": told.passing, "meeting": told.meeting,
            }
        )  # fmt: skip
    return cases


if __name__ == "__main__":
    sys.exit(run_benchmark("workers", __doc__ or "", measure_workers))
