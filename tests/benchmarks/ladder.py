"""The ladder: from a plain PyTorch loop to the whole trainer, a step a rung, in seconds to the same held-out quality and memory.

One log (people walking through Wikipedia), one split, one objective: PV-DBOW of 128 dimensions by sampled softmax with 20 drawn
items. Each rung adds one thing to the one before, and is a process of its own, with two cores.

    quality    hit@20 of the held-out next item, of all users; TARGET is 1.7 x what popularity reaches there, above gensim
               (.15) and BPR (.18). Every rung has to end at or above it, by one function
    seconds    of training and the rung's own evaluations until its model is in hand. Nobody knows beforehand how many epochs
               that takes: rungs before "the trainer" train EPOCHS, as the trainer does by default, and evaluate after
               each; later ones end when the held-out loss rises. "first" is the first evaluation at or above TARGET.
               Imports, compiling and reading of files are not in it. A rung is stopped at LIMIT_SECONDS, at an epoch's end
    memory     the most anonymous and shared memory of all the rung's processes together, looked at every 50 ms

Up to "shared negatives" it is PyTorch's loop, from "the trainer" on `python -m surf2vec.trainer` as it is. The loops evaluate all
users and items after each epoch, with autograd's graph; the trainer's own held-out loss of a fixed sample suffices. Where there
is a GPU, all rungs run on it, too. Short rungs are run with three seeds: the median. Rungs do not take turns, so a busy machine
misleads: "cores of others" were kept from a rung meanwhile.
"""

import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.ladder_rungs import RUNGS, Ground, Outcome, Rung, lay_ground
from tests.benchmarks.logs import find_log, make_corpus

LOG = "wikispeedia_unfinished"
TARGET = 0.25
EPOCHS, LIMIT_SECONDS = 20, 120.0
SEEDS = (1, 2, 3)


def measure_ladder(data: Path) -> list[dict[str, Any]]:
    """A case a rung, on the CPU and on a GPU where there is one."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    cases = []
    with tempfile.TemporaryDirectory(prefix="ladder.") as folder:
        corpus = make_corpus(find_log(data, LOG, Path(folder)), Path(folder) / "root")
        for device in devices:
            ground = lay_ground(corpus, Path(folder) / device, EPOCHS, LIMIT_SECONDS, device)
            cases += climb(RUNGS, ground, TARGET)
    return cases


def climb(rungs: Sequence[Rung], ground: Ground, target: float) -> list[dict[str, Any]]:
    """The cases of one device, in order."""
    outcomes = [run_rung(rung, ground) for rung in rungs]
    return [show_rung(rung, ground.device, outcomes[: ix + 1], target) for ix, rung in enumerate(rungs)]


def run_rung(rung: Rung, ground: Ground) -> Outcome:
    """The run of median seconds, with the highest peak and the lowest quality of all runs."""
    runs = [rung.run(ground, seed) for seed in (SEEDS if rung.is_quick else SEEDS[:1])]
    middle = statistics.median_low(run.seconds for run in runs)
    return dataclasses.replace(
        next(run for run in runs if run.seconds == middle),
        peak_bytes=max(run.peak_bytes for run in runs),
        hit_at_20=min(run.hit_at_20 for run in runs),
    )


def show_rung(rung: Rung, device: str, outcomes: Sequence[Outcome], target: float) -> dict[str, Any]:
    """The case of the last of these outcomes, beside the one before and the first."""
    first, before, own = outcomes[0], outcomes[max(len(outcomes) - 2, 0)], outcomes[-1]
    gain = None if len(outcomes) == 1 else gain_of(before, own)
    return (
        make_case(
            f"{device} {len(outcomes)} {rung.step}",
            first.seconds / own.seconds,
            f"hit@20 >= {target:g}",
            own.hit_at_20 >= target,
        )
        | {"seconds": own.seconds, "stopped": own.is_stopped, "over the one before": gain}
        | {"first at quality": own.first_seconds(target), "epochs": own.epochs}
        | {"an evaluation": own.evaluating_seconds / own.epochs, "peak MB": own.peak_bytes / 1e6}
        | {"device MB": own.device_bytes / 1e6 or None, "hit@20": own.hit_at_20}
        | {"cores of others": own.busy_cores}
    )


def gain_of(before: Outcome, own: Outcome) -> float | None:
    """How many times as fast; at least that, where the one before was stopped; None where this one was: nobody knows."""
    return None if own.is_stopped else before.seconds / own.seconds


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_ladder, small={"EPOCHS": 1, "SEEDS": (1,), "RUNGS": RUNGS[1:3]}))
