"""LLVM code that numba does not generate itself: prefetches, atomic numbers shared by threads, sums kept in registers.

Compiled code makes no arrays and counts no references (`_nrt=False`): numba's atomic counting would cost more than the rows.
"""
# mypy: no-check-untyped-defs
# numba itself gives an intrinsic its first argument

import hashlib
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from surf2vec.trainer import draws
from surf2vec.trainer.model import objectives, rows

ROWS_AHEAD = 8
LINE_NUMBERS = 16  # float32 or int32 of a cache line of 64 bytes
LINE_TYPE = ir.VectorType(ir.FloatType(), LINE_NUMBERS)
_FOLDER = Path(__file__).parent
_TILE_LINES = 4  # of two vectors, the step and what predicts: the 16 registers of AVX2

OPTIONS: dict[str, Any] = {"fastmath": True, "error_model": "numpy", "_nrt": False}
inlined = numba.njit(forceinline=True, **OPTIONS)
# For large functions: numba would first compile them separately before inlining, which takes 20 s more.
written_out = numba.njit(inline="always", **OPTIONS)


def _cache_folder() -> str:
    """Return the cache folder for machine code of exactly these sources.

    numba unpickles its cache before it compares it with the sources, and fails on types that were removed since.
    """
    files = [*_FOLDER.glob("*.py"), *(Path(str(module.__file__)) for module in (draws, objectives, rows))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()
    user_cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "surf2vec"
    folder = _FOLDER / "__pycache__" if os.access(_FOLDER, os.W_OK) else user_cache
    return str(Path(numba.config.CACHE_DIR or folder) / f"numba-{digest[:16]}")  # type: ignore[attr-defined]


numba.config.CACHE_DIR = _cache_folder()  # type: ignore[attr-defined]  # before any function is decorated with cache=True


@intrinsic
def prefer_wide_vectors(typing_context):
    """Make the loops of the calling function use vectors of 512 bits if available: LLVM would use half."""

    def generate(context, builder, signature, arguments):
        attributes = builder.function.attributes
        set.add(attributes, '"prefer-vector-width"="512"')  # llvmlite's own `add` refuses attributes with values
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def prefetch(typing_context, array, place):
    """Prefetch the cache line of the number at a flat index of an array."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        _ask_for(builder, builder.gep(data, [arguments[1]]), is_to_write=True)
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def prefetch_second(typing_context, array, place):
    """Prefetch, into the second-level cache, the cache line of the number at a flat index of an array."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        _ask_for(builder, builder.gep(data, [arguments[1]]), is_to_write=False, nearness=2)
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


def _ask_for(builder, address, is_to_write, nearness=3):
    int32, byte_pointer = ir.IntType(32), ir.IntType(8).as_pointer()
    function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    how = [ir.Constant(int32, value) for value in (int(is_to_write), nearness, 1)]  # 3: into the nearest cache; 1: data
    builder.call(function, [builder.bitcast(address, byte_pointer), *how])


@inlined
def prefetch_row(vectors, row):
    """Prefetch a row that is about to be read and written."""
    start = np.int64(row) * vectors.shape[1]
    for place in range(start, start + vectors.shape[1], LINE_NUMBERS):
        prefetch(vectors, place)


@intrinsic
def take(typing_context, taken, number):
    """Atomically add to the first number of an array, int64, that threads share. Returns the number before."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", data, arguments[1], "acq_rel")

    return types.int64(taken, types.int64), generate


@intrinsic
def look_at(typing_context, numbers):
    """Atomically load the first number of a shared array, int64. Writes before other threads' additions are then visible."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(data, "acquire", 8)

    return types.int64(numbers), generate


@intrinsic
def give_way(typing_context):
    """Yield the core to another waiting thread."""

    def generate(context, builder, signature, arguments):
        function_type = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, function_type, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


def line_at(builder, data, place):
    """Return a pointer to the line of numbers from an index of an array on."""
    return builder.bitcast(builder.gep(data, [place]), LINE_TYPE.as_pointer())


def in_all_lanes(builder, number):
    """Return a line filled with one number, float32 or int32."""
    none, lane = ir.Constant(ir.VectorType(number.type, LINE_NUMBERS), ir.Undefined), ir.Constant(ir.IntType(32), 0)
    every = ir.Constant(ir.VectorType(ir.IntType(32), LINE_NUMBERS), None)
    return builder.shuffle_vector(builder.insert_element(none, number, lane), none, every)


def times_plus(builder, factor, line, added):
    return builder.fadd(builder.fmul(factor, line, flags=("fast",)), added, flags=("fast",))


def _num_tiled(builder, num_dims):
    """Return how many of the dimensions are in full tiles."""
    tile_size = ir.Constant(num_dims.type, _TILE_LINES * LINE_NUMBERS)
    return builder.mul(builder.sdiv(num_dims, tile_size), tile_size)


@contextmanager
def _each_tile(builder, num_dims, total):
    """Loop over tiles: yields the starts of a tile's lines, and `total`'s lines in registers, which are stored at its end."""
    kept, step = [cgutils.alloca_once(builder, LINE_TYPE) for _ in range(_TILE_LINES)], _TILE_LINES * LINE_NUMBERS
    zero = ir.Constant(num_dims.type, 0)
    with cgutils.for_range_slice(builder, zero, _num_tiled(builder, num_dims), zero.type(step)) as (start, _):
        places = [builder.add(start, zero.type(line * LINE_NUMBERS)) for line in range(_TILE_LINES)]
        for place, line in zip(places, kept, strict=True):
            builder.store(builder.load(line_at(builder, total, place), align=4), line)
        yield places, kept
        for place, line in zip(places, kept, strict=True):
            builder.store(builder.load(line), line_at(builder, total, place), align=4)


@intrinsic
def pull_tiles(typing_context, vectors, rows, step, hidden, pulls, shrinks, grows, num_rows, num_free):
    """`pull_rows` for the dimensions in full tiles of _TILE_LINES lines. Returns how many these are.

    A tile of the step stays in registers over all rows, where LLVM's own loops load and store it for each row. The last
    number of the last tile, if it is a bias (dimension `num_free`), does not shrink.
    """

    def generate(context, builder, signature, arguments):
        index = ir.IntType(64)
        arrays = [
            context.make_array(array_type)(context, builder, array)
            for array_type, array in zip(signature.args[:7], arguments[:7], strict=True)
        ]
        vectors, rows, step, hidden, pulls, shrinks, grows = (array.data for array in arrays)
        num_rows, num_free = arguments[7:]
        num_dims = cgutils.unpack_tuple(builder, arrays[0].shape)[1]
        with _each_tile(builder, num_dims, step) as (places, steps):
            end = builder.add(places[-1], ir.Constant(index, LINE_NUMBERS))
            has_bias = builder.icmp_signed("<", num_free, end)
            hiddens = [builder.load(line_at(builder, hidden, place), align=4) for place in places]
            with cgutils.for_range(builder, num_rows) as turn:
                row = builder.zext(builder.load(builder.gep(rows, [turn.index])), index)
                first = builder.mul(row, num_dims)
                pull, grow, shrink = (
                    in_all_lanes(builder, builder.load(builder.gep(data, [turn.index])))
                    for data in (pulls, grows, shrinks)
                )
                last_lane, one = ir.Constant(ir.IntType(32), LINE_NUMBERS - 1), ir.Constant(ir.FloatType(), 1)
                last_shrink = builder.select(has_bias, builder.insert_element(shrink, one, last_lane), shrink)
                factors = [shrink] * (_TILE_LINES - 1) + [last_shrink]
                for place, kept, predicting, factor in zip(places, steps, hiddens, factors, strict=True):
                    address = line_at(builder, vectors, builder.add(first, place))
                    line = builder.load(address, align=4)
                    builder.store(times_plus(builder, pull, line, builder.load(kept)), kept)
                    grown = builder.fmul(grow, predicting, flags=("fast",))
                    builder.store(times_plus(builder, factor, line, grown), address, align=4)
        return _num_tiled(builder, num_dims)

    inputs = (vectors, rows, step, hidden, pulls, shrinks, grows, types.int64, types.int64)
    return types.int64(*inputs), generate


@intrinsic
def add_tiles(typing_context, vectors, rows, factors, first, last, total):
    """`add_rows` for the dimensions in full tiles. Returns how many these are. A tile of the sum stays in registers over all
    rows, which are prefetched ROWS_AHEAD of their use: `rows` has so many more numbers.
    """

    def generate(context, builder, signature, arguments):
        index = ir.IntType(64)
        arrays = [
            context.make_array(signature.args[place])(context, builder, arguments[place]) for place in (0, 1, 2, 5)
        ]
        vectors, rows, factors, total = (array.data for array in arrays)
        first, last = arguments[3:5]
        num_dims = cgutils.unpack_tuple(builder, arrays[0].shape)[1]

        def start_of(entry):
            return builder.mul(builder.zext(builder.load(builder.gep(rows, [entry])), index), num_dims)

        num_rows = builder.sub(last, first)
        with _each_tile(builder, num_dims, total) as (places, sums), cgutils.for_range(builder, num_rows) as turn:
            entry = builder.add(first, turn.index)
            row, ahead = start_of(entry), start_of(builder.add(entry, ir.Constant(index, ROWS_AHEAD)))
            factor = in_all_lanes(builder, builder.load(builder.gep(factors, [entry])))
            for place, kept in zip(places, sums, strict=True):
                _ask_for(builder, builder.gep(vectors, [builder.add(ahead, place)]), is_to_write=False)
                line = builder.load(line_at(builder, vectors, builder.add(row, place)), align=4)
                builder.store(times_plus(builder, factor, line, builder.load(kept)), kept)
        return _num_tiled(builder, num_dims)

    return types.int64(vectors, rows, factors, types.int64, types.int64, total), generate


@inlined
def add_rows(vectors, rows, factors, first, last, total):
    """Add the sum of factor * row to total, for the rows at the places from `first` to `last`."""
    for d in range(add_tiles(vectors, rows, factors, first, last, total), total.shape[0]):
        for place in range(first, last):
            total[d] += factors[place] * vectors[rows[place], d]
