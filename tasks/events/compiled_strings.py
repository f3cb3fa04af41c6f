"""What is compiled of `tasks/events/numbering.py` and `tasks/users/placement.py`: a hash table of the strings of Arrow
arrays, MD5 of many strings (RFC 1321), and a pass of a sort by digits. One file, because numba's cache is renewed only
when the file of a kept function has changed.

The table has open addressing with linear probing. A slot is 0 where it is empty, else the 32 bits of a string's hash above
its number plus one, so that a look at the slot tells nearly all other strings apart and the table grows without looking at
strings. What keeps it fast: bytes are read and written eight at a time, and what a few rows on will look at is asked for
before it is needed.
"""
# mypy: no-check-untyped-defs
# numba itself gives an intrinsic its first argument

import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from trainer import draws

ROWS_AHEAD = 32
_WORD_BYTES = 8
_MIX_1, _MIX_2 = np.uint64(draws.MIX_1), np.uint64(draws.MIX_2)
_ONE, _8, _29, _32 = (np.uint64(number) for number in (1, 8, 29, 32))
_LOW_32 = np.uint64(2**32 - 1)
_EMPTY = np.uint64(0)
BLOCK_BYTES = 64  # of MD5, as is what follows
_LENGTH_BYTES = 8  # at the end of the last block
_A, _B, _C, _D = (np.uint32(word) for word in (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476))
_SINES = np.array([int(2**32 * abs(math.sin(step + 1))) for step in range(64)], dtype=np.uint32)
_SHIFTS = np.array([(7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21)], dtype=np.uint32)
_WORD_BITS = np.uint32(32)
_END = np.uint8(0x80)
_BYTE = np.int64(255)
_WORD, _INT32, _BYTE_POINTER = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
_inlined = numba.njit(forceinline=True, **_OPTIONS)


def _point(context, builder, array_type, array, place, pointer_type):
    """A pointer to an element of an array."""
    array = context.make_array(array_type)(context, builder, array)
    pointer = cgutils.get_item_pointer(
        context, builder, array_type, array, [place], wraparound=False, boundscheck=False
    )
    return builder.bitcast(pointer, pointer_type)


@intrinsic
def _read_word(typing_context, data, place):
    """The 8 bytes from a place of uint8[n] on as one uint64, wherever they begin; they must all be there."""

    def generate(context, builder, signature, arguments):
        return builder.load(_point(context, builder, signature.args[0], *arguments, _WORD.as_pointer()), align=1)

    return types.uint64(data, types.int64), generate


@intrinsic
def _write_word(typing_context, data, place, word):
    """Write 8 bytes from a place of uint8[n] on, wherever they begin."""

    def generate(context, builder, signature, arguments):
        pointer = _point(context, builder, signature.args[0], *arguments[:2], _WORD.as_pointer())
        builder.store(arguments[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), generate


@intrinsic
def _prefetch(typing_context, array, place):
    """Ask for the cache line of an element, which is about to be read."""

    def generate(context, builder, signature, arguments):
        pointer = _point(context, builder, signature.args[0], *arguments, _BYTE_POINTER)
        function_type = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, _INT32, _INT32, _INT32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        is_write, locality, is_data = (ir.Constant(_INT32, value) for value in (0, 3, 1))
        builder.call(function, [pointer, is_write, locality, is_data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@_inlined
def _hash(data, start, length, seed):
    """32 bits of a string, above 32 zeros: all its words are mixed in, the last of which may overlap the one before."""
    mixed = seed ^ np.uint64(length)
    for place in range(start, start + length - _WORD_BYTES + 1, _WORD_BYTES):
        mixed = (mixed ^ _read_word(data, place)) * _MIX_1
        mixed ^= mixed >> _29
    if length >= _WORD_BYTES:
        last = _read_word(data, start + length - _WORD_BYTES)
    else:
        last = _EMPTY
        for place in range(start, start + length):
            last = (last << _8) | np.uint64(data[place])
    mixed = (mixed ^ last) * _MIX_2
    return (mixed ^ (mixed >> _32)) * _MIX_1 >> _32


@_inlined
def _is_same(data, start, kept, first, length):
    """Whether the `length` bytes from both places on are the same."""
    if length < _WORD_BYTES:
        place = 0
        while place < length and data[start + place] == kept[first + place]:
            place += 1
        return place == length
    for place in range(0, length - _WORD_BYTES, _WORD_BYTES):
        if _read_word(data, start + place) != _read_word(kept, first + place):
            return False
    place = length - _WORD_BYTES
    return _read_word(data, start + place) == _read_word(kept, first + place)


@_inlined
def _copy_bytes(data, start, target, first, length):
    """Copy `length` bytes of `data` from `start` on into `target` from `first` on; both uint8[n]."""
    if length < _WORD_BYTES:
        for place in range(length):
            target[first + place] = data[start + place]
        return
    for place in range(0, length - _WORD_BYTES, _WORD_BYTES):
        _write_word(target, first + place, _read_word(data, start + place))
    place = length - _WORD_BYTES
    _write_word(target, first + place, _read_word(data, start + place))


@_inlined
def _ask_for(data, offsets, seed, slots, kept, kept_offsets, first, hashes):
    """Write the hashes of the next rows to hashes[:ROWS_AHEAD], and ask for what they will be compared with."""
    mask = np.uint64(len(slots) - 1)
    end = min(first + ROWS_AHEAD, len(offsets) - 1)
    for row in range(first, end):
        hashes[row - first] = _hash(data, offsets[row], offsets[row + 1] - offsets[row], seed)
        _prefetch(slots, np.int64(hashes[row - first] & mask))
    for ahead in range(end - first):
        found = slots[hashes[ahead] & mask]
        if found != _EMPTY:
            _prefetch(kept_offsets, np.int64(found & _LOW_32) - 1)
    for ahead in range(end - first):
        found = slots[hashes[ahead] & mask]
        if found != _EMPTY:
            _prefetch(kept, kept_offsets[np.int64(found & _LOW_32) - 1])


@numba.njit(nogil=True, cache=True, **_OPTIONS)
def number_strings(data, offsets, is_null, seed, slots, kept, kept_offsets, num_kept, hashes, codes):
    """Write the number of each of n strings to codes int32[n], -1 for null; returns how many strings are kept then.

    data uint8, offsets int64[n + 1], is_null bool[n], or bool[0] where none is: the strings. slots uint64, a power of two of
    them; kept uint8, kept_offsets int64: the `num_kept` distinct strings so far. There must be room for n more in all three.
    hashes uint64[ROWS_AHEAD]: scratch.
    """
    mask = np.uint64(len(slots) - 1)
    for row in range(len(codes)):
        if row % ROWS_AHEAD == 0:
            _ask_for(data, offsets, seed, slots, kept, kept_offsets, row, hashes)
        if len(is_null) and is_null[row]:
            codes[row] = -1
            continue
        start, length, hashed = offsets[row], offsets[row + 1] - offsets[row], hashes[row % ROWS_AHEAD]
        slot = hashed & mask
        while True:
            found = slots[slot]
            code = np.int64(found & _LOW_32) - 1
            if found == _EMPTY:
                code = num_kept
                num_kept += 1
                _copy_bytes(data, start, kept, kept_offsets[code], length)
                kept_offsets[num_kept] = kept_offsets[code] + length
                slots[slot] = (hashed << _32) | np.uint64(num_kept)
                break
            if found >> _32 == hashed:
                first = kept_offsets[code]
                if kept_offsets[code + 1] - first == length and _is_same(data, start, kept, first, length):
                    break
            slot = (slot + _ONE) & mask
        codes[row] = code
    return num_kept


@numba.njit(nogil=True, cache=True, **_OPTIONS)
def move_slots(slots, larger):
    """Enter all of `slots` into `larger`, which is empty: uint64, a power of two of each."""
    mask = np.uint64(len(larger) - 1)
    for found in slots:
        if found != _EMPTY:
            slot = (found >> _32) & mask
            while larger[slot] != _EMPTY:
                slot = (slot + _ONE) & mask
            larger[slot] = found


@_inlined
def _fill_block(data, start, left, block):
    """Lay the next bytes of a string with `left` bytes to go into block uint8[64], with the mark of its end; zeros beyond.

    left is negative where the mark was in the block before.
    """
    length = max(0, min(left, BLOCK_BYTES))
    _copy_bytes(data, start, block, 0, length)
    for place in range(length, BLOCK_BYTES):
        block[place] = 0
    if 0 <= left < BLOCK_BYTES:
        block[left] = _END


@_inlined
def _mix(words, a, b, c, d):
    """The state after a block, words uint32[16]."""
    old_a, old_b, old_c, old_d = a, b, c, d
    for step in range(64):
        if step < 16:
            mixed, word = (b & c) | (~b & d), step
        elif step < 32:
            mixed, word = (d & b) | (~d & c), (5 * step + 1) % 16
        elif step < 48:
            mixed, word = b ^ c ^ d, (3 * step + 5) % 16
        else:
            mixed, word = c ^ (b | ~d), (7 * step) % 16
        total = np.uint32(a + mixed + _SINES[step] + words[word])
        shift = _SHIFTS[step // 16, step % 4]
        turned = np.uint32(total << shift) | np.uint32(total >> (_WORD_BITS - shift))
        a, d, c, b = d, c, b, np.uint32(b + turned)
    return np.uint32(old_a + a), np.uint32(old_b + b), np.uint32(old_c + c), np.uint32(old_d + d)


@numba.njit(nogil=True, cache=True, **_OPTIONS)
def hash_strings(data, offsets, block, words, hashes):
    """Write the low 64 bits of the MD5 of each of n strings to hashes uint64[n].

    data uint8, offsets int64[n + 1]: the strings. block uint8[64]: scratch, and words uint32[16] the same memory.
    """
    for row in range(len(hashes)):
        start, length = offsets[row], offsets[row + 1] - offsets[row]
        a, b, c, d = _A, _B, _C, _D
        num_blocks = (length + _LENGTH_BYTES) // BLOCK_BYTES + 1
        for number in range(num_blocks):
            done = number * BLOCK_BYTES
            _fill_block(data, start + done, length - done, block)
            if number == num_blocks - 1:
                for place in range(_LENGTH_BYTES):
                    block[BLOCK_BYTES - _LENGTH_BYTES + place] = (8 * length >> 8 * place) & _BYTE
            a, b, c, d = _mix(words, a, b, c, d)
        hashes[row] = np.uint64(c) | (np.uint64(d) << np.uint64(32))


@numba.njit(nogil=True, cache=True, **_OPTIONS)
def is_in_order(key, order):
    """Whether key int64[n] never falls, taken in this order int64[n]."""
    i = 1
    while i < len(order) and key[order[i]] >= key[order[i - 1]]:
        i += 1
    return i >= len(order)


@numba.njit(nogil=True, cache=True, **_OPTIONS)
def sort_by_digit(key, low, shift, order, places, sorted_order):
    """Write `order`, stably sorted by a digit of key - low, to sorted_order; key int64[n], both orders int64[n].

    The digit: bits from `shift` on, so many that places int64[2**bits], which is scratch, has a place for each.
    """
    mask, shift, low = np.uint64(len(places) - 1), np.uint64(shift), np.uint64(low)
    places[:] = 0
    for i in range(len(key)):
        places[((np.uint64(key[i]) - low) >> shift) & mask] += 1
    first = 0
    for digit in range(len(places)):
        first, places[digit] = first + places[digit], first
    for i in range(len(order)):
        row = order[i]
        digit = ((np.uint64(key[row]) - low) >> shift) & mask
        sorted_order[places[digit]] = row
        places[digit] += 1
