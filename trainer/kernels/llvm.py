"""LLVM code that numba does not generate itself: prefetches, atomic numbers shared by threads, sums kept in registers.

Compiled code makes no arrays and counts no references (`_nrt=False`): numba's atomic counting would cost more than the rows.
"""
# mypy: no-check-untyped-defs
# numba itself gives an intrinsic its first argument

import hashlib
import os
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from surf2vec.trainer import draws
from surf2vec.trainer.model import objectives, rows
from surf2vec.trainer.system.files import user_cache

ROWS_AHEAD = 8
LINE_NUMBERS = 16  # float32 or int32 of a cache line of 64 bytes
LINE_TYPE = ir.VectorType(ir.FloatType(), LINE_NUMBERS)
_FOLDER = Path(__file__).parent

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
    folder = _FOLDER / "__pycache__" if os.access(_FOLDER, os.W_OK) else user_cache()
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
    """Prefetch the cache line of the number at a flat index of an array, into the second cache: the first holds the tile."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        int32, byte_pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        how = [ir.Constant(int32, value) for value in (0, 2, 1)]  # to read, into the second cache, data
        builder.call(function, [builder.bitcast(builder.gep(data, [arguments[1]]), byte_pointer), *how])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@inlined
def prefetch_row(vectors, row):
    """Prefetch a row that is read, or read and written, soon."""
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


def line_at(builder, data, place):
    """Return a pointer to the line of numbers from an index of an array on."""
    return builder.bitcast(builder.gep(data, [place]), LINE_TYPE.as_pointer())


def in_all_lanes(builder, number):
    """Return a line filled with one number, float32 or int32."""
    none, lane = ir.Constant(ir.VectorType(number.type, LINE_NUMBERS), ir.Undefined), ir.Constant(ir.IntType(32), 0)
    every = ir.Constant(ir.VectorType(ir.IntType(32), LINE_NUMBERS), None)
    return builder.shuffle_vector(builder.insert_element(none, number, lane), none, every)
