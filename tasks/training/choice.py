"""The log chooses the weight of the trail and the popularity of items, after the training, by the users held out for it.

Training has not seen the newest new item of these users, and they are not evaluated. Each weight, with each popularity t, ranks
that item among all items new to the user by the weighted scores + t log(count of the item). Other values than the usual ones are
chosen only if the mean logarithm of the rank is lower by more than two standard errors of the difference, user by user. Ranks
above MAX_RANK count as that: nobody reads so far. A release that continues another one keeps its values, so that vectors compare.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.tasks.evaluation.evaluate import LEAST_GAIN, Question, Ranking, join_sides, questions
from surf2vec.tasks.evaluation.measures import TOP, measure_gain
from surf2vec.tasks.evaluation.scores import Scores, score_of
from surf2vec.tasks.root.records import ChooseStep
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.training.base import open_base
from surf2vec.trainer.config import DISCOUNT, TRAIL_BIAS, TrainConfig
from surf2vec.trainer.events import OnEvent, ignore_event, log, log_progress
from surf2vec.trainer.store.generation import Generation, next_generation, open_generation
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.store.writer import Writer, lock_store
from surf2vec.trainer.training.vectors import TRAIL_WEIGHT, BothParts, columns_of, weight_of

WEIGHTS = (0.2, 0.35, 0.5, 0.6, TRAIL_WEIGHT, 0.8, 0.9)
POPULARITIES = (-0.2, -0.1, 0.0, 0.1, 0.2, 0.3)
MAX_RANK = 200
LEADS = 1_000_000  # scores that are compared at once, which takes up to 60 bytes each

Values = tuple[float, float]
"""A weight of the trail and a popularity."""


def choose_values(root: Root, corpus: Corpus, space: str | None, on_event: OnEvent) -> dict[str, Any]:
    """Commit the trail's weight and the popularity to the store's generation; return the record of step "choose".

    space: the release whose values are kept, if any. Empty if there is nothing to choose.
    """
    with lock_store(root.store):
        generation = open_generation(root.store)
        if "choice" in generation.manifest or generation.has_seen_held_out:
            return generation.manifest.get("choice", {})
        choice = _choose(root, corpus, generation, space, on_event)
        if choice:
            commit_popularity(root.store, generation, choice["popularity"], corpus.count_training_tokens(), choice)
    return choice


def _choose(root: Root, corpus: Corpus, generation: Generation, space: str | None, on_event: OnEvent) -> dict[str, Any]:
    if not list_values(generation.config)[1]:
        return {}
    if space and (base := open_base(root, space)) and "choice" in base.generation.manifest:
        weight = {"trail_weight": weight_of(base.generation)} if generation.config.trail_size else {}
        return weight | {"popularity": generation.config.popularity, "kept_from": space}
    choice = choose_by_log(corpus, generation, on_event)
    if "gain" in choice:
        chosen = ChooseStep(**choice)
        text = f"the log chooses {chosen.describe_values()}: {chosen.describe_gain()}"
        log(on_event, f"{text}, by {chosen.num_users:,} users")
    return choice


def has_popularity(config: TrainConfig) -> bool:
    """Return whether the log chooses the popularity of vectors with these settings."""
    return not config.hs and config.objective == "sampled_softmax" and config.bias > 0 and config.discount == DISCOUNT


def list_values(config: TrainConfig) -> tuple[Values, list[Values]]:
    """Return the usual values, and the others among which a log chooses: none with a tree, or if both are set.

    A discount other than the default leaves the popularity as it is.
    """
    has_weight = len(config.part_sizes) > 1 and config.trail_weight is None
    usual = (TRAIL_WEIGHT if config.trail_weight is None else config.trail_weight, 0.0)
    weights, popularities = WEIGHTS if has_weight else usual[:1], POPULARITIES if has_popularity(config) else usual[1:]
    return usual, [values for values in product(weights, popularities) if values != usual]


def choose_by_log(corpus: Corpus, generation: Generation, on_event: OnEvent = ignore_event) -> dict[str, Any]:
    """Return the choice by the corpus's users who choose; the usual values if there are none.

    The weights 0 and 1 show what each part finds alone. They are not chosen: half of the dimensions would say nothing.
    """
    usual, others = list_values(generation.config)
    columns, found = list(columns_of(generation).values()), dict[Values, NDArray[np.int64]]()
    alone = [(0.0, 0.0), (1.0, 0.0)] if len(columns) > 1 else []
    if corpus.manifest.get("num_choosing"):
        shown = [usual, *others, *alone]
        equal = replace(generation, manifest=generation.manifest | {"choice": {"trail_weight": 0.5}})
        counts = corpus.count_training_tokens()
        scores, logs = score_of(equal, counts), np.log(np.maximum(counts, 1)).astype(np.float32)
        choosing = questions(corpus, BothParts(equal, corpus), by_choosing=True)
        asked = join_sides((question,) for question, _ in choosing)
        ranks = [_find_ranks(question, scores, columns, logs, shown, on_event) for (question,) in asked]
        found = dict(zip(shown, np.concatenate(ranks).T, strict=True))
    choice = pick({values: ranks for values, ranks in found.items() if values not in alone}, usual)
    if not alone:  # vectors of one part have no weight
        return {name: value for name, value in choice.items() if name != "trail_weight"}
    hits = {weight: (each <= TOP).mean() for (weight, popularity), each in found.items() if not popularity}
    return choice | ({"hit_at_20": {f"{weight:g}": float(hit) for weight, hit in hits.items()}} if hits else {})


def _find_ranks(
    question: Question,
    scores: Scores,
    columns: list[list[int]],
    logs: NDArray[np.float32],
    values: list[Values],
    on_event: OnEvent,
) -> NDArray[np.int64]:
    """Return the rank of each user's item with each of the values, int64[m, C], 1 for the first.

    columns: of each part, its first and the one after the last; logs float32[V]: of the items' counts. Parts are scored once.
    """
    places = np.arange(question.vectors.shape[1])
    scale = len(columns)  # two parts stand in the vectors with half of their weight each
    masks = [scale * ((places >= first) & (places < end)) for first, end in columns]
    sides = [Ranking(replace(question, vectors=question.vectors * mask), scores) for mask in masks]
    for piece in scores.pieces() if scores.num_pieces > 1 else ():
        for side in sides:
            side.find_held_out(piece)
    above = np.zeros((len(question.items), len(values)), np.int64)
    for piece in scores.pieces():
        for batch in sides[0].batches():
            scored = [side.score_unseen(piece, batch) for side in sides]
            step = max(1, LEADS // len(piece.items))
            for start in range(batch.start, batch.stop, step):
                some = slice(start, min(start + step, batch.stop))
                rows = slice(some.start - batch.start, some.stop - batch.start)
                leads = [each[rows] - side.held_scores[some, None] for each, side in zip(scored, sides, strict=True)]
                known = logs[piece.items][None, :] - logs[question.items[some]][:, None]
                above[some] += _count_above(leads, known, piece.items[None, :] != question.items[some, None], values)
        log_progress(on_event, "choose", int(piece.items[-1]) + 1, len(logs), "items")
    return above + 1


def _count_above(
    leads: list[NDArray[np.float32]], known: NDArray[np.float32], is_other: NDArray[np.bool_], values: list[Values]
) -> NDArray[np.int64]:
    """Return how many items are above each user's own with each of the values, int64[m, C].

    leads float32[m, n]: of each part, an item's score less that of the user's own; known float32[m, n]: the same of the
    logarithms of their counts; is_other bool[m, n]. Only an item that leads by a part and the largest popularity can be above.
    """
    most = max(abs(popularity) for _, popularity in values)
    rows, items = np.nonzero((np.maximum.reduce(leads) + most * np.abs(known) > 0) & is_other)
    near, popular = [lead[rows, items] for lead in leads], known[rows, items]
    above = np.empty((len(known), len(values)), np.int64)
    for number, (weight, popularity) in enumerate(values):
        shares = (1 - weight, weight) if len(near) > 1 else (1.0,)
        lead = sum(share * one for share, one in zip(shares, near, strict=True)) + popularity * popular
        above[:, number] = np.bincount(rows[lead > 0], minlength=len(known))
    return above


def pick(ranks: dict[Values, NDArray[np.int64]], usual: Values) -> dict[str, Any]:
    """Return the choice by the ranks with each of the values, int64[m] of the same users; the usual values without users.

    gain: the mean of log(usual rank / rank), of ranks up to MAX_RANK.
    """
    choice: dict[str, Any] = {"trail_weight": usual[0], "popularity": usual[1]}
    if not ranks:
        return choice
    choice["num_users"] = len(ranks[usual])
    logs = {values: np.log(np.minimum(each, MAX_RANK)) for values, each in ranks.items()}
    gains = {values: measure_gain(logs[usual] - each) for values, each in logs.items()}
    best = max(gains, key=lambda values: (gains[values][0], values == usual))
    gain, error = gains[best]
    if best == usual or gain <= LEAST_GAIN * error:
        return choice
    return choice | {"trail_weight": best[0], "popularity": best[1], "gain": gain, "standard_error": error}


def commit_popularity(
    store_dir: Path, generation: Generation, popularity: float, counts: NDArray[np.int64], choice: dict[str, Any]
) -> Generation:
    """Commit a generation whose scores are higher by (popularity - that of its settings) * log(count), with the choice.

    counts int64[V]: of the training's tokens; 0 is taken as 1. All users have the same bias as their last coordinate of a part,
    so only the last coordinate of the items' outputs moves. The settings of the new generation have the popularity, from which
    inference and the next night correct scores. The caller holds the store's lock. Raises ResourceError when the disk is full.
    """
    manifest, config = generation.manifest, generation.config
    writer = Writer(store_dir, next_generation(store_dir), manifest)
    if shift := popularity - config.popularity:
        logs, biases = np.log(np.maximum(counts, 1)), {"interest": config.bias, "trail": TRAIL_BIAS}
        for part, block in [key for key in writer.entries if key[0] in config.part_sizes]:
            image = writer.read(part, block)
            rows = image.arrays.get("rows", slice(None))
            image.arrays["outputs"][:, -1] += (shift / biases[part] * logs[rows]).astype(np.float32)
            writer.write(part, block, image)
    return writer.commit(manifest | {"choice": choice, "config": manifest["config"] | {"popularity": popularity}})
