"""The log chooses the weights of the two parts of a vector, after the training, by the users held out for it.

Training has not seen the newest new item of these users, and they are not evaluated. Each weight ranks that item among all items
new to the user. Another weight than the usual one is chosen only if the mean logarithm of the rank is lower by more than two
standard errors of the difference, user by user. A release that continues another one keeps its weight, so that vectors compare.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.tasks.evaluation.evaluate import (
    LEAST_GAIN,
    TOP,
    Question,
    Ranking,
    join_sides,
    measure_gain,
    questions,
)
from surf2vec.tasks.evaluation.scores import Scores, score_of
from surf2vec.tasks.root.records import ChooseStep
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.training.base import open_base
from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.manifests import next_generation
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.store.writer import Writer, lock_store
from surf2vec.trainer.training.vectors import TRAIL_WEIGHT, BothParts, columns_of, weight_of

WEIGHTS = (0.2, 0.35, 0.5, TRAIL_WEIGHT, 0.7, 0.8, 0.9)
ALL_WEIGHTS = (0.0, *WEIGHTS, 1.0)


def choose_weights(root: Root, corpus: Corpus, space: str | None, on_event: OnEvent) -> dict[str, Any]:
    """Commit the trail's weight to the store's generation; return the record of step "choose".

    space: the release whose weight is kept, if any. Nothing is chosen for vectors of one part, or if the weight is set.
    """
    with lock_store(root.store):
        generation = open_generation(root.store)
        if "choice" in generation.manifest or generation.has_seen_held_out:
            return generation.manifest.get("choice", {})
        choice = _choose(root, corpus, generation, space, on_event)
        if choice:
            writer = Writer(root.store, next_generation(root.store))
            writer.commit_again(generation, generation.manifest | {"choice": choice})
    return choice


def _choose(root: Root, corpus: Corpus, generation: Generation, space: str | None, on_event: OnEvent) -> dict[str, Any]:
    if len(columns_of(generation)) < 2 or generation.config.trail_weight is not None:
        return {}
    if space and (base := open_base(root, space)) and "choice" in base.generation.manifest:
        return {"trail_weight": weight_of(base.generation), "kept_from": space}
    choice = choose_by_log(corpus, generation)
    if "gain" in choice:
        text = f"the log chooses the weight {choice['trail_weight']:g} of the trail for {TRAIL_WEIGHT:g}"
        log(on_event, f"{text}: {ChooseStep(**choice).describe_gain()}, by {choice['num_users']:,} users")
    return choice


def choose_by_log(corpus: Corpus, generation: Generation) -> dict[str, Any]:
    """Return the choice by the corpus's users who choose; the usual weight if there are none."""
    if not corpus.manifest.get("num_choosing"):
        return pick({})
    equal = replace(generation, manifest=generation.manifest | {"choice": {"trail_weight": 0.5}})
    scores = score_of(equal, np.zeros(corpus.num_items, np.int64))
    asked = join_sides(zip(questions(corpus, BothParts(equal, corpus), by_choosing=True), strict=True))
    ranks = np.concatenate([_find_ranks(question, scores, generation.config.interest_size) for (question,) in asked])
    return pick(dict(zip(ALL_WEIGHTS, ranks.T, strict=True)))


def _find_ranks(question: Question, scores: Scores, interest_size: int) -> NDArray[np.int64]:
    """Return the rank of each user's item with each of ALL_WEIGHTS, int64[m, W], 1 for the first.

    The two parts are scored once. Only an item that one of them puts above the user's own can be above it by both.
    """
    is_trail = np.arange(question.vectors.shape[1]) >= interest_size
    sides = [Ranking(replace(question, vectors=question.vectors * part), scores) for part in (~is_trail, is_trail)]
    for piece in scores.pieces() if scores.num_pieces > 1 else ():
        for side in sides:
            side.find_held_out(piece)
    above = np.zeros((len(question.items), len(ALL_WEIGHTS)), np.int64)
    for piece in scores.pieces():
        for batch in sides[0].batches():
            leads = [side.score_unseen(piece, batch) - side.held_scores[batch, None] for side in sides]
            rows, places = np.nonzero((leads[0] > 0) | (leads[1] > 0))
            interest, trail = (lead[rows, places] for lead in leads)
            is_other = piece.items[places] != question.items[batch][rows]
            for number, weight in enumerate(ALL_WEIGHTS):
                ahead = rows[is_other & ((1 - weight) * interest + weight * trail > 0)]
                above[batch, number] += np.bincount(ahead, minlength=batch.stop - batch.start)
    return above + 1


def pick(ranks: dict[float, NDArray[np.int64]]) -> dict[str, Any]:
    """Return the choice by the ranks with each weight, int64[m] of the same users; the usual weight without users.

    gain: the mean of log(usual rank / rank). The weights 0 and 1 show what each part finds alone. They are not chosen: half of
    the numbers would say nothing.
    """
    choice: dict[str, Any] = {"trail_weight": TRAIL_WEIGHT}
    if not ranks:
        return choice
    choice |= {
        "num_users": len(ranks[TRAIL_WEIGHT]),
        "hit_at_20": {f"{weight:g}": float((each <= TOP).mean()) for weight, each in ranks.items()},
    }
    gains = {weight: measure_gain(np.log(ranks[TRAIL_WEIGHT] / ranks[weight])) for weight in WEIGHTS}
    best = max(WEIGHTS, key=lambda weight: (gains[weight][0], weight == TRAIL_WEIGHT))
    gain, error = gains[best]
    if best == TRAIL_WEIGHT or gain <= LEAST_GAIN * error:
        return choice
    return choice | {"trail_weight": best, "gain": gain, "standard_error": error}
