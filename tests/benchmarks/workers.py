"""Several workers beside one, as `torchrun` starts them with gloo on this machine.

wikispeedia, QUALITY_EPOCHS epochs, one thread a worker: one worker under torchrun against `python -m surf2vec.trainer`, bit for
bit; teams that train twice, bit for bit; hit@20 and MRR of the held-out users beside one worker, three seeds; a worker killed
with -9 three times.
Made-up users (NUM_USERS with 25 Zipf tokens in no order, so without a trail; NUM_ITEMS items, 128 dimensions, otherwise as
shipped): bytes that the workers counted by what the planner predicted; the balance of load; tokens per second, each side in
turn, the fastest epoch of REPEATS trainings (one with more than two workers).
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.vectors import BothParts, read_item_vectors
from tests.benchmarks.defaults import METRICS
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import find_log, make_corpus
from tests.benchmarks.peers import Vectors, answer_held_out, difference_in_errors
from tests.benchmarks.swap import write_corpus
from tests.roots.store_contents import count_differences, read_tables
from tests.servers.torchrun import make_command, run_and_kill

LOG = "wikispeedia_unfinished"
SEEDS, QUALITY_EPOCHS = (1, 2, 3), 20
MODES = ("replicated", "asynchronous", "sharded")
TEAMS = [(mode, num) for mode in MODES for num in (2, 4)]
SAME_TWICE = [("replicated", 2), ("sharded", 2), ("sharded", 4)]
KILLED_EPOCHS, KILLS, LOSS_LEEWAY = 30, 3, 0.02
NUM_USERS, NUM_ITEMS, PARTITIONS = 40_000, 20_000, 32
EPOCHS, REPEATS = 3, 2
BYTES_MARK, BALANCE_MARK = 0.05, 1.05

Told = Mapping[str, Any]
Values = dict[str, NDArray[np.float64]]


def measure_workers(data: Path) -> list[dict[str, Any]]:
    """All cases."""
    with tempfile.TemporaryDirectory(prefix="workers.") as name:
        folder = Path(name)
        corpus = make_corpus(find_log(data, LOG, folder), folder / "root")
        cases = [*compare_with_one(corpus, folder), *(kill_workers(corpus, folder, mode) for mode in MODES)]
        write_corpus(folder / "made", NUM_USERS, NUM_ITEMS, PARTITIONS)
        return cases + measure_made(open_corpus(folder / "made"), folder)


@dataclass(frozen=True)
class Team:
    """num_workers: processes under torchrun, 0: `python -m surf2vec.trainer` without it; settings: of the training."""

    num_workers: int
    settings: Mapping[str, Any]
    host_memory: str = "2GB"

    def begin(self, corpus_dir: Path, store_dir: Path) -> Job:
        """The training, whose store is empty."""
        shutil.rmtree(store_dir, ignore_errors=True)
        return Job(corpus_dir, store_dir, TrainConfig(**self.settings), 0)


def run_team(corpus_dir: Path, store_dir: Path, team: Team) -> dict[str, Any]:
    """What a training into an empty store tells of itself."""
    options = ["--standalone", "--nproc-per-node", str(team.num_workers)] if team.num_workers else []
    command = make_command(team.begin(corpus_dir, store_dir), options, team.host_memory)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"a training into {store_dir} ended with {done.returncode}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def make_team(mode: str, num_workers: int, memory: str = "2GB", **settings: Any) -> Team:
    """Return workers of one thread each; none or one: alone."""
    shared = {"sharing": mode} if mode != "alone" else {}
    return Team(num_workers, {"threads": 1, "epochs": QUALITY_EPOCHS} | shared | settings, memory)


def compare_with_one(corpus: Corpus, folder: Path) -> list[dict[str, Any]]:
    """One worker under torchrun, teams that train twice, and quality beside one worker."""
    stores = {
        (mode, num, seed): folder / f"{mode}-{num}-{seed}" for seed in SEEDS for mode, num in [("alone", 0), *TEAMS]
    }
    told = {key: run_team(corpus.folder, store, make_team(*key[:2], seed=key[2])) for key, store in stores.items()}
    first, cases = SEEDS[0], []
    for mode, num in [("alone", 0), *SAME_TWICE]:
        run_team(corpus.folder, folder / "again", make_team(mode, num or 1, seed=first))
        name = f"{num} workers, {mode}, twice" if num else "1 worker under torchrun, and without"
        compared, differing = count_differences(read_tables(folder / "again"), read_tables(stores[mode, num, first]))
        case = make_case(name, 1 - differing / compared, "0 differences", differing == 0)
        cases.append(case | {"vectors compared": compared, "differences": differing})
    values = {key: ask(corpus, store) for key, store in stores.items()}
    sharded = [num for mode, num in TEAMS if mode == "sharded"]
    cases += [judge_quality(values, mode, num) for mode, num in TEAMS]
    return cases + [balance(told["sharded", num, first], f"wikispeedia, {num}") for num in sharded]


def kill_workers(corpus: Corpus, folder: Path, mode: str) -> dict[str, Any]:
    """Two workers that share in one way, one of them killed again and again, beside undisturbed ones."""
    here = make_team(mode, 2, epochs=KILLED_EPOCHS, commit_seconds=0.2)
    beside = run_team(corpus.folder, folder / f"undisturbed-{mode}", here)
    killed = run_and_kill(here.begin(corpus.folder, folder / f"killed-{mode}"), here.num_workers, KILLS)
    tables = [read_tables(folder / f"{name}-{mode}") for name in ("killed", "undisturbed")]
    compared, differing = count_differences(*tables)
    loss, is_same = killed["heldout_loss"] / beside["heldout_loss"], mode == "sharded"
    passed = differing == 0 if is_same else loss <= 1 + LOSS_LEEWAY
    mark = "0 differences" if is_same else f"held-out loss <= {1 + LOSS_LEEWAY} x undisturbed"
    figures = {"kills": KILLS, "processes": killed["num_processes"], "vectors compared": compared}
    losses = {"held-out loss": killed["heldout_loss"], "undisturbed": beside["heldout_loss"]}
    return make_case(f"kill -9 of a worker, {mode}", loss, mark, passed) | figures | {"differences": differing} | losses


def ask(corpus: Corpus, store: Path) -> Values:
    """Return the metrics of the held-out users, a value per user."""
    generation = open_generation(store)
    both = BothParts(generation, corpus)
    users = np.concatenate([both.read_users(p) for p in range(corpus.num_partitions)])
    ranks = answer_held_out(corpus, Vectors(users, read_item_vectors(generation), 0.0)).ranks
    return {metric: of(ranks) for metric, of in METRICS.items()}


def judge_quality(values: Mapping[tuple[str, int, int], Values], mode: str, num_workers: int) -> dict[str, Any]:
    """A team beside one worker: the mean over seeds is to be no lower than by what one worker's seeds differ."""
    figures: dict[str, Any] = {}
    ratios, passed = [], True
    for metric in METRICS:
        ours = np.array([values[mode, num_workers, seed][metric] for seed in SEEDS])
        beside = np.array([values["alone", 0, seed][metric] for seed in SEEDS])
        spread = float(np.ptp(beside.mean(axis=1)))
        ratios.append(float(ours.mean() / beside.mean()))
        passed = passed and float(ours.mean() - beside.mean()) >= -spread
        figures |= {metric: float(ours.mean()), f"{metric}, 1 worker": float(beside.mean())}
        errors = difference_in_errors(ours.ravel(), beside.ravel())
        figures |= {f"{metric}, spread": spread, f"{metric}, standard errors": errors}
    mark = "no lower than by the spread of one worker's seeds"
    return make_case(f"quality, {num_workers} workers, {mode}", min(ratios), mark, passed) | figures


def balance(told: Told, case: str, weights: tuple[float, ...] = ()) -> dict[str, Any]:
    """The largest worker's tokens over what its share of them is; weights: the workers', unless equal."""
    tokens = np.array([load["tokens"] for load in told["workers"]])
    wanted = np.array(weights or [1.0] * len(tokens))
    ratio = float((tokens / tokens.sum() * wanted.sum() / wanted).max())
    figures = {"tokens of each": ", ".join(f"{number:,.0f}" for number in tokens)}
    return make_case(f"balance, {case} workers", ratio, f"<= {BALANCE_MARK}", ratio <= BALANCE_MARK) | figures


def measure_made(corpus: Corpus, folder: Path) -> list[dict[str, Any]]:
    """Bytes, balance and speed, on made-up users."""
    teams = {
        "1 worker": make_team("alone", 0, epochs=EPOCHS),
        "1 worker, 2 threads": make_team("alone", 0, epochs=EPOCHS, threads=2),
    }
    teams |= {f"{num} workers, {mode}": make_team(mode, num, epochs=EPOCHS) for mode, num in TEAMS}
    runs: dict[str, list[Told]] = {side: [] for side in teams}
    for repeat in range(REPEATS):
        for side, team in teams.items():
            if repeat == 0 or team.num_workers <= 2:
                runs[side].append(run_team(corpus.folder, folder / "store", team))
    best = {side: min(map(epoch_seconds, told)) for side, told in runs.items()}
    unequal = run_team(corpus.folder, folder / "unequal", make_team("replicated", 2, "2GB,1GB", epochs=1))
    num_tokens = float(corpus.tokens.sum())
    return [
        *(compare_bytes(side, told[0]) for side, told in runs.items() if told[0].get("workers")),
        *(balance(told[0], f"made-up users, {side}") for side, told in runs.items() if "sharded" in side),
        balance(unequal, "2 GB and 1 GB:", (2.0, 1.0)),
        *(
            make_case(f"speed, {side}", best["1 worker"] / seconds)
            | {"tokens per second": num_tokens / seconds, "epoch, seconds": seconds}
            for side, seconds in best.items()
        ),
    ]


def epoch_seconds(told: Told) -> float:
    """Of the fastest epoch: the others were disturbed."""
    ends = {point["epoch"]: point["seconds"] for point in told["curve"]} | {0: 0.0}
    return min(ends[n] - ends[n - 1] for n in range(1, EPOCHS + 1))


def compare_bytes(side: str, told: Told) -> dict[str, Any]:
    """Bytes of all workers, as they counted them, beside what the planner predicted."""
    predicted = told["plan"]["sent_bytes"] * len(told["workers"])
    counted = sum(load["passed_bytes"] + load["summed_bytes"] for load in told["workers"])
    ratio = counted / predicted
    passed = abs(ratio - 1) <= BYTES_MARK
    case = make_case(f"bytes, {side}", ratio, f"within {BYTES_MARK:.0%} of predicted", passed)
    return case | {"predicted": predicted, "counted": counted}


if __name__ == "__main__":
    small = {"SEEDS": (1,), "TEAMS": [("sharded", 2)], "SAME_TWICE": [], "MODES": (), "REPEATS": 1, "NUM_USERS": 2_000}
    sys.exit(run_benchmark(measure_workers, small=small | {"QUALITY_EPOCHS": 2}))
