"""What several workers learn on a real log beside one worker: the same bits where that is promised, quality everywhere else."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.training.vectors import BothParts, read_item_vectors
from tests.benchmarks.defaults import METRICS
from tests.benchmarks.peers import Vectors, answer_held_out, difference_in_errors
from tests.benchmarks.workers_runs import Team, run_killed, run_team
from tests.roots.store_contents import count_differences, read_tables
from tests.trainer.training.test_item_blocks import block_loads

SEEDS = (1, 2, 3)
MODES = ("replicated", "asynchronous", "sharded")
EPOCHS = 20
TEAMS = [(mode, num) for mode in MODES for num in (2, 4)]
SAME_TWICE = (("replicated", 2), ("sharded", 2), ("sharded", 4))
KILLED_EPOCHS, KILLS, LOSS_LEEWAY = 30, 3, 0.02
SETTINGS: dict[str, Any] = {"threads": 1, "epochs": EPOCHS}

Values = dict[str, NDArray[np.float64]]


def compare_with_one(corpus: Corpus, folder: Path) -> list[dict[str, Any]]:
    """One worker under torchrun, teams that train twice, and quality beside one worker."""
    cases: list[dict[str, Any]] = []
    told: dict[tuple[str, int, int], dict[str, Any]] = {}
    for seed in SEEDS:
        for mode, num in [("alone", 0), *TEAMS]:
            told[mode, num, seed] = run_team(corpus.folder, folder / name(mode, num, seed), team(mode, num, seed=seed))
    first = SEEDS[0]
    run_team(corpus.folder, folder / "one", team("alone", 1, seed=first))
    cases.append(same_bits("1 worker under torchrun, and without", folder / "one", folder / name("alone", 0, first)))
    for mode, num in SAME_TWICE:
        run_team(corpus.folder, folder / "again", team(mode, num, seed=first))
        cases.append(same_bits(f"{num} workers, {mode}, twice", folder / "again", folder / name(mode, num, first)))
    values = {key: ask(corpus, folder / name(*key)) for key in told}
    cases += [judge_quality(values, mode, num) for mode, num in TEAMS]
    return [*cases, *(balance(corpus, told["sharded", num, first], f"wikispeedia, {num}") for num in (2, 4))]


def kill_workers(corpus: Corpus, folder: Path) -> list[dict[str, Any]]:
    """Two workers in each way, one of them killed again and again, beside undisturbed ones."""
    cases: list[dict[str, Any]] = []
    for mode in MODES:
        here = team(mode, 2, epochs=KILLED_EPOCHS, commit_seconds=0.2)
        beside = run_team(corpus.folder, folder / f"undisturbed-{mode}", here)
        killed = run_killed(corpus.folder, folder / f"killed-{mode}", here, KILLS, seed=len(cases))
        compared, differing = count_differences(
            read_tables(folder / f"killed-{mode}"), read_tables(folder / f"undisturbed-{mode}")
        )
        loss = killed["heldout_loss"] / beside["heldout_loss"]
        was_killed = len(killed["kills"]) == KILLS
        is_same = mode == "sharded"
        cases.append(
            {
                "case": f"kill -9 of a worker, {mode}", "ratio": loss,
                "mark": "0 differences" if is_same else f"held-out loss <= {1 + LOSS_LEEWAY} x undisturbed",
                "passed": was_killed and (differing == 0 if is_same else loss <= 1 + LOSS_LEEWAY),
                "kills": len(killed["kills"]), "processes": killed["num_processes"], "vectors compared": compared,
                "differences": differing, "held-out loss": killed["heldout_loss"], "undisturbed": beside["heldout_loss"],
            }
        )  # fmt: skip
    return cases


def team(mode: str, num_workers: int, **settings: Any) -> Team:
    """Workers that train by SETTINGS and these; none or one: alone."""
    shared = {} if mode == "alone" else {"sharing": mode}
    return Team(num_workers, SETTINGS | shared | settings)


def name(mode: str, num_workers: int, seed: int) -> str:
    """Where a team's store is."""
    return f"{mode}-{num_workers}-{seed}"


def same_bits(case: str, one: Path, other: Path) -> dict[str, Any]:
    """A case of two stores, that have to be the same to the bit: users, items, optimizer's state."""
    compared, differing = count_differences(read_tables(one), read_tables(other))
    return {
        "case": case, "ratio": 1 - differing / compared, "mark": "0 differences", "passed": differing == 0,
        "vectors compared": compared, "differences": differing,
    }  # fmt: skip


def ask(corpus: Corpus, store: Path) -> Values:
    """The metrics of the held-out users, a value a user."""
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
        difference = float(ours.mean() - beside.mean())
        ratios.append(float(ours.mean() / beside.mean()))
        passed = passed and difference >= -spread
        figures |= {
            metric: float(ours.mean()), f"{metric}, 1 worker": float(beside.mean()), f"{metric}, spread": spread,
            f"{metric}, standard errors": difference_in_errors(ours.ravel(), beside.ravel()),
        }  # fmt: skip
    return {
        "case": f"quality, {num_workers} workers, {mode}", "ratio": min(ratios),
        "mark": "no lower than by the spread of one worker's seeds", "passed": passed,
    } | figures  # fmt: skip


def balance(corpus: Corpus, told: Mapping[str, Any], case: str, weights: tuple[float, ...] = ()) -> dict[str, Any]:
    """The largest worker's tokens, and block's, over what its share of them is; weights: the workers', unless equal."""
    tokens = np.array([load["tokens"] for load in told["workers"]])
    wanted = np.array(weights or [1.0] * len(tokens))
    workers = float((tokens / tokens.sum() * wanted.sum() / wanted).max())
    config = dataclasses.replace(TrainConfig(), vector_size=1, bias=0)
    blocks = block_loads(ItemBlocks(config, corpus.count_training_tokens(), told["plan"]["num_blocks"]))
    return {
        "case": f"balance, {case} workers", "ratio": workers, "mark": "<= 1.05", "passed": workers <= 1.05,
        "tokens of each": ", ".join(f"{number:,.0f}" for number in tokens), "blocks": len(blocks),
        "largest block over mean": float(blocks.max() / blocks.mean()),
    }  # fmt: skip
