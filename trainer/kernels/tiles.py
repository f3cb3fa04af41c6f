"""Small matrix products for a tile of users that share negatives, compiled: rows in scratch arrays, accumulators in registers.

A tile has M lanes, each with a predicting vector, and K negatives; D dimensions. All arrays are scratch of a thread,
C-contiguous, zero beyond what they hold: M and D are padded to multiples of LINE_NUMBERS, K to one of ROW_BLOCK. Lanes lie side
by side in a vector, so that a softmax needs no sums across one (losses.py).

    users     float32[M, D]   a predicting vector a lane       across  float32[D, M]   the same, transposed
    negatives float32[K, D]   copies of their rows             scores  float32[K, M]   negative . user; later their pulls

The steps of a tile, in order: `turn_rows` (users to across), `score_tile`, a loss (scores to pulls), then `pull_users` and
`pull_negatives`. `num_lanes` lanes are in use: of the others, results mean nothing, but sums leave them out.
A caller has to call `prefer_wide_vectors`. Any vector width works; the block of accumulators is chosen by the CPU's registers.
"""
# mypy: no-check-untyped-defs
# numba itself gives an intrinsic its first argument

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from surf2vec.trainer.kernels.llvm import LINE_NUMBERS, LINE_TYPE, in_all_lanes, line_at

ROW_BLOCK = 8
_FEATURES = numba.config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten()  # type: ignore[attr-defined]
_INT_LINE = ir.VectorType(ir.IntType(32), LINE_NUMBERS)
_HAS_512_BITS = "+avx512f" in _FEATURES
_ROWS, _LINES = (8, 2) if _HAS_512_BITS else (4, 1)  # of accumulators: 16 of 32 registers, or 8 of 16
_INDEX = ir.IntType(64)
_GAP_FLOATS = 256


def padded(size: int, multiple: int = LINE_NUMBERS) -> int:
    """Return `size` rounded up to a multiple."""
    return -(-size // multiple) * multiple


def scratch_rows(num_rows: int, size: int) -> NDArray[np.float32]:
    """Return zeros float32[num_rows, size] that begin with a cache line, with a gap on both sides."""
    buffer = np.zeros(num_rows * size + 2 * _GAP_FLOATS + LINE_NUMBERS, dtype=np.float32)[_GAP_FLOATS:]
    start = -buffer.ctypes.data // buffer.itemsize % LINE_NUMBERS
    return buffer[start : start + num_rows * size].reshape(num_rows, size)


def _index(number):
    return ir.Constant(_INDEX, number)


def _unpack(context, builder, signature, arguments):
    """Return the arguments: of an array a pair of its data and its shape."""
    values = []
    for argument_type, argument in zip(signature.args, arguments, strict=True):
        if isinstance(argument_type, types.Array):
            array = context.make_array(argument_type)(context, builder, argument)
            values.append((array.data, cgutils.unpack_tuple(builder, array.shape)))
        else:
            values.append(argument)
    return values


def _load(builder, data, place):
    return builder.load(line_at(builder, data, place), align=4)


def _store(builder, line, data, place):
    builder.store(line, line_at(builder, data, place), align=4)


def _lines_for(builder, number):
    """Return in how many lines so many numbers are."""
    return builder.udiv(builder.add(number, _index(LINE_NUMBERS - 1)), _index(LINE_NUMBERS))


def _add_up(builder, out, left, right, row, line, sizes, num_terms):
    """Set out[row + i, line + j] = sum over t of left[row + i, t] * right[t, line + j] for a block of `sizes` accumulators.

    out, right: (data, stride of a row); left: (data, stride of a row, stride of a term).
    """
    num_rows, num_lines = sizes
    sums = [[cgutils.alloca_once(builder, LINE_TYPE) for _ in range(num_lines)] for _ in range(num_rows)]
    for place in (place for row_sums in sums for place in row_sums):
        builder.store(ir.Constant(LINE_TYPE, [0.0] * LINE_NUMBERS), place)
    first = builder.mul(line, _index(LINE_NUMBERS))
    columns = [builder.add(first, _index(j * LINE_NUMBERS)) for j in range(num_lines)]
    rows = [builder.add(row, _index(i)) for i in range(num_rows)]
    starts = [builder.mul(number, left[1]) for number in rows]
    with cgutils.for_range(builder, num_terms) as term:
        below = builder.mul(term.index, right[1])
        lines = [_load(builder, right[0], builder.add(below, column)) for column in columns]
        beside = builder.mul(term.index, left[2])
        for start, row_sums in zip(starts, sums, strict=True):
            factor = in_all_lanes(builder, builder.load(builder.gep(left[0], [builder.add(start, beside)])))
            for place, value in zip(row_sums, lines, strict=True):
                scaled = builder.fmul(factor, value, flags=("fast",))
                builder.store(builder.fadd(scaled, builder.load(place), flags=("fast",)), place)
    for number, row_sums in zip(rows, sums, strict=True):
        for column, place in zip(columns, row_sums, strict=True):
            _store(builder, builder.load(place), out[0], builder.add(builder.mul(number, out[1]), column))


def _multiply(builder, out, left, right, num_rows, num_lines, num_terms):
    """Set out = left @ right for `num_rows` rows, and further ones of a block of _ROWS, and `num_lines` lines of columns.

    Few rows that are left over are added up one by one: a tile runs empty at the end of its stream.
    """
    few = _index(_ROWS // 2 - 1)
    num_blocks = builder.udiv(builder.add(num_rows, few), _index(_ROWS))
    num_pairs = builder.udiv(num_lines, _index(_LINES))
    in_blocks, in_pairs = builder.mul(num_blocks, _index(_ROWS)), builder.mul(num_pairs, _index(_LINES))
    zero = _index(0)
    for first_line, last_line, width in ((zero, in_pairs, _LINES), (in_pairs, num_lines, 1)):
        for first_row, last_row, height in ((zero, in_blocks, _ROWS), (in_blocks, num_rows, 1)):
            all_lines = cgutils.for_range_slice(builder, first_line, last_line, _index(width))
            with (
                all_lines as (line, _),
                cgutils.for_range_slice(builder, first_row, last_row, _index(height)) as (row, _),
            ):
                _add_up(builder, out, left, right, row, line, (height, width), num_terms)


@intrinsic
def turn_rows(typing_context, users, across, num_lanes):
    """Set across[d, m] = users[m, d], a block of 16 x 16 numbers at a time, in registers."""

    def generate(context, builder, signature, arguments):
        (users, (_, size)), (across, (_, width)), num_lanes = _unpack(context, builder, signature, arguments)
        half = LINE_NUMBERS // 2
        halves = [[start + i // 2 + i % 2 * LINE_NUMBERS for i in range(LINE_NUMBERS)] for start in (0, half)]
        masks = [ir.Constant(_INT_LINE, lanes) for lanes in halves]
        step = _index(LINE_NUMBERS)
        all_lanes = cgutils.for_range_slice(builder, _index(0), num_lanes, step)
        with all_lanes as (lane, _), cgutils.for_range_slice(builder, _index(0), size, step) as (dim, _):
            places = [builder.mul(builder.add(lane, _index(i)), size) for i in range(LINE_NUMBERS)]
            lines = [_load(builder, users, builder.add(place, dim)) for place in places]
            for _ in range(4):  # each merges lines i and i + 8 to two neighbours: after log2(16) rounds they are turned
                pairs = [(lines[i // 2], lines[i // 2 + half], masks[i % 2]) for i in range(LINE_NUMBERS)]
                lines = [builder.shuffle_vector(*pair) for pair in pairs]
            for i, line in enumerate(lines):
                _store(builder, line, across, builder.add(builder.mul(builder.add(dim, _index(i)), width), lane))
        return context.get_dummy_value()

    return types.void(users, across, types.int64), generate


def product(arrange):
    """Return the compiled product of the matrices that `arrange` makes of its arguments, as arguments of `_multiply`."""

    def multiply(typing_context, first, second, out, num_lanes):
        def generate(context, builder, signature, arguments):
            _multiply(builder, *arrange(builder, *_unpack(context, builder, signature, arguments)))
            return context.get_dummy_value()

        return types.void(first, second, out, types.int64), generate

    return intrinsic(multiply)


@product
def score_tile(builder, negatives, across, scores, num_lanes):
    """Set scores[k, m] = negatives[k] . users[m]; across float32[D, M] has the users."""
    (num_negatives, size), width = negatives[1], across[1][1]
    left, right = (negatives[0], size, _index(1)), (across[0], width)
    return (scores[0], width), left, right, num_negatives, _lines_for(builder, num_lanes), size


@product
def pull_users(builder, pulls, negatives, steps, num_lanes):
    """Set steps[m] = sum over k of pulls[k, m] * negatives[k]: steps float32[M, D], pulls float32[K, M]."""
    (num_negatives, size), width = negatives[1], pulls[1][1]
    left, right = (pulls[0], _index(1), width), (negatives[0], size)
    return (steps[0], size), left, right, num_lanes, _lines_for(builder, size), num_negatives


@product
def pull_negatives(builder, pulls, users, steps, num_lanes):
    """Set steps[k] = sum over m < num_lanes of pulls[k, m] * users[m]: steps float32[K, D], pulls float32[K, M]."""
    (num_negatives, width), size = pulls[1], users[1][1]
    left, right = (pulls[0], width, _index(1)), (users[0], size)
    return (steps[0], size), left, right, num_negatives, _lines_for(builder, size), num_lanes
