"""Strings as numbers: what is done once a distinct string need not be done once an event, and numbers sort and join fast."""

import secrets

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.events.compiled_strings import ROWS_AHEAD, is_in_order, move_slots, number_strings, sort_by_digit

DIGIT_BITS = 16
_LEAST_SLOTS = 1024
_SIGN = np.uint64(2**63)  # without it uint64 is in the same order as int64


class Numbering:
    """Numbers strings 0, 1, ... in the order in which they first appear, over any number of columns."""

    def __init__(self) -> None:
        self.num_distinct = 0
        self._slots = np.zeros(_LEAST_SLOTS, dtype=np.uint64)
        self._bytes = np.empty(0, dtype=np.uint8)
        self._offsets = np.zeros(1, dtype=np.int64)
        self._hashes = np.empty(ROWS_AHEAD, dtype=np.uint64)
        self._seed = np.uint64(secrets.randbits(64))  # nobody can send strings that are known to share a slot

    def add(self, strings: pa.Array) -> NDArray[np.int32]:
        """The numbers of these strings, int32[n]; -1 for null."""
        codes = np.empty(len(strings), dtype=np.int32)
        data, offsets = lay_open(strings)
        self._make_room(len(strings), int(offsets[-1] - offsets[0]))
        is_null = strings.is_null().to_numpy(zero_copy_only=False) if strings.null_count else np.empty(0, dtype=bool)
        self.num_distinct = number_strings(
            data, offsets, is_null, self._seed, self._slots, self._bytes, self._offsets, self.num_distinct, self._hashes,
            codes,
        )  # fmt: skip
        return codes

    def distinct(self) -> pa.Array:
        """The strings, by their numbers; not copied."""
        offsets, data = pa.py_buffer(self._offsets), pa.py_buffer(self._bytes)
        return pa.LargeStringArray.from_buffers(self.num_distinct, offsets, data)

    def distinct_and_null(self) -> pa.Array:
        """The strings, by their numbers, and null behind them; not copied."""
        end = self.num_distinct + 1
        self._offsets = _grow(self._offsets, end, end + 1)
        self._offsets[end] = self._offsets[end - 1]
        is_there = pa.py_buffer(np.packbits(np.arange(end) < self.num_distinct, bitorder="little"))
        return pa.LargeStringArray.from_buffers(
            end, pa.py_buffer(self._offsets), pa.py_buffer(self._bytes), is_there, null_count=1
        )

    def _make_room(self, num_strings: int, num_bytes: int) -> None:
        """Room for so many more strings, as it is not known yet how many are new; half of the slots stay empty."""
        num_distinct, used = self.num_distinct, int(self._offsets[self.num_distinct])
        self._offsets = _grow(self._offsets, num_distinct + 1, num_distinct + 1 + num_strings)
        self._bytes = _grow(self._bytes, used, used + num_bytes)
        if len(self._slots) < 2 * (num_distinct + num_strings):
            larger = np.zeros(1 << (2 * (num_distinct + num_strings) - 1).bit_length(), dtype=np.uint64)
            move_slots(self._slots, larger)
            self._slots = larger


def lay_open(strings: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of n strings or large strings, and where each begins and the last ends among them, int64[n + 1]."""
    _, offsets, content = strings.buffers()
    if not len(strings):
        return read_only(np.empty(0, np.uint8)), read_only(np.zeros(1, np.int64))
    dtype = np.int64 if pa.types.is_large_string(strings.type) else np.int32
    places = np.frombuffer(offsets, dtype)[strings.offset : strings.offset + len(strings) + 1]
    return read_only(np.frombuffer(content or b"", np.uint8)), read_only(places.astype(np.int64, copy=False))


def read_only(array: NDArray) -> NDArray:
    """The same array: Arrow's memory is read-only or not, and numba would compile all once for each."""
    array.flags.writeable = False
    return array


def _grow(array: NDArray, used: int, needed: int) -> NDArray:
    """The array, or a copy of what is used of it that is as long as needed, and twice as long as before at least."""
    if needed <= len(array):
        return array
    larger = np.empty(max(needed, 2 * len(array)), dtype=array.dtype)
    larger[:used] = array[:used]
    return larger


def sort_by(*keys: NDArray) -> NDArray[np.int64]:
    """The order of rows by integer keys, the last one first: `np.lexsort`, but a key that is in order costs next to nothing
    and the others are sorted digit by digit, by counting.
    """
    order = np.arange(len(keys[0]))
    places, other = np.empty(1 << DIGIT_BITS, dtype=np.int64), np.empty_like(order)
    for key in keys:
        numbers = (key ^ _SIGN).view(np.int64) if key.dtype == np.uint64 else key.astype(np.int64)
        if is_in_order(numbers, order):
            continue
        low, high = numbers.min(), numbers.max()
        for shift in range(0, (int(high) - int(low)).bit_length(), DIGIT_BITS):
            sort_by_digit(numbers, low, shift, order, places, other)
            order, other = other, order
    return order
