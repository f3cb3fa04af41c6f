"""The kernel for CPUs: numba, a thread takes users, a user's row stays in the cache over all of its tokens.

No two threads write one user's row. Item rows are shared without locks (Hogwild, Recht et al., NIPS 2011): with
several threads an update may now and then be lost, and the result differs in its last digits from run to run. One thread
is deterministic and does what `reference.py` does, up to the rounding of reordered sums.
"""

import math

import numba
import numpy as np

from trainer.draws import NEGATIVE, SUBSAMPLE, WINDOW, WORDS
from trainer.kernels.compiled import (
    Model,
    Noise,
    Paths,
    Rule,
    Scratch,
    Table,
    Turn,
    draw,
    learn,
    mix,
    move,
    weight_of,
)
from trainer.kernels.signature import Pass
from trainer.rows import Items, Rows
from trainer.trees import Tree

numba.config.THREADING_LAYER = "omp"  # type: ignore[attr-defined]  # the layer that lives beside torch's OpenMP

_32 = np.uint64(32)
_ZERO = np.float32(0)
_NO_ROWS = Rows(np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.float32))
PIECES_A_THREAD = 8


def max_threads() -> int:
    """Threads that this process may use."""
    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


def train_users(users: Rows, items: Items, work: Pass) -> int:
    """Train the users `work.order` once, in place; answers how many tokens were kept by subsampling."""
    threads = min(work.config.threads or max_threads(), max_threads())
    numba.set_num_threads(threads)
    sampling, sums = work.sampling, work.sums or Items(_NO_ROWS, _NO_ROWS)
    return _train_users(
        _table(users, _NO_ROWS),
        _table(items.outputs, sums.outputs),
        _table(items.inputs, sums.inputs),
        Noise(sampling.thresholds, sampling.aliases, sampling.corrections),
        _paths(work.tree),
        _rule(work),
        (work.tokens, work.starts, work.ends, work.hashes, work.order, work.alphas, sampling.keep),
        np.uint64(work.epoch_key),
        1 if threads == 1 else threads * PIECES_A_THREAD,
    )


def _table(rows: Rows, sums: Rows) -> Table:
    return Table(rows.vectors, rows.squares, sums.vectors, sums.squares)


def _paths(tree: Tree | None) -> Paths:
    if tree is None:
        none = np.zeros(0, dtype=np.int32)
        return Paths(none, none.view(np.uint32), none, none, 0, 0)
    return Paths(tree.parents, tree.slots, tree.first_rows, tree.widths, tree.num_classes, tree.max_path_rows)


def _rule(work: Pass) -> Rule:
    config = work.config
    return Rule(
        is_softmax=config.objective == "sampled_softmax",
        is_adagrad=config.optimizer == "adagrad",
        is_dm=bool(config.dm),
        has_words=bool(config.dbow_words),
        has_tree=bool(config.hs),
        is_frozen=not work.update_items,
        is_summing=work.sums is not None,
        window=config.window,
        num_negatives=config.negative,
        block_tokens=config.share_negatives,
        recency=np.float32(work.recency),
        l2=np.float32(config.l2),
        item_l2=np.float32(config.item_l2),
    )


@numba.njit(parallel=True, fastmath=True, error_model="numpy", nogil=True, cache=True)
def _train_users(users, outputs, inputs, noise, paths, rule, histories, epoch_key, num_pieces):
    """Each piece of the order is one thread's; with one piece the users come strictly one after the other."""
    num_users = histories[4].shape[0]
    num_kept = np.zeros(num_pieces, np.int64)
    for piece in numba.prange(num_pieces):
        model = Model(users, outputs, inputs, noise, paths, rule, _make_scratch(users.vectors.shape[1], rule, paths))
        first, last = num_users * piece // num_pieces, num_users * (piece + 1) // num_pieces
        num_kept[piece] = _train_piece(model, histories, epoch_key, first, last)
    return num_kept.sum()


@numba.njit(error_model="numpy")
def _make_scratch(num_dims, rule, paths):
    num_rows = max(rule.block_tokens + rule.num_negatives, paths.max_rows)
    hidden, step = np.empty(num_dims, np.float32), np.empty(num_dims, np.float32)
    scores, pulls, step_pulls = (
        np.empty(num_rows, np.float32),
        np.empty(num_rows, np.float32),
        np.empty(num_rows, np.float32),
    )
    shrinks, grows = np.empty(num_rows, np.float32), np.empty(num_rows, np.float32)
    return Scratch(hidden, step, np.empty(num_rows, np.int64), scores, pulls, step_pulls, shrinks, grows)


@numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
def _train_piece(model, histories, epoch_key, first, last):
    tokens, starts, ends, hashes, order, alphas, keep = histories
    kept = np.empty(64, np.int64)
    num_kept = 0
    for place in range(first, last):
        user = order[place]
        history = tokens[starts[user] : ends[user]]
        if history.shape[0] > kept.shape[0]:
            kept = np.empty(2 * history.shape[0], np.int64)
        key = mix(hashes[user] ^ epoch_key)
        length = 0
        for position in range(history.shape[0]):
            if (draw(key, position, SUBSAMPLE, 0) >> _32) < keep[history[position]]:
                kept[length] = position
                length += 1
        num_kept += length
        turn = Turn(user, history, kept[:length], key, alphas[place])
        if model.rule.is_dm:
            _train_dm(model, turn)
        else:
            _train_dbow(model, turn)
    return num_kept


@numba.njit(inline="always", error_model="numpy")
def _reach(turn, place, window):
    """Tokens on each side that are context: word2vec's window, shrunk at random."""
    return window - np.int64(((draw(turn.key, turn.kept[place], WINDOW, 0) >> _32) * np.uint64(window)) >> _32)


@numba.njit(inline="always", error_model="numpy")
def _user_l2(model, turn):
    return model.rule.l2 / np.float32(math.sqrt(np.float32(max(1, turn.history.shape[0]))))


@numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
def _train_dbow(model, turn):
    """The user predicts its tokens, a block at a time; with dbow_words a token's context predicts it first."""
    rule, kept, step = model.rule, turn.kept, model.scratch.step
    l2 = _user_l2(model, turn)
    u = model.users.vectors[turn.user]
    for start in range(0, kept.shape[0], rule.block_tokens):
        block = kept[start : start + rule.block_tokens]
        if rule.has_words:
            _train_words(model, turn, start)
        learn(model, u, turn, block, NEGATIVE, 0, rule.recency)
        weights = np.float32(0)
        for position in block:
            weights += weight_of(turn, position, rule.recency)
        move(model.users, turn.user, step, l2 * weights, turn.alpha, rule.is_adagrad, False)


@numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
def _train_words(model, turn, place):
    """Each token of the context predicts the token at `place`: skip-gram."""
    rule, kept, hidden = model.rule, turn.kept, model.scratch.hidden
    reach = _reach(turn, place, rule.window)
    for j in range(max(0, place - reach), min(kept.shape[0], place + reach + 1)):
        if j != place:
            word = np.int64(turn.history[kept[j]])
            hidden[:] = model.inputs.vectors[word]
            first_draw = (j - place + rule.window) * (rule.num_negatives + 1)
            learn(model, hidden, turn, kept[place : place + 1], WORDS, first_draw, _ZERO)
            _move_input(model, word, turn.alpha)


@numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
def _train_dm(model, turn):
    """The mean of the user and the context predicts each token."""
    rule, kept, hidden, step = model.rule, turn.kept, model.scratch.hidden, model.scratch.step
    u = model.users.vectors[turn.user]
    l2 = _user_l2(model, turn)
    for place in range(kept.shape[0]):
        reach = _reach(turn, place, rule.window)
        first, last = max(0, place - reach), min(kept.shape[0], place + reach + 1)
        hidden[:] = u
        for j in range(first, last):
            if j != place:
                v = model.inputs.vectors[turn.history[kept[j]]]
                for d in range(hidden.shape[0]):
                    hidden[d] += v[d]
        share = np.float32(1) / np.float32(last - first)
        for d in range(hidden.shape[0]):
            hidden[d] *= share
        learn(model, hidden, turn, kept[place : place + 1], NEGATIVE, 0, _ZERO)
        for j in range(first, last):
            if j != place:
                _move_input(model, np.int64(turn.history[kept[j]]), turn.alpha)
        weight = weight_of(turn, kept[place], rule.recency)
        for d in range(hidden.shape[0]):
            step[d] *= weight
        move(model.users, turn.user, step, l2 * weight, turn.alpha, rule.is_adagrad, False)


@numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
def _move_input(model, word, alpha):
    rule = model.rule
    if not rule.is_frozen:
        move(model.inputs, word, model.scratch.step, _ZERO, alpha, rule.is_adagrad, rule.is_summing)
