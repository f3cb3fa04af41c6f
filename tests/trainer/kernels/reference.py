"""The kernel as it stands in the papers: slow, and the measure of all others. The formulas are in README.md.

Shapes: V outputs, D dims, K negatives, M lanes of a tile, R rows of a tree's node.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from surf2vec.trainer.draws import GAMMA, MASK, SUBSAMPLE, TILE, WINDOW, counter, mix
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import MAX_SCORE, RANGE_32
from surf2vec.trainer.model.rows import EPSILON, Items, Rows
from surf2vec.trainer.model.trees import path

AT_ONCE = False
"""Whether the rows of a step move at once, as on a card, and lanes stay in order. Otherwise they move in turn, and the last lane
takes the place of one that has no more users.
"""
NUM_AT_ONCE = 10**9
"""Negatives that a card reads at a time. If there are more, it scores them anew before it moves them, block after block."""

Sums = dict[int, np.ndarray]
"""Gradients of items that stand still, float32[D], by row."""


def train_users(users: Rows, items: Items, work: Pass) -> int:
    """Train the users `work.order` once, in place; returns how many tokens were kept by subsampling."""
    if not work.update_items:  # each user alone: others have no part in its row
        return sum(train_stream(users, items, part_of(work, i, i + 1), work.epoch_key) for i in range(len(work.order)))
    num_kept, accumulate = 0, work.config.accumulate
    for start in range(0, len(work.order), accumulate if accumulate > 1 else max(1, len(work.order))):
        step = part_of(work, start, start + accumulate) if accumulate > 1 else work
        sums: Sums | None = {} if accumulate > 1 else None
        for first, last in pairwise(step.streams.tolist()):
            key = mix(int(work.hashes[step.order[first]]) ^ work.epoch_key)
            num_kept += train_stream(users, items, part_of(step, first, last), key, sums)
        for row, gradient_D in (sums or {}).items():
            rate = rate_of(items.outputs, row, gradient_D, step.alphas[-1], work)
            items.outputs.vectors[row] += rate * gradient_D
    return num_kept


def part_of(work: Pass, first: int, last: int) -> Pass:
    """The users from `first` to `last` of the order."""
    return replace(work, order=work.order[first:last], alphas=work.alphas[first:last])


class Lane:
    """A user's turn in a tile, at `place` of its kept tokens: what its tokens weigh, and the user's random draws."""

    def __init__(self, work: Pass, user: int, alpha: np.float32) -> None:
        self.work, self.user, self.alpha, self.place = work, user, alpha, 0
        self.key = mix(int(work.hashes[user]) ^ work.epoch_key)
        self.tokens = work.tokens[work.starts[user] : work.ends[user]]
        self.l2 = np.float32(work.config.l2 / math.sqrt(max(1, len(self.tokens))))
        self.kept = [p for p in range(len(self.tokens)) if self.draw(p, SUBSAMPLE) >> 32 < self.keep(p)]

    def keep(self, position: int) -> int:
        return int(self.work.sampling.keep[self.tokens[position]])

    def draw(self, position: int, purpose: int) -> int:
        """One 64-bit draw of the user's own."""
        return mix((self.key + GAMMA * counter(position, purpose, 0)) & MASK)

    @property
    def item(self) -> int:
        return int(self.tokens[self.kept[self.place]])

    @property
    def weight(self) -> np.float32:
        """What the token counts for the user's vector: half at `recency` tokens before the newest."""
        age = len(self.tokens) - 1 - self.kept[self.place]
        return np.float32(1 / (1 + age / self.work.recency) if self.work.recency else 1)

    @property
    def words(self) -> list[int]:
        """PV-DM's context: the kept tokens within word2vec's window, shrunk at random, around the token."""
        window = self.work.config.window * self.work.config.dm
        reach = window - ((self.draw(self.kept[self.place], WINDOW) >> 32) * window >> 32)
        around = range(max(0, self.place - reach), min(len(self.kept), self.place + reach + 1))
        return [int(self.tokens[self.kept[j]]) for j in around if j != self.place]


def train_stream(users: Rows, items: Items, work: Pass, key: int, sums: Sums | None = None) -> int:
    """Train the users of the order in tiles; returns how many tokens were trained. sums: where items' gradients go instead."""
    num_kept = 0
    for lanes, negatives_K in tiles_of(work, key):
        train_tile(users, items, lanes, negatives_K, work, sums)
        num_kept += len(lanes)
    return num_kept


def tiles_of(work: Pass, key: int) -> Iterator[tuple[list[Lane], np.ndarray]]:
    """Yield the tiles of a stream and their negatives. Each lane has a user; at a step, one token of it.

    A lane whose user ends takes the next user with a kept token, if there is one. In a tree users take turns.
    """
    coming = iter([
        lane for user, alpha in zip(work.order, work.alphas, strict=True) if (lane := Lane(work, int(user), alpha)).kept
    ])  # fmt: skip
    num_negatives = 0 if work.config.hs else work.config.negative
    lanes, step = [lane for _, lane in zip(range(work.config.num_lanes), coming, strict=False)], 0
    while lanes:
        draws = [mix((key + GAMMA * counter(step, TILE, k)) & MASK) for k in range(num_negatives)]
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
                remove_lane(lanes, m)


def remove_lane(lanes: list[Any], m: int) -> None:
    last = lanes.pop(m if AT_ONCE else -1)
    if not AT_ONCE and m < len(lanes):
        lanes[m] = last


def train_tile(
    users: Rows, items: Items, lanes: list[Lane], negatives_K: np.ndarray, work: Pass, sums: Sums | None
) -> None:
    """One token of each lane: the mean of the user and of the context, if there is one, predicts it."""
    words_M = [lane.words for lane in lanes]
    u_MD = users.vectors[[lane.user for lane in lanes]]
    sums_MD = np.array([u + items.inputs.vectors[words].sum(axis=0) for u, words in zip(u_MD, words_M, strict=True)])
    h_MD = sums_MD / np.array([[1 + len(words)] for words in words_M], np.float32)
    if work.config.hs:
        steps_MD = learn_by_tree(items.outputs, h_MD, lanes, work)
    else:
        steps_MD = learn_by_draws(items.outputs, h_MD, lanes, negatives_K, work, sums)
    for lane, words, u_D, step_D in zip(lanes, words_M, u_MD, steps_MD, strict=True):
        for word in words if work.update_items else []:
            items.inputs.vectors[word] += rate_of(items.inputs, word, step_D, lane.alpha, work) * step_D
        gradient_D = lane.weight * (step_D - lane.l2 * u_D)
        gradient_D[work.config.num_free :] = 0  # the bias stands still
        users.vectors[lane.user] += rate_of(users, lane.user, gradient_D, lane.alpha, work) * gradient_D


def learn_by_draws(
    outputs: Rows, h_MD: np.ndarray, lanes: list[Lane], negatives_K: np.ndarray, work: Pass, sums: Sums | None
) -> np.ndarray:
    """Sampled softmax or negative sampling: moves the outputs, and returns the steps of h_MD.

    All are scored by the rows as they are; then the lanes' own rows move in turn, then the negatives. A negative that is the
    token itself does not count. L2 is for own rows alone, and not for the bias.
    """
    config, v, corrections = work.config, outputs.vectors, work.sampling.corrections
    own_M = np.array([lane.item for lane in lanes])
    v_KD, own_MD = v[negatives_K], v[own_M]
    scores_MK = h_MD @ v_KD.T - corrections[negatives_K]
    scores_MK[own_M[:, None] == negatives_K] = -np.inf
    scores_M1 = (np.sum(own_MD * h_MD, axis=1) - corrections[own_M] - np.float32(config.handicap))[:, None]
    scores_MR = np.concatenate((scores_M1, scores_MK), axis=1)
    is_own_R = np.eye(1, scores_MR.shape[1], dtype=np.float32)[0]
    p_MR = (softmax if config.objective == "sampled_softmax" else sigmoid)(scores_MR).astype(np.float32)
    if config.objective == "negative_sampling":
        p_MR = np.where(np.abs(scores_MR) >= MAX_SCORE, is_own_R, p_MR)
    pulls_MR = is_own_R - p_MR
    steps_MD, steps_KD = pulls_MR[:, 1:] @ v_KD, pulls_MR[:, 1:].T @ h_MD
    l2_D = np.float32(config.item_l2) * (np.arange(h_MD.shape[1]) < config.num_free)
    if AT_ONCE:
        gradients_MD = pulls_MR[:, :1] * h_MD - l2_D * own_MD
        alphas_M = np.array([lane.alpha for lane in lanes])
        squares_M = np.mean(gradients_MD**2, axis=1)
        move_at_once(
            outputs, h_MD, own_M, gradients_MD, squares_M, alphas_M, negatives_K, scores_MR, pulls_MR, corrections,
            config.optimizer == "adagrad",
        )  # fmt: skip
        return steps_MD + pulls_MR[:, :1] * own_MD
    for m, (lane, item, pull) in enumerate(zip(lanes, own_M, pulls_MR[:, 0], strict=True)):
        steps_MD[m] += pull * v[item]
        gradient_D, scored_D = (pull * h_MD[m] - l2_D * row_D for row_D in (v[item], own_MD[m]))
        move_output(outputs, item, gradient_D, scored_D, lane.alpha, work, sums)
    for item, step_D in zip(negatives_K, steps_KD, strict=True):
        move_output(outputs, item, step_D, step_D, lanes[0].alpha, work, sums)
    return steps_MD


def move_at_once(
    outputs: Rows, h_MD: np.ndarray, own_M: np.ndarray, gradients_MD: np.ndarray, squares_M: np.ndarray, alphas_M: np.ndarray,
    negatives_K: np.ndarray, scores_MR: np.ndarray, pulls_MR: np.ndarray, corrections: np.ndarray, is_adagrad: bool,
) -> None:  # fmt: skip
    """Move the lanes' own rows and the negatives as a card: equal rows have one rate, by the sum that all of them have raised.

    scores_MR: -inf where a negative does not count. Blocks after the first are scored by the rows as they are by then.
    """
    v = outputs.vectors
    rates_M = rates_at_once(outputs, own_M, squares_M, alphas_M, is_adagrad)
    for first in range(0, len(negatives_K), NUM_AT_ONCE):
        block = slice(1 + first, 1 + first + NUM_AT_ONCE)
        rows_B, pulls_MB = negatives_K[first:][:NUM_AT_ONCE], pulls_MR[:, block]
        if first:
            scores_MB = np.where(np.isinf(scores_MR[:, block]), -np.inf, h_MD @ v[rows_B].T - corrections[rows_B])
            pulls_MB = pull_anew(scores_MR, scores_MB)
        steps_BD = pulls_MB.T @ h_MD
        rates_B = rates_at_once(outputs, rows_B, np.mean(steps_BD**2, axis=1), alphas_M[0], is_adagrad)
        np.add.at(v, rows_B, rates_B[:, None] * steps_BD)
    np.add.at(v, own_M, rates_M[:, None] * gradients_MD)


def rates_at_once(
    table: Rows, rows_N: np.ndarray, squares_N: np.ndarray, alphas: np.ndarray, is_adagrad: bool
) -> np.ndarray:
    """The learning rates of rows after all of them have been added to Adagrad's sums."""
    if not is_adagrad:
        return np.broadcast_to(alphas, rows_N.shape)
    np.add.at(table.squares, rows_N, squares_N)
    return np.asarray(alphas / np.sqrt(table.squares[rows_N] + np.float32(EPSILON)))


def pull_anew(scores_MR: np.ndarray, scores_MB: np.ndarray) -> np.ndarray:
    """The pulls of negatives by their scores as they are now, at most the highest, and by the sum over all rows as they were."""
    highest_M1 = scores_MR.max(axis=1, keepdims=True)
    return -np.exp(np.minimum(scores_MB - highest_M1, 0)) / np.exp(scores_MR - highest_M1).sum(axis=1, keepdims=True)


def move_output(
    outputs: Rows, row: int, gradient_D: np.ndarray, scored_D: np.ndarray, alpha: np.float32, work: Pass, sums: Sums | None
) -> None:  # fmt: skip
    """One step up of a row, at the rate of its gradient as it was scored; or into `sums`; or none, if items are frozen."""
    if sums is not None:
        sums[int(row)] = sums.get(int(row), np.float32(0)) + gradient_D
    elif work.update_items:
        outputs.vectors[row] += rate_of(outputs, row, scored_D, alpha, work) * gradient_D


def learn_by_tree(outputs: Rows, h_MD: np.ndarray, lanes: list[Lane], work: Pass) -> np.ndarray:
    """Hierarchical softmax: at every inner node above the token, the child that leads to it against the others."""
    tree, steps_MD = work.tree, np.zeros_like(h_MD)
    assert tree is not None
    for lane, h_D, step_D in zip(lanes, h_MD, steps_MD, strict=True):
        for node, slot in path(tree, lane.item)[::-1]:
            first, width = int(tree.first_rows[node]), int(tree.widths[node])
            rows_R = np.arange(first, first + (width if width > 2 else width - 1))
            scores_R = outputs.vectors[rows_R] @ h_D
            p_R = softmax(scores_R) if width > 2 else sigmoid(scores_R)
            pulls_R = (np.arange(len(rows_R)) == slot).astype(np.float32) - p_R
            step_D += pulls_R @ outputs.vectors[rows_R]
            for row, pull in zip(rows_R, pulls_R, strict=True):
                move_output(outputs, row, pull * h_D, pull * h_D, lane.alpha, work, None)
    return steps_MD


def rate_of(rows: Rows, row: int, gradient_D: np.ndarray, alpha: np.float32, work: Pass) -> np.float32:
    """The learning rate of a row's step: alpha, or row-wise Adagrad's, to whose sum the step is added."""
    if work.config.optimizer == "sgd":
        return alpha
    rows.squares[row] += np.mean(gradient_D**2)
    return alpha / np.sqrt(rows.squares[row] + np.float32(EPSILON))


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
