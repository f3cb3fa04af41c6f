"""The kernel as it stands in the papers: slow, and the measure of all others. The formulas are in README.md.

Shapes: N users, V outputs, D dims, K negatives, M lanes of a tile, R rows of a prediction.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from surf2vec.trainer.draws import GAMMA, MASK, NEGATIVE, SUBSAMPLE, TILE, WINDOW, counter, mix
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import MAX_SCORE, RANGE_32
from surf2vec.trainer.model.rows import EPSILON, Items, Rows
from surf2vec.trainer.model.trees import path

Sums = dict[int, np.ndarray]
"""Gradients of items that stand still, float32[D], by row."""


def train_users(users: Rows, items: Items, work: Pass) -> int:
    """Train the users `work.order` once, in place; returns how many tokens were kept by subsampling."""
    if work.has_tiles:
        return sum(train_stream(users, items, work, first, last) for first, last in pairwise(work.streams.tolist()))
    num_kept = 0
    accumulate = work.config.accumulate if work.update_items else 1
    for start in range(0, len(work.order), accumulate):
        sums: Sums | None = {} if accumulate > 1 else None
        step = slice(start, start + accumulate)
        for user, alpha in zip(work.order[step], work.alphas[step], strict=True):
            history = History(work, int(user), sums)
            num_kept += len(history.kept)
            if work.config.dm:
                train_dm(users, items, history, alpha)
            else:
                train_dbow(users, items, history, alpha)
        for row, gradient_D in (sums or {}).items():
            rate = rate_of(items.outputs, row, gradient_D, work.alphas[step][-1], work)
            items.outputs.vectors[row] += rate * gradient_D
    return num_kept


class History:
    """One user's tokens in one epoch: which are kept, what they weigh, and the user's random draws.

    sums: where the gradients of items go instead of moving them.
    """

    def __init__(self, work: Pass, user: int, sums: Sums | None) -> None:
        self.work, self.user, self.sums = work, user, sums
        self.key = mix(int(work.hashes[user]) ^ work.epoch_key)
        self.tokens = work.tokens[work.starts[user] : work.ends[user]]
        self.l2 = work.config.l2 / math.sqrt(max(1, len(self.tokens)))
        self.kept = [p for p in range(len(self.tokens)) if self.draw(p, SUBSAMPLE, 0) >> 32 < self.keep(p)]

    def keep(self, position: int) -> int:
        return int(self.work.sampling.keep[self.tokens[position]])

    def weight(self, position: int) -> np.float32:
        """What a token counts for the user's vector: half at `recency` tokens before the newest."""
        age = len(self.tokens) - 1 - position
        return np.float32(1 / (1 + age / self.work.recency) if self.work.recency else 1)

    def draw(self, position: int, purpose: int, number: int) -> int:
        """One 64-bit draw of the user's stream."""
        return mix((self.key + GAMMA * counter(position, purpose, number)) & MASK)

    def context(self, place: int) -> list[int]:
        """Places in `kept` within word2vec's window, shrunk at random, around a place."""
        window = self.work.config.window
        shrink = (self.draw(self.kept[place], WINDOW, 0) >> 32) * window >> 32
        reach = window - shrink
        return [j for j in range(place - reach, place + reach + 1) if j != place and 0 <= j < len(self.kept)]


def train_stream(users: Rows, items: Items, work: Pass, first: int, last: int) -> int:
    """PV-DBOW by sampled softmax in tiles; returns how many tokens were trained."""
    num_kept = 0
    for lanes, negatives_K in tiles_of(work, first, last):
        train_tile(users, items.outputs, lanes, negatives_K, work)
        num_kept += len(lanes)
    return num_kept


def tiles_of(work: Pass, first: int, last: int) -> Iterator[tuple[list["Lane"], np.ndarray]]:
    """Yield the tiles of a stream and their negatives. Each lane has a user; at a step, one token of it.

    A lane whose user ends takes the next user with a kept token; if there is none, the last lane takes its place.
    """
    coming = iter([
        lane for place in range(first, last)
        if (lane := Lane(work, int(work.order[place]), work.alphas[place])).kept
    ])  # fmt: skip
    lanes = [lane for _, lane in zip(range(work.config.tile_users), coming, strict=False)]
    key, step = mix(int(work.hashes[work.order[first]]) ^ work.epoch_key), 0
    while lanes:
        draws = [mix((key + GAMMA * counter(step, TILE, k)) & MASK) for k in range(work.config.negative)]
        yield lanes, np.array([draw_negative(bits, work) for bits in draws])
        step, m = step + 1, 0
        while m < len(lanes):
            lanes[m].place += 1
            if lanes[m].place < len(lanes[m].kept):
                m += 1
            elif (following := next(coming, None)) is not None:
                lanes[m] = following
                m += 1
            else:
                lanes[m] = lanes[-1]
                lanes.pop()


class Lane(History):
    """A user's turn in a tile: at `place` of its kept tokens."""

    def __init__(self, work: Pass, user: int, alpha: np.float32) -> None:
        super().__init__(work, user, None)
        self.alpha, self.place = alpha, 0

    @property
    def item(self) -> int:
        return int(self.tokens[self.kept[self.place]])


def train_tile(users: Rows, outputs: Rows, lanes: list[Lane], negatives_K: np.ndarray, work: Pass) -> None:
    """One token of each lane: all are scored by the rows as they are; then lanes move in turn, then negatives in turn."""
    config, v, corrections = work.config, outputs.vectors, work.sampling.corrections
    own_M, u_MD = np.array([lane.item for lane in lanes]), users.vectors[[lane.user for lane in lanes]]
    v_KD, own_MD = v[negatives_K], v[own_M]
    scores_MK = u_MD @ v_KD.T - corrections[negatives_K]
    scores_MK[own_M[:, None] == negatives_K] = -np.inf
    scores_M1 = (np.sum(own_MD * u_MD, axis=1) - corrections[own_M] - np.float32(config.handicap))[:, None]
    p_MK = softmax(np.concatenate((scores_M1, scores_MK), axis=1)).astype(np.float32)
    pulls_M, p_MK = 1 - p_MK[:, 0], p_MK[:, 1:]
    steps_MD, steps_KD = -p_MK @ v_KD, -p_MK.T @ u_MD
    is_free_D = np.arange(u_MD.shape[1]) < config.num_free
    for m, (lane, item, pull) in enumerate(zip(lanes, own_M, pulls_M, strict=True)):
        weight = lane.weight(lane.kept[lane.place])
        step_D = weight * (steps_MD[m] + pull * v[item])
        l2_D = np.float32(config.item_l2) * is_free_D
        rate = rate_of(outputs, item, pull * u_MD[m] - l2_D * own_MD[m], lane.alpha, work)
        v[item] += rate * (pull * u_MD[m] - l2_D * v[item])
        move_user(users, lane.user, step_D - np.float32(lane.l2 * weight) * u_MD[m], lane.alpha, work)
    for item, step_D in zip(negatives_K, steps_KD, strict=True):
        v[item] += rate_of(outputs, item, step_D, lanes[0].alpha, work) * step_D


def train_dbow(users: Rows, items: Items, history: History, alpha: np.float32) -> None:
    """The user predicts its tokens."""
    work = history.work
    for position in history.kept:
        u = users.vectors[history.user].copy()
        step = learn(items.outputs, u, history, position, alpha)
        move_user(users, history.user, history.weight(position) * (step - np.float32(history.l2) * u), alpha, work)


def train_dm(users: Rows, items: Items, history: History, alpha: np.float32) -> None:
    """The mean of the user and the context predicts each token."""
    work = history.work
    for place, position in enumerate(history.kept):
        words = [int(history.tokens[history.kept[j]]) for j in history.context(place)]
        u = users.vectors[history.user].copy()
        hidden = (u + items.inputs.vectors[words].sum(axis=0)) / np.float32(1 + len(words))
        step = learn(items.outputs, hidden, history, position, alpha)
        weight = np.float32(history.weight(position))
        move_user(users, history.user, weight * (step - np.float32(history.l2) * u), alpha, work)
        for word in words:
            move_input(items.inputs, word, step, alpha, work)


def learn(outputs: Rows, hidden_D: np.ndarray, history: History, position: int, alpha: np.float32) -> np.ndarray:
    """Let `hidden_D` predict the token at a position: moves the outputs, returns the step up of hidden_D."""
    if history.work.config.hs:
        return learn_by_tree(outputs, hidden_D, history, position, alpha)
    return learn_by_draws(outputs, hidden_D, history, position, alpha)


def learn_by_draws(
    outputs: Rows, hidden_D: np.ndarray, history: History, position: int, alpha: np.float32
) -> np.ndarray:
    """Sampled softmax or negative sampling: the token against K negatives, of which those that are the token do not count."""
    work, config = history.work, history.work.config
    draws = [history.draw(position, NEGATIVE, k + 1) for k in range(config.negative)]
    rows_R = np.array([int(history.tokens[position]), *(draw_negative(bits, work) for bits in draws)])
    scores_R = outputs.vectors[rows_R] @ hidden_D - work.sampling.corrections[rows_R]
    scores_R[0] -= np.float32(config.handicap)
    scores_R[1:][rows_R[1:] == rows_R[0]] = -np.inf
    is_own_R = np.eye(1, len(rows_R), dtype=np.float32)[0]
    p_R = (softmax if config.objective == "sampled_softmax" else sigmoid)(scores_R).astype(np.float32)
    if config.objective == "negative_sampling":
        p_R = np.where(np.abs(scores_R) >= MAX_SCORE, is_own_R, p_R)
    return pull_rows(outputs, hidden_D, rows_R, is_own_R - p_R, config.item_l2 * is_own_R, alpha, history)


def learn_by_tree(
    outputs: Rows, hidden_D: np.ndarray, history: History, position: int, alpha: np.float32
) -> np.ndarray:
    """Hierarchical softmax: at every inner node above the token, the child that leads to it against the others."""
    tree = history.work.tree
    assert tree is not None
    step_D = np.zeros_like(hidden_D)
    for node, slot in path(tree, int(history.tokens[position]))[::-1]:
        first, width = int(tree.first_rows[node]), int(tree.widths[node])
        rows_R = np.arange(first, first + (width if width > 2 else width - 1))
        scores_R = outputs.vectors[rows_R] @ hidden_D
        p_R = softmax(scores_R) if width > 2 else sigmoid(scores_R)
        pulls_R = (np.arange(len(rows_R)) == slot).astype(np.float32) - p_R
        step_D += pull_rows(outputs, hidden_D, rows_R, pulls_R, np.zeros_like(pulls_R), alpha, history)
    return step_D


def pull_rows(
    outputs: Rows, hidden_D: np.ndarray, rows_R: np.ndarray, pulls_R: np.ndarray, l2_R: np.ndarray, alpha: np.float32,
    history: History,
) -> np.ndarray:  # fmt: skip
    """Rows and hidden_D pull each other: rates by the rows at the beginning, moved in turn. Answers the step of hidden_D.

    L2 is not for the bias: how popular an item is needs no prior, the log tells it.
    """
    work, sums = history.work, history.sums
    l2_RD = l2_R[:, None] * (np.arange(len(hidden_D)) < work.config.num_free)
    gradients_RD = pulls_R[:, None] * hidden_D - l2_RD * outputs.vectors[rows_R]
    is_moving = work.update_items and sums is None
    rates_R = [
        rate_of(outputs, row, g, alpha, work) if is_moving else alpha
        for row, g in zip(rows_R, gradients_RD, strict=True)
    ]
    step_D = np.zeros_like(hidden_D)
    for row, rate, pull, l2_D in zip(rows_R, rates_R, pulls_R, l2_RD, strict=True):
        v_D = outputs.vectors[row]
        step_D += pull * v_D
        gradient_D = pull * hidden_D - l2_D * v_D
        if sums is not None:
            sums[int(row)] = sums.get(int(row), np.float32(0)) + gradient_D
        elif work.update_items:
            outputs.vectors[row] += rate * gradient_D
    return step_D


def move_user(users: Rows, row: int, gradient_D: np.ndarray, alpha: np.float32, work: Pass) -> None:
    """One step up of a user's row, but for its bias."""
    gradient_D[work.config.num_free :] = 0
    users.vectors[row] += rate_of(users, row, gradient_D, alpha, work) * gradient_D


def rate_of(rows: Rows, row: int, gradient_D: np.ndarray, alpha: np.float32, work: Pass) -> np.float32:
    """The learning rate of a row's step: alpha, or row-wise Adagrad's, to whose sum the step is added."""
    if work.config.optimizer == "sgd":
        return alpha
    rows.squares[row] += np.mean(gradient_D**2)
    return alpha / np.sqrt(rows.squares[row] + np.float32(EPSILON))


def move_input(inputs: Rows, row: int, gradient_D: np.ndarray, alpha: np.float32, work: Pass) -> None:
    """One step up of an item's row as context, unless items are frozen."""
    if work.update_items:
        inputs.vectors[row] += rate_of(inputs, row, gradient_D, alpha, work) * gradient_D


def draw_negative(bits: int, work: Pass) -> int:
    """The item that 64 random bits choose from the noise distribution."""
    slot = ((bits >> 32) * len(work.sampling.aliases)) >> 32
    return slot if bits % RANGE_32 < work.sampling.thresholds[slot] else int(work.sampling.aliases[slot])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return np.exp(-np.logaddexp(0, -x))


def softmax(x: np.ndarray) -> np.ndarray:
    """exp(x) / sum(exp(x)) along the last axis, without overflow."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
