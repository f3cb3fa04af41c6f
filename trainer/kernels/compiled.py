"""The compiled part of the CPU kernel: `train_order`, into which all is inlined; how users begin, and how they are rounded.
The formulas are in README.md.

What keeps it fast: no arrays are made and no references counted (`_nrt=False`: numba would count them with atomic
additions that cost more than the rows); what is constant in a loop over dimensions is computed before it; rows are asked
for before they are needed; loops over dimensions may use the widest vectors there are. One file, because numba's cache is
renewed only when the file of a kept function has changed.
"""
# mypy: no-check-untyped-defs
# numba itself gives an intrinsic its first argument

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from trainer import draws
from trainer.draws import INIT, NEGATIVE, ROUND, SUBSAMPLE, WINDOW, WORDS
from trainer.objectives import MAX_SCORE
from trainer.rows import EPSILON

_GAMMA = np.uint64(draws.GAMMA)
_MIX_1 = np.uint64(draws.MIX_1)
_MIX_2 = np.uint64(draws.MIX_2)
_DRAW_BITS = np.uint64(draws.DRAW_BITS)
_PURPOSE_BITS = np.uint64(draws.PURPOSE_BITS)
_ONE = np.uint64(1)
_16, _27, _30, _31, _32, _40 = (np.uint64(bits) for bits in (16, 27, 30, 31, 32, 40))
_LOW_16, _LOW_32 = np.uint64(2**16 - 1), np.uint64(2**32 - 1)
_EPSILON = np.float32(EPSILON)
_ROWS_AHEAD = 8
_VECTOR = 8  # numbers of AVX2's vectors
LINE_NUMBERS = 16  # float32 or int32 of a cache line of 64 bytes
_TILE_LINES = 4  # of two vectors, the step and what predicts: the 16 registers of AVX2
_MAX_SCORE = np.float32(MAX_SCORE)
_MAX_EXPONENT = np.float32(80)  # exp of it is still a finite float32


class Table(NamedTuple):
    """Rows, and where their gradients are summed: vectors, sums float32[n, D]; squares, touched float32[n]."""

    vectors: Any
    squares: Any
    sums: Any
    touched: Any


class Noise(NamedTuple):
    """The tables of trainer.objectives.Sampling that negatives need."""

    thresholds: Any
    aliases: Any
    corrections: Any


class Paths(NamedTuple):
    """The arrays of trainer.trees.Tree; max_rows: the most rows on a way to a class."""

    parents: Any
    slots: Any
    first_rows: Any
    widths: Any
    num_classes: int
    max_rows: int


class Rule(NamedTuple):
    """What is learned, as numbers."""

    is_softmax: bool
    handicap: Any
    is_adagrad: bool
    is_dm: bool
    has_words: bool
    has_tree: bool
    is_frozen: bool
    is_summing: bool
    window: int
    num_negatives: int
    block_tokens: int
    num_free: int
    recency: Any
    l2: Any
    item_l2: Any


class Scratch(NamedTuple):
    """A thread's own arrays.

    kept int64[n]: the positions that subsampling keeps of a history, at its beginning;
    user, hidden, step float32[D]: the user's row, what predicts, and the answer of the learn functions, the step up of it;
    of the rows that take part in a prediction: rows uint32[R] (unsigned: numba wraps negative indices), dots, squares,
    scores, pulls, step_pulls, weights, shrinks, grows float32[R]; root_slots uint32[R]: where a block's tokens leave the root.
    """

    kept: Any
    user: Any
    hidden: Any
    step: Any
    rows: Any
    dots: Any
    squares: Any
    scores: Any
    pulls: Any
    step_pulls: Any
    weights: Any
    shrinks: Any
    grows: Any
    root_slots: Any


class Model(NamedTuple):
    """All that a thread trains with."""

    users: Table
    outputs: Table
    inputs: Table
    noise: Noise
    paths: Paths
    rule: Rule
    scratch: Scratch


class Turn(NamedTuple):
    """A user's turn: its row, its history int32[n], the kept positions int64[num_kept or more], its key and alpha."""

    user: Any
    history: Any
    kept: Any
    num_kept: Any
    key: Any
    alpha: Any


_OPTIONS: dict[str, Any] = {"fastmath": True, "error_model": "numpy", "_nrt": False}
_inlined = numba.njit(forceinline=True, **_OPTIONS)
# The large ones, which numba would compile by themselves before they are inlined: 20 s more.
_written_out = numba.njit(inline="always", **_OPTIONS)


@_inlined
def mix(x):
    x = (x ^ (x >> _30)) * _MIX_1
    x = (x ^ (x >> _27)) * _MIX_2
    return x ^ (x >> _31)


@_inlined
def draw(key, position, purpose, number):
    """One 64-bit draw, as trainer.draws defines it."""
    count = ((((np.uint64(position) << _PURPOSE_BITS) | np.uint64(purpose)) << _DRAW_BITS) | np.uint64(number)) + _ONE
    return mix(key + _GAMMA * count)


@_inlined
def draw_negative(bits, noise):
    """The item that 64 random bits choose from the noise distribution."""
    slot = np.int64(((bits >> _32) * np.uint64(noise.aliases.shape[0])) >> _32)
    alias = np.int64(noise.aliases[slot])  # read in any case: a branch at random is guessed wrong half of the time
    return slot if (bits & _LOW_32) < noise.thresholds[slot] else alias


@numba.njit(forceinline=True, **_OPTIONS | {"fastmath": {"contract"}})
def exp(x):
    """e to the power of x in [-87, 80], to 2e-7 of it: 2**n times a polynomial (Cephes' expf), as vector code where it can be.

    Of fastmath only what fuses: all of it would take the two parts of log(2) together. math.exp is a call for each number.
    """
    x = min(max(x, np.float32(-87)), _MAX_EXPONENT)
    # Cut off above zero: math.floor without its call. The difference is one of floats, as of int32 numba makes an int64.
    power = np.int32(x * np.float32(1.44269504) + np.float32(127.5))
    n = np.float32(power) - np.float32(127)
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    y = np.float32(1.9875691500e-4)
    y = y * r + np.float32(1.3981999507e-3)
    y = y * r + np.float32(8.3334519073e-3)
    y = y * r + np.float32(4.1665795894e-2)
    y = y * r + np.float32(1.6666665459e-1)
    y = y * r + np.float32(5.0000001201e-1)
    y = y * r * r + r + np.float32(1)
    return y * np.int32(power << np.int32(23)).view(np.float32)


@_inlined
def whole_vectors(num):
    """So many numbers, and the rest of their last vector: scratch arrays have room for it, and one by one takes longer."""
    return (num + _VECTOR - 1) & -_VECTOR


@_inlined
def sigmoid(x):
    return np.float32(1) / (np.float32(1) + exp(-x))


@_inlined
def clipped_sigmoid(x, is_own):
    """The probability of a score; what was to be learned already, where the score takes no step."""
    return sigmoid(x) if abs(x) < _MAX_SCORE else np.float32(is_own)


@_inlined
def weight_of(turn, position, recency):
    """What a token counts for the user's vector: half at `recency` tokens before the newest; 0 for always 1."""
    if recency == 0:
        return np.float32(1)
    return np.float32(1) / (np.float32(1) + np.float32(turn.history.shape[0] - 1 - position) / recency)


@_inlined
def rate_of(squares, row, square, num_dims, alpha, is_adagrad):
    """The learning rate of a row's step with a squared gradient: alpha, or Adagrad's, to whose sum the step is added."""
    if not is_adagrad:
        return alpha
    squares[row] += max(square, np.float32(0)) / np.float32(num_dims)
    return alpha / np.float32(math.sqrt(squares[row] + _EPSILON))


@intrinsic
def prefer_wide_vectors(typing_context):
    """Let the loops of the function that begins with this use vectors of 512 bits where the machine has them: of Intel's, LLVM
    by itself uses half, for the sake of code that needs them seldom.
    """

    def generate(context, builder, signature, arguments):
        attributes = builder.function.attributes
        set.add(attributes, '"prefer-vector-width"="512"')  # their own `add` refuses those with values
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def prefetch(typing_context, array, place):
    """Ask for the cache line of the number at a place of an array, as it lies in memory, which is about to be used."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        int32, byte_pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        is_write, locality, is_data = (ir.Constant(int32, value) for value in (1, 3, 1))
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), byte_pointer)
        builder.call(function, [pointer, is_write, locality, is_data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def take(typing_context, taken, number):
    """Add to the first number of an array, int64, that threads share; answers what it was: no two are answered the same."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", data, arguments[1], "monotonic")

    return types.int64(taken, types.int64), generate


@intrinsic
def pull_tiles(typing_context, vectors, rows, step, hidden, step_pulls, shrinks, grows, num_rows, num_free):
    """`pull_rows` for the dimensions that fill tiles of _TILE_LINES lines; answers how many these are.

    A tile of the step stays in registers over all rows, where LLVM's own loops load and store it for each row. The last
    number of the last tile, if it is a bias (dimension `num_free`), does not shrink.
    """

    def generate(context, builder, signature, arguments):
        line_type, index = ir.VectorType(ir.FloatType(), LINE_NUMBERS), ir.IntType(64)
        arrays = [
            context.make_array(array_type)(context, builder, array)
            for array_type, array in zip(signature.args[:7], arguments[:7], strict=True)
        ]
        vectors, rows, step, hidden, step_pulls, shrinks, grows = (array.data for array in arrays)
        num_rows, num_free = arguments[7:]
        num_dims = cgutils.unpack_tuple(builder, arrays[0].shape)[1]
        tile_size = ir.Constant(index, _TILE_LINES * LINE_NUMBERS)
        num_tiles = builder.sdiv(num_dims, tile_size)

        def line_at(data, place):
            return builder.bitcast(builder.gep(data, [place]), line_type.as_pointer())

        def times_plus(factor, line, added):
            return builder.fadd(builder.fmul(factor, line, flags=("fast",)), added, flags=("fast",))

        def in_all_lanes(data, place):
            none, value = ir.Constant(line_type, ir.Undefined), builder.load(builder.gep(data, [place]))
            lane = builder.insert_element(none, value, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(lane, none, ir.Constant(ir.VectorType(ir.IntType(32), LINE_NUMBERS), None))

        steps = [cgutils.alloca_once(builder, line_type) for _ in range(_TILE_LINES)]
        with cgutils.for_range(builder, num_tiles) as tile:
            start = builder.mul(tile.index, tile_size)
            has_bias = builder.icmp_signed("<", num_free, builder.add(start, tile_size))
            places = [builder.add(start, ir.Constant(index, line * LINE_NUMBERS)) for line in range(_TILE_LINES)]
            hiddens = [builder.load(line_at(hidden, place), align=4) for place in places]
            for place, kept in zip(places, steps, strict=True):
                builder.store(builder.load(line_at(step, place), align=4), kept)
            with cgutils.for_range(builder, num_rows) as turn:
                row = builder.zext(builder.load(builder.gep(rows, [turn.index])), index)
                first = builder.mul(row, num_dims)
                step_pull, grow, shrink = (in_all_lanes(data, turn.index) for data in (step_pulls, grows, shrinks))
                last_lane, one = ir.Constant(ir.IntType(32), LINE_NUMBERS - 1), ir.Constant(ir.FloatType(), 1)
                last_shrink = builder.select(has_bias, builder.insert_element(shrink, one, last_lane), shrink)
                factors = [shrink] * (_TILE_LINES - 1) + [last_shrink]
                for place, kept, predicting, factor in zip(places, steps, hiddens, factors, strict=True):
                    address = line_at(vectors, builder.add(first, place))
                    line = builder.load(address, align=4)
                    builder.store(times_plus(step_pull, line, builder.load(kept)), kept)
                    grown = builder.fmul(grow, predicting, flags=("fast",))
                    builder.store(times_plus(factor, line, grown), address, align=4)
            for place, kept in zip(places, steps, strict=True):
                builder.store(builder.load(kept), line_at(step, place), align=4)
        return builder.mul(num_tiles, tile_size)

    inputs = (vectors, rows, step, hidden, step_pulls, shrinks, grows, types.int64, types.int64)
    return types.int64(*inputs), generate


@_inlined
def prefetch_row(vectors, row):
    """Ask for a row that is about to be read and written."""
    start = np.int64(row) * vectors.shape[1]
    for place in range(start, start + vectors.shape[1], LINE_NUMBERS):
        prefetch(vectors, place)


@_inlined
def prefetch_users(histories, users, place, last):
    """Ask for what the next two users of the order begin with: where one's history is, the other's row and first tokens."""
    tokens, starts, ends, hashes, order, _, _ = histories
    if place + 1 < last:
        prefetch_row(users.vectors, order[place + 1])
        first = starts[order[place + 1]]
        prefetch(tokens, first)
        prefetch(tokens, first + LINE_NUMBERS)
    if place + 2 < last:
        user = order[place + 2]
        prefetch(starts, user)
        prefetch(ends, user)
        prefetch(hashes, user)


@_inlined
def score_rows(table, hidden, num_rows, scratch):
    """dots = hidden . row and squares = row . row of the rows of a prediction."""
    prefer_wide_vectors()
    vectors = table.vectors
    for i in range(num_rows):
        if i + _ROWS_AHEAD < num_rows:
            prefetch_row(vectors, scratch.rows[i + _ROWS_AHEAD])
        row, total, square = scratch.rows[i], np.float32(0), np.float32(0)
        for d in range(hidden.shape[0]):
            value = vectors[row, d]
            total += hidden[d] * value
            square += value * value
        scratch.dots[i], scratch.squares[i] = total, square


@_inlined
def pull_rows(model, hidden, num_rows, num_own, alpha):
    """The rows of a prediction and the hidden vector pull each other, one row after the other.

    step += sum of step_pull * row, row += rate * (pull * hidden - l2 * row), with l2 for the first `num_own` rows but not for
    their bias; the rates are those of the rows as they were scored.
    """
    prefer_wide_vectors()
    rule, scratch = model.rule, model.scratch
    vectors, sums, step = model.outputs.vectors, model.outputs.sums, scratch.step
    num_dims = hidden.shape[0]
    if rule.is_frozen:
        for i in range(num_rows):
            row, step_pull = scratch.rows[i], scratch.step_pulls[i]
            for d in range(num_dims):
                step[d] += step_pull * vectors[row, d]
    elif rule.is_summing:
        for i in range(num_rows):
            row, pull, step_pull = scratch.rows[i], scratch.pulls[i], scratch.step_pulls[i]
            l2 = rule.item_l2 if i < num_own else np.float32(0)
            for d in range(num_dims):
                step[d] += step_pull * vectors[row, d]
                sums[row, d] += pull * hidden[d] - l2 * vectors[row, d]
            for d in range(rule.num_free, num_dims):
                sums[row, d] += l2 * vectors[row, d]
            model.outputs.touched[row] = np.float32(1)
    else:
        set_rates(model, hidden, num_rows, num_own, alpha)
        step_pulls, shrinks, grows = scratch.step_pulls, scratch.shrinks, scratch.grows
        tiled = pull_tiles(vectors, scratch.rows, step, hidden, step_pulls, shrinks, grows, num_rows, rule.num_free)
        if tiled == num_dims:
            return
        for i in range(num_rows):
            row, step_pull, shrink, grow = scratch.rows[i], step_pulls[i], shrinks[i], grows[i]
            bias = vectors[row, num_dims - 1]
            for d in range(tiled, num_dims):
                value = vectors[row, d]
                step[d] += step_pull * value
                vectors[row, d] = shrink * value + grow * hidden[d]
            if rule.num_free < num_dims:
                vectors[row, num_dims - 1] = bias + grow * hidden[num_dims - 1]


@_inlined
def set_rates(model, hidden, num_rows, num_own, alpha):
    """Each row's step as row * shrink + hidden * grow; adds to Adagrad's sums. Short loops, which become vector code."""
    rule, scratch, table_squares = model.rule, model.scratch, model.outputs.squares
    rows, pulls, squares, shrinks, grows = scratch.rows, scratch.pulls, scratch.squares, scratch.shrinks, scratch.grows
    num_dims, hidden_square = hidden.shape[0], np.float32(0)
    for d in range(num_dims):
        hidden_square += hidden[d] * hidden[d]
    if rule.num_free < num_dims:
        for i in range(num_own):
            bias = model.outputs.vectors[rows[i], num_dims - 1]
            scratch.dots[i] -= hidden[num_dims - 1] * bias
            squares[i] -= bias * bias
    for i in range(num_rows):
        shrinks[i] = rule.item_l2 if i < num_own else np.float32(0)
    for i in range(num_rows):
        l2, pull = shrinks[i], pulls[i]
        square = pull * pull * hidden_square + l2 * (l2 * squares[i] - np.float32(2) * pull * scratch.dots[i])
        squares[i] = max(square, np.float32(0)) / np.float32(num_dims)
    if rule.is_adagrad:
        for i in range(num_rows):
            table_squares[rows[i]] += squares[i]
            squares[i] = table_squares[rows[i]]
    for i in range(num_rows):
        rate = alpha / np.float32(math.sqrt(squares[i] + _EPSILON)) if rule.is_adagrad else alpha
        shrinks[i] = np.float32(1) - rate * shrinks[i]
        grows[i] = rate * pulls[i]


@_written_out
def learn(model, hidden, turn, place, num_own, purpose, first_draw):
    """Let `hidden` predict the tokens at `num_own` places from `place`: moves the outputs, leaves its step in scratch.step.

    A token has its weight in scratch.weights for `hidden`, but always 1 for the outputs.
    """
    step = model.scratch.step
    for d in range(step.shape[0]):
        step[d] = np.float32(0)
    if model.rule.has_tree:
        learn_by_tree(model, hidden, turn, place, num_own)
    else:
        learn_by_draws(model, hidden, turn, place, num_own, purpose, first_draw)


@_inlined
def learn_by_draws(model, hidden, turn, place, num_own, purpose, first_draw):
    """Sampled softmax or negative sampling: every token of the block against the same negatives."""
    rule, noise, scratch = model.rule, model.noise, model.scratch
    rows, scores, pulls, step_pulls = scratch.rows, scratch.scores, scratch.pulls, scratch.step_pulls
    weights = scratch.weights
    num_rows = num_own + rule.num_negatives
    for i in range(num_own):
        rows[i] = turn.history[turn.kept[place + i]]
    for k in range(rule.num_negatives):
        rows[num_own + k] = draw_negative(draw(turn.key, turn.kept[place], purpose, first_draw + k + 1), noise)
        if num_own + k < _ROWS_AHEAD:
            prefetch_row(model.outputs.vectors, rows[num_own + k])
    score_rows(model.outputs, hidden, num_rows, scratch)
    highest = np.float32(-1e30)
    for i in range(num_rows):
        scores[i] = scratch.dots[i] - noise.corrections[rows[i]]
    for i in range(num_own):
        scores[i] -= rule.handicap
    for i in range(num_own, num_rows):
        highest = max(highest, scores[i])
    if rule.is_softmax:
        for i in range(whole_vectors(num_rows)):
            scores[i] = exp(scores[i] - highest)
    else:
        for i in range(num_rows):
            scores[i] = clipped_sigmoid(scores[i], i < num_own)
    total = np.float32(0)
    for i in range(num_own, num_rows):
        total += scores[i]
        pulls[i] = np.float32(0)
        step_pulls[i] = np.float32(0)
    whole, step_whole = np.float32(0), np.float32(0)
    for i in range(num_own):
        own = np.float32(0)  # a negative that is the token itself does not count for this token
        for j in range(num_own, num_rows):
            if rows[j] == rows[i]:
                own += scores[j]
        inverse = np.float32(1)
        if rule.is_softmax:
            inverse = np.float32(1) / (scores[i] + max(total - own, np.float32(0)))
        pulls[i] = np.float32(1) - scores[i] * inverse
        step_pulls[i] = weights[i] * pulls[i]
        whole += inverse
        step_whole += weights[i] * inverse
        if own != 0:
            for j in range(num_own, num_rows):
                if rows[j] == rows[i]:
                    pulls[j] += inverse
                    step_pulls[j] += weights[i] * inverse
    for i in range(num_own, num_rows):
        pulls[i] = (pulls[i] - whole) * scores[i]
        step_pulls[i] = (step_pulls[i] - step_whole) * scores[i]
    pull_rows(model, hidden, num_rows, num_own, turn.alpha)


@_written_out
def learn_by_tree(model, hidden, turn, place, num_own):
    """Hierarchical softmax of a block: the nodes on each token's way, from the leaf up, then the root, once for all of them."""
    for i in range(num_own):
        num_rows = pull_on_the_way(model, hidden, turn, place, i)
        pull_rows(model, hidden, num_rows, 0, turn.alpha)
    if model.paths.widths.shape[0] > 0:
        num_rows = pull_at_the_root(model, hidden, num_own)
        pull_rows(model, hidden, num_rows, 0, turn.alpha)


@_inlined
def pull_on_the_way(model, hidden, turn, place, own):
    """The pulls of the nodes between the block's token `own` and the root, and its slot at the root; answers their rows."""
    paths, scratch = model.paths, model.scratch
    rows, pulls = scratch.rows, scratch.pulls
    leaf = np.int64(turn.history[turn.kept[place + own]])
    num_rows, node = np.int64(0), leaf
    while paths.parents[node] > 0:
        inner = np.int64(paths.parents[node])
        first = np.int64(paths.first_rows[inner])
        for child in range(rows_of(paths.widths[inner])):
            rows[num_rows] = first + child
            num_rows += 1
        node = paths.num_classes + inner
    scratch.root_slots[own] = paths.slots[node]
    score_rows(model.outputs, hidden, num_rows, scratch)
    start, node = np.int64(0), leaf
    while paths.parents[node] > 0:
        inner = np.int64(paths.parents[node])
        stop = start + rows_of(paths.widths[inner])
        choose(scratch, start, stop)
        slot = np.int64(paths.slots[node])
        if slot < stop - start:
            pulls[start + slot] += np.float32(1)
        start = stop
        node = paths.num_classes + inner
    for i in range(num_rows):
        scratch.step_pulls[i] = scratch.weights[own] * pulls[i]
    return num_rows


@_inlined
def pull_at_the_root(model, hidden, num_own):
    """The pulls of the root for all tokens of a block; answers its rows."""
    paths, scratch = model.paths, model.scratch
    pulls, step_pulls, weights = scratch.pulls, scratch.step_pulls, scratch.weights
    num_rows = rows_of(paths.widths[0])
    for i in range(num_rows):
        scratch.rows[i] = np.int64(paths.first_rows[0]) + i
    score_rows(model.outputs, hidden, num_rows, scratch)
    choose(scratch, np.int64(0), num_rows)
    weight = np.float32(0)
    for i in range(num_own):
        weight += weights[i]
    for i in range(num_rows):
        step_pulls[i] = weight * pulls[i]
        pulls[i] *= np.float32(num_own)
    for i in range(num_own):
        slot = np.int64(scratch.root_slots[i])
        if slot < num_rows:
            pulls[slot] += np.float32(1)
            step_pulls[slot] += weights[i]
    return num_rows


@_inlined
def rows_of(width):
    """The parameter rows of a node with so many children."""
    return np.int64(width) if width > 2 else np.int64(width) - 1


@_inlined
def choose(scratch, start, stop):
    """pulls[start:stop] of a node's rows: minus the probability of each child, of one row that of slot 0."""
    dots, pulls = scratch.dots, scratch.pulls
    if stop - start == 1:
        pulls[start] = -sigmoid(dots[start])
        return
    highest, total = np.float32(-1e30), np.float32(0)
    for i in range(start, stop):
        highest = max(highest, dots[i])
    for i in range(start, stop):
        pulls[i] = exp(dots[i] - highest)
        total += pulls[i]
    for i in range(start, stop):
        pulls[i] = -pulls[i] / total


@_inlined
def move_user(model, turn, weight):
    """One step up of the user's row, but for its bias, by scratch.step and L2 times `weight`."""
    prefer_wide_vectors()
    rule, user, step = model.rule, model.scratch.user, model.scratch.step
    num_dims = user.shape[0]
    l2 = weight * rule.l2 / np.float32(math.sqrt(np.float32(max(1, turn.history.shape[0]))))
    bias, square = user[num_dims - 1], np.float32(0)
    if rule.num_free < num_dims:  # set aside: loops over all dimensions are whole vectors
        user[num_dims - 1] = step[num_dims - 1] = np.float32(0)
    for d in range(num_dims):
        gradient = step[d] - l2 * user[d]
        square += gradient * gradient
    rate = rate_of(model.users.squares, turn.user, square, num_dims, turn.alpha, rule.is_adagrad)
    shrink = np.float32(1) - rate * l2
    for d in range(num_dims):
        user[d] = shrink * user[d] + rate * step[d]
    if rule.num_free < num_dims:
        user[num_dims - 1] = bias


@_inlined
def move_input(model, word, alpha):
    """One step up of an item's row as context, by scratch.step."""
    rule, inputs, step = model.rule, model.inputs, model.scratch.step
    num_dims = step.shape[0]
    if rule.is_summing:
        for d in range(num_dims):
            inputs.sums[word, d] += step[d]
        inputs.touched[word] = np.float32(1)
    elif not rule.is_frozen:
        square = np.float32(0)
        for d in range(num_dims):
            square += step[d] * step[d]
        rate = rate_of(inputs.squares, word, square, num_dims, alpha, rule.is_adagrad)
        for d in range(num_dims):
            inputs.vectors[word, d] += rate * step[d]


@_inlined
def reach_of(turn, place, window):
    """Tokens on each side that are context: word2vec's window, shrunk at random."""
    return window - np.int64(((draw(turn.key, turn.kept[place], WINDOW, 0) >> _32) * np.uint64(window)) >> _32)


@_written_out
def train_dbow(model, turn):
    """The user predicts its tokens, a block at a time; with dbow_words a token's context predicts it first."""
    rule, weights = model.rule, model.scratch.weights
    for start in range(0, turn.num_kept, rule.block_tokens):
        num_own = min(rule.block_tokens, turn.num_kept - start)
        if rule.has_words:
            train_words(model, turn, start)
        weight = np.float32(0)
        for i in range(num_own):
            weights[i] = weight_of(turn, turn.kept[start + i], rule.recency)
            weight += weights[i]
        learn(model, model.scratch.user, turn, start, num_own, NEGATIVE, 0)
        move_user(model, turn, weight)


@_written_out
def train_words(model, turn, place):
    """Each token of the context predicts the token at `place`: skip-gram."""
    rule, hidden = model.rule, model.scratch.hidden
    reach = reach_of(turn, place, rule.window)
    for j in range(max(0, place - reach), min(turn.num_kept, place + reach + 1)):
        if j != place:
            word = np.int64(turn.history[turn.kept[j]])
            for d in range(hidden.shape[0]):
                hidden[d] = model.inputs.vectors[word, d]
            first_draw = (j - place + rule.window) * (rule.num_negatives + 1)
            model.scratch.weights[0] = np.float32(1)
            learn(model, hidden, turn, place, 1, WORDS, first_draw)
            move_input(model, word, turn.alpha)


@_written_out
def train_dm(model, turn):
    """The mean of the user and the context predicts each token."""
    user, hidden, step = model.scratch.user, model.scratch.hidden, model.scratch.step
    num_dims = user.shape[0]
    for place in range(turn.num_kept):
        reach = reach_of(turn, place, model.rule.window)
        first, last = max(0, place - reach), min(turn.num_kept, place + reach + 1)
        for d in range(num_dims):
            hidden[d] = user[d]
        for j in range(first, last):
            if j != place:
                word = np.int64(turn.history[turn.kept[j]])
                for d in range(num_dims):
                    hidden[d] += model.inputs.vectors[word, d]
        share = np.float32(1) / np.float32(last - first)
        for d in range(num_dims):
            hidden[d] *= share
        model.scratch.weights[0] = np.float32(1)
        learn(model, hidden, turn, place, 1, NEGATIVE, 0)
        for j in range(first, last):
            if j != place:
                move_input(model, np.int64(turn.history[turn.kept[j]]), turn.alpha)
        weight = weight_of(turn, turn.kept[place], model.rule.recency)
        for d in range(num_dims):
            step[d] *= weight
        move_user(model, turn, weight)


@numba.njit(nogil=True, cache=True, **_OPTIONS | {"fastmath": False})
def draw_vectors(keys, half_range, vectors):
    """First vectors of users by their keys, uint64[n]: fills vectors float32[n, D], uniform in ±half_range."""
    for i in range(vectors.shape[0]):
        for d in range(vectors.shape[1]):
            steps = np.float32(np.int32(draw(keys[i], d, INIT, 0) >> _40))
            vectors[i, d] = (steps * np.float32(2**-23) - np.float32(1)) * half_range


@numba.njit(nogil=True, cache=True, **_OPTIONS)
def round_vectors(keys, numbers, halves):
    """The upper halves, uint16[n, D], of float32 numbers as they are stored, uint32[n, D], rounded at random by users' keys.

    What is added to number d is the quarter d % 4 of draw d // 4, so that one draw does for four.
    """
    for i in range(numbers.shape[0]):
        for d in range(numbers.shape[1]):
            noise = (draw(keys[i], d >> 2, ROUND, 0) >> np.uint64(16 * (d & 3))) & _LOW_16
            halves[i, d] = np.uint16((np.uint64(numbers[i, d]) + noise) >> _16)


@numba.njit(nogil=True, cache=True, **_OPTIONS)
def draw_each(keys, purpose, noise, items):
    """For each key, uint64[n], as many items of the noise as fill its row of items int64[n, K]; the draws are of position 0."""
    for i in range(items.shape[0]):
        for k in range(items.shape[1]):
            items[i, k] = draw_negative(draw(keys[i], 0, purpose, k), noise)


@numba.njit(nogil=True, cache=True, **_OPTIONS)
def score_each(users, outputs, rows, scores):
    """For each user, float32[n, D], the scores of the outputs, float32[V, D], in its row of rows int64[n, K]: fills scores."""
    prefer_wide_vectors()
    for i in range(rows.shape[0]):
        if i + 1 < rows.shape[0]:
            for k in range(rows.shape[1]):
                prefetch_row(outputs, rows[i + 1, k])
        for k in range(rows.shape[1]):
            row, score = rows[i, k], np.float32(0)
            for d in range(users.shape[1]):
                score += users[i, d] * outputs[row, d]
            scores[i, k] = score


@_written_out
def train_stretch(model, histories, epoch_key, first, last):
    """Train the users from `first` to `last` of the order, one after the other; answers how many tokens were kept."""
    tokens, starts, ends, hashes, order, alphas, keep = histories
    user_vectors, row, kept = model.users.vectors, model.scratch.user, model.scratch.kept
    num_kept = 0
    for place in range(first, last):
        user = order[place]
        history = tokens[starts[user] : ends[user]]
        key = mix(hashes[user] ^ epoch_key)
        length = 0
        for position in range(history.shape[0]):
            kept[length] = position  # a branch at random would be guessed wrong
            length += (draw(key, position, SUBSAMPLE, 0) >> _32) < keep[history[position]]
        if not model.rule.has_tree:
            for i in range(min(length, _ROWS_AHEAD)):
                prefetch_row(model.outputs.vectors, history[kept[i]])
        num_kept += length
        prefetch_users(histories, model.users, place, last)
        for d in range(row.shape[0]):
            row[d] = user_vectors[user, d]
        turn = Turn(user, history, kept, length, key, alphas[place])
        if model.rule.is_dm:
            train_dm(model, turn)
        else:
            train_dbow(model, turn)
        for d in range(row.shape[0]):
            user_vectors[user, d] = row[d]
    return num_kept


@numba.njit(nogil=True, cache=True, **_OPTIONS)
def train_order(users, outputs, inputs, noise, paths, rule, scratch, histories, epoch_key, taken, stretch):
    """Train users, a stretch of so many of the order at once, until other threads have taken the last.

    taken int64[1 or more]: at first how many of the order were taken. Answers how many tokens were kept.
    """
    model = Model(users, outputs, inputs, noise, paths, rule, scratch)
    num_users, num_kept = histories[4].shape[0], 0
    first = take(taken, stretch)
    while first < num_users:
        num_kept += train_stretch(model, histories, epoch_key, first, min(first + stretch, num_users))
        first = take(taken, stretch)
    return num_kept
