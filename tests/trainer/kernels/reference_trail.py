"""The trail's kernel as it stands in trainer/kernels/README.md: slow, one lane and one number after the other.

Shapes: M lanes, K negatives, D dims, W lags.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from surf2vec.trainer.config import TRAIL_BIAS
from surf2vec.trainer.draws import GAMMA, MASK, TILE, WINDOW, counter, mix
from surf2vec.trainer.kernels.signature import (
    L2_WINDOW,
    LAG_RATE,
    LEAST_LAG,
    NEWEST_SHARE,
    TRAIL_RATE,
    TRAIL_TILE_USERS,
    Pass,
)
from surf2vec.trainer.model.objectives import TrailTables
from surf2vec.trainer.model.rows import Rows, TrailItems
from tests.trainer.kernels import reference
from tests.trainer.kernels.reference import draw_negative, move_at_once, rates_at_once, remove_lane, softmax

TINY = np.float32(1e-12)


@dataclass
class Lane:
    """A user's turn: its targets, as (position, whether backward, from how many pages), and the number of the next one."""

    tokens: np.ndarray
    targets: list[tuple[int, bool, int]]
    alpha: np.float32
    next: int = 0


@dataclass
class Look:
    """What a lane looks at: pages, their lags and factors, the sum hidden, and the target."""

    pages: list[int]
    lags: list[int]
    factors: list[np.float32]
    scale: np.float32
    hidden: np.ndarray
    item: int
    alpha: np.float32


def train_trail(trail: TrailItems, work: Pass, tables: TrailTables, backward: float) -> int:
    """Train the targets of the users `work.order` once, in place; returns how many there were."""
    num_targets = 0
    streams = work.streams.tolist()
    for first, last in pairwise(streams):
        stream = range(first, last)
        key = user_key(work, int(work.order[first]))
        waiting = [lane for lane in (make_lane(work, place, tables, backward) for place in stream) if lane.targets]
        lanes: list[Lane] = []
        step = 0
        while lanes or waiting:
            while len(lanes) < TRAIL_TILE_USERS and waiting:
                lanes.append(waiting.pop(0))
            looks = [look(trail, lane, work.config.trail_window) for lane in lanes]
            train_step(trail, looks, work, tables, key, step)
            num_targets += len(lanes)
            step += 1
            leave(lanes, waiting if reference.AT_ONCE else [])
    return num_targets


def leave(lanes: list[Lane], waiting: list[Lane]) -> None:
    """Go on to the next target; one that waits takes the place of one that has ended."""
    number = 0
    while number < len(lanes):
        lanes[number].next += 1
        if lanes[number].next < len(lanes[number].targets):
            number += 1
        elif waiting:
            lanes[number] = waiting.pop(0)
            number += 1
        else:
            remove_lane(lanes, number)


def user_key(work: Pass, user: int) -> int:
    return mix(int(work.hashes[user]) ^ work.epoch_key)


def draw(key: int, position: int, purpose: int, number: int) -> int:
    return mix((key + GAMMA * counter(position, purpose, number)) & MASK)


def make_lane(work: Pass, place: int, tables: TrailTables, backward: float) -> Lane:
    """The first event of each item is a target, if there is a page to predict it from. They come in another order."""
    user = int(work.order[place])
    tokens, key = work.tokens[work.starts[user] : work.ends[user]], user_key(work, user)
    targets = []
    for position, item in enumerate(tokens.tolist()):
        is_backward = draw(key, position, WINDOW, 0) >> 32 < backward * 2**32 * float(tables.shares[item])
        has_context = position + 1 < len(tokens) if is_backward else position > 0
        if item not in tokens[:position] and has_context:
            is_short = draw(key, position, WINDOW, 1) >> 32 < NEWEST_SHARE
            targets.append((position, is_backward, 1 if is_short else work.config.trail_window))
    size, bits = 1 << max(0, len(targets) - 1).bit_length(), draw(key, 0, WINDOW, 2)
    numbers = [((bits >> 32 | 1) * i + bits % 2**32) % size for i in range(size)]
    targets = [targets[number] for number in numbers if number < len(targets)]
    return Lane(tokens, targets, np.float32(TRAIL_RATE) * work.alphas[place])


def look(trail: TrailItems, lane: Lane, window: int) -> Look:
    """Sum up the pages before the target, or after it."""
    position, is_backward, reach = lane.targets[lane.next]
    item = int(lane.tokens[position])
    around = lane.tokens[position + 1 :][:reach] if is_backward else lane.tokens[:position][::-1][:reach]
    kept = [(lag, int(page)) for lag, page in enumerate(around) if page != item]
    lags = [lag + window * is_backward for lag, _ in kept]
    weights = trail.lags.vectors[lags, 0]
    scale = 1 / np.sqrt(np.sqrt(max((weights**2).sum(dtype=np.float32), TINY)))
    pages = [page for _, page in kept]
    hidden = (scale * weights) @ trail.inputs.vectors[pages]
    hidden[len(hidden) - 1 - is_backward] = TRAIL_BIAS
    return Look(pages, lags, list(scale * weights), np.float32(scale), hidden, item, lane.alpha)


def train_step(trail: TrailItems, looks: list[Look], work: Pass, tables: TrailTables, key: int, step: int) -> None:
    """Score the lanes' targets against the same negatives, then move all rows by the steps of the rows as they were."""
    v = trail.outputs.vectors
    draws = [draw(key, step, TILE, k) for k in range(work.config.trail_negative)]
    rows_K = np.array([draw_negative(bits, work) for bits in draws])
    negatives_KD, items_M = v[rows_K], np.array([one.item for one in looks])
    own_MD, steps_MD = v[items_M], np.zeros((len(looks), v.shape[1]), np.float32)
    pulls_MR = np.zeros((len(looks), 1 + len(rows_K)), np.float32)
    scores_MR = np.full(pulls_MR.shape, -np.inf, np.float32)
    scores_MR[:, 0] = 0
    for m, one in enumerate(looks):
        if not one.pages:
            continue
        scores_K = negatives_KD @ one.hidden - tables.corrections[rows_K]
        scores_K[(rows_K == one.item) | np.isin(rows_K, one.pages)] = -np.inf
        own = own_MD[m] @ one.hidden - tables.corrections[one.item] - np.log(work.config.negative_weight)
        scores_MR[m] = np.append(own, scores_K)
        p = softmax(scores_MR[m])
        pulls_MR[m] = np.append(p[1:].sum(), -p[1:])
        steps_MD[m] = pulls_MR[m, 1:] @ negatives_KD
    (move_outputs_at_once if reference.AT_ONCE else move_outputs_in_turn)(
        trail.outputs, looks, rows_K, scores_MR, pulls_MR, steps_MD, tables
    )
    move_inputs(trail, looks, steps_MD, tables)


def move_outputs_in_turn(
    outputs: Rows, looks: list[Look], rows_K: np.ndarray, scores_MR: np.ndarray, pulls_MR: np.ndarray, steps_MD: np.ndarray,
    tables: TrailTables,
) -> None:  # fmt: skip
    """Move the targets' rows, then the negatives, and add the targets' pulls to steps_MD."""
    v = outputs.vectors
    negative_steps_KD = pulls_MR[:, 1:].T @ np.stack([one.hidden for one in looks])
    for m, one in enumerate(looks):
        if one.pages:
            pull, row_D = pulls_MR[m, 0], v[one.item].copy()
            rate = rate_of(outputs, one.item, pull**2 * np.mean(one.hidden**2), one.alpha)
            steps_MD[m] += pull * row_D
            v[one.item] += rate * (pull * one.hidden - tables.l2s[one.item] * row_D)
    for row, step_D in zip(rows_K, negative_steps_KD, strict=True):
        v[row] += rate_of(outputs, row, np.mean(step_D**2), looks[0].alpha) * step_D


def move_outputs_at_once(
    outputs: Rows, looks: list[Look], rows_K: np.ndarray, scores_MR: np.ndarray, pulls_MR: np.ndarray, steps_MD: np.ndarray,
    tables: TrailTables,
) -> None:  # fmt: skip
    """As `move_outputs_in_turn`, by the rows as they were."""
    h_MD, items_M = np.stack([one.hidden for one in looks]), np.array([one.item for one in looks])
    own_MD, l2_M = outputs.vectors[items_M], tables.l2s[items_M] * [bool(one.pages) for one in looks]
    gradients_MD = pulls_MR[:, :1] * h_MD - l2_M[:, None] * own_MD
    squares_M, alphas_M = pulls_MR[:, 0] ** 2 * np.mean(h_MD**2, axis=1), np.array([one.alpha for one in looks])
    steps_MD += pulls_MR[:, :1] * own_MD
    move_at_once(
        outputs, h_MD, items_M, gradients_MD, squares_M, alphas_M, rows_K, scores_MR, pulls_MR, tables.corrections, True
    )


def move_inputs(trail: TrailItems, looks: list[Look], steps_MD: np.ndarray, tables: TrailTables) -> None:
    """Move the pages that were looked at, but for the two biases, and then the weights of the lags.

    On a card lag after lag, L2 and the lags' steps by the rows before, at rates by the sums that all have raised.
    """
    lag_steps = np.zeros(len(trail.lags.squares), np.float32)
    moves = [(one, step_D[:-2], i) for one, step_D in zip(looks, steps_MD, strict=True) for i in range(len(one.pages))]
    window, before, lag_before = len(lag_steps) // 2, trail.inputs.vectors, -1
    squares = [one.factors[i] ** 2 * (free_D**2).sum() / before.shape[1] for one, free_D, i in moves]
    if reference.AT_ONCE:
        pages = np.array([one.pages[i] for one, _, i in moves], np.int64)
        alphas = np.array([one.alpha for one, _, _ in moves])
        rates = rates_at_once(trail.inputs, pages, np.array(squares), alphas, True).tolist()
        order = sorted(range(len(moves)), key=lambda number: moves[number][0].lags[moves[number][2]] % window)
    else:
        rates, order = [], list(range(len(moves)))
    for number in order:
        one, free_D, i = moves[number]
        page, lag, factor = one.pages[i], one.lags[i], one.factors[i]
        if rates and lag % window != lag_before:
            before, lag_before = trail.inputs.vectors.copy(), lag % window
        c = before[page][:-2].copy()
        lag_steps[lag] += one.scale * (free_D @ c)
        rate = np.float32(rates[number] if rates else rate_of(trail.inputs, page, squares[number], one.alpha))
        trail.inputs.vectors[page][:-2] += rate * (
            factor * free_D - np.float32(L2_WINDOW / window) * tables.l2s[page] * c
        )
    for lag in np.flatnonzero(lag_steps):
        rate = rate_of(trail.lags, lag, lag_steps[lag] ** 2, LAG_RATE * looks[0].alpha)
        trail.lags.vectors[lag] = max(LEAST_LAG, trail.lags.vectors[lag, 0] + rate * lag_steps[lag])


def rate_of(rows: Rows, row: int, square: np.float32, alpha: np.float32) -> np.float32:
    rows.squares[row] += square
    return np.float32(alpha / np.sqrt(rows.squares[row]))
