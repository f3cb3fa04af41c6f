"""The log chooses the settings of the trail, before a full training, by short trainings on a sample of its users.

Each trial trains the trail of one user in `ONE_IN`, with one setting changed, and ranks the newest new item of these users, which
its training has not seen. A value is chosen only if its hit@20 is above that of the present value by more than two standard
errors of the difference, user by user. The present values are those of the release that serves, so that chance does not change
them; a night that continues a release keeps them. All trials together take a quarter of the training's seconds or less.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.tasks.corpus.sample import write_user_sample
from surf2vec.tasks.evaluation.evaluate import LEAST_GAIN, TOP, measure_gain, rank_trained
from surf2vec.tasks.root.run import Root, open_scratch_folder
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError, TrainingError
from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.training.job import Job

VALUES: dict[str, tuple[float, ...]] = {
    "trail_l2": (0.1, 0.2),
    "trail_backward": (0.5, 0.9),
    "trail_discount": (0.1, 0.2),
}
ONE_IN = 40
MAX_USERS = 200_000
"""Users of a sample. They suffice for differences of .002; more take longer."""
MIN_ASKED = 2_000
"""Users that rank. Fewer do not distinguish a gain of .01 from chance."""
MAX_ASKED = 2_500
"""More would take more time to rank than to train."""


def try_settings(
    root: Root, job: Job, present: Generation | None, is_continued: bool, on_event: OnEvent
) -> dict[str, Any]:
    """Return the record of step "trial": the trail's settings, by name, and the trials that chose them.

    present: the generation of the release that serves; is_continued: the training continues it and keeps its settings.
    """
    corpus = open_corpus(job.corpus_dir)
    start = read_present(present.config if present else job.config)
    if is_continued or (reason := why_no_trials(job.config, corpus.num_users)):
        return {"settings": start, "reason": "as in the release that it continues" if is_continued else reason}
    with open_scratch_folder(root, "trial") as folder:
        sample = write_user_sample(corpus, share_of(corpus.num_users), MAX_ASKED, folder / "corpus")
        num_asked = sample.manifest["num_choosing"]
        if num_asked < MIN_ASKED:
            few = f"{num_asked:,} users of one in {ONE_IN} can be asked, fewer than {MIN_ASKED:,}"
            return {"settings": start, "reason": f"{few}: they do not distinguish a gain from chance"}
        log(on_event, f"trying the trail's settings on {sample.num_users:,} users, {num_asked:,} of them asked")
        trials = [start] + [start | {name: value} for name in VALUES for value in VALUES[name] if value != start[name]]
        hits: list[NDArray[np.float64] | None] = []
        for number, settings in enumerate(trials):
            config = replace(job.config, trail_weight=1.0, parts="trail", **settings)
            hits.append(find_hits(sample, folder / "store", config, job.host_memory_bytes))
            on_event("progress", {"step": "trial", "done": number + 1, "total": len(trials), "unit": "trials"})
    choice = pick_settings(trials, hits)
    for gain in choice["gains"]:
        if gain["is_chosen"]:
            text = f"the log chooses {gain['name']} {gain['value']:g} for {start[gain['name']]:g}"
            log(on_event, f"{text}: hit@{TOP} {gain['gain']:+.3f} ± {gain['standard_error']:.3f}")
    return choice | {"num_users": sample.num_users, "num_asked": num_asked}


def read_present(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that trials change, by name."""
    return {name: getattr(config, name) for name in VALUES}


def why_no_trials(config: TrainConfig, num_users: int) -> str | None:
    """Return the reason why no trial is made; None if trials are made."""
    if config.parts == "interest":
        return "vectors have no trail, so none of its settings is tried"
    if num_users < ONE_IN * MAX_ASKED:
        too_few = f"one in {ONE_IN} of {num_users:,} users does not distinguish a gain from chance"
        return f"the trail's settings are not tried: {too_few}"
    return None


def describe_plan(config: TrainConfig, num_users: int) -> str:
    """Return the line of a plan about the trials before a full training of so many users."""
    num_tried = num_users // share_of(num_users)
    return why_no_trials(config, num_users) or (
        f"before a full training the trail's settings are tried on {num_tried:,} users, for a quarter of its seconds or less"
    )


def share_of(num_users: int) -> int:
    """Return how many users there are for each one that is tried."""
    return max(ONE_IN, -(-num_users // MAX_USERS))


def find_hits(sample: Corpus, store_dir: Path, config: TrainConfig, memory_bytes: int) -> NDArray[np.float64] | None:
    """Train the sample and return whether each asked user's item is among the first TOP, float64[m].

    None if the training diverged or does not fit into memory.
    """
    try:
        return (rank_trained(sample, store_dir, config, memory_bytes)[0] <= TOP).astype(float)
    except (TrainingError, ResourceError):
        return None


def pick_settings(trials: list[dict[str, float]], hits: list[NDArray[np.float64] | None]) -> dict[str, Any]:
    """Return the chosen settings and the gain of each trial over the first, by the hits of the same users, float64[m] each."""
    start, first = trials[0], hits[0]
    gains: list[dict[str, Any]] = []
    chosen = dict(start)
    for settings, each in zip(trials[1:], hits[1:], strict=True):
        if first is None or each is None:
            continue
        ((name, value),) = settings.items() - start.items()
        gain, error = measure_gain(each - first)
        gains.append({"name": name, "value": value, "gain": gain, "standard_error": error})
    for name in start:
        best = max((one for one in gains if one["name"] == name), key=lambda one: one["gain"], default=None)
        if best and best["gain"] > LEAST_GAIN * best["standard_error"]:
            chosen[name] = best["value"]
    named = [one | {"is_chosen": chosen[one["name"]] == one["value"]} for one in gains]
    return {"settings": chosen, "hit_at_20": None if first is None else float(first.mean()), "gains": named}
