"""MD5 of many strings at once (RFC 1321): the hash that places users, a sixth of the time of a call for each."""

import math
from typing import Any

import numba
import numpy as np

from tasks.compiled_numbering import copy_bytes

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
_inlined = numba.njit(forceinline=True, **_OPTIONS)
BLOCK_BYTES = 64
_LENGTH_BYTES = 8  # at the end of the last block
_A, _B, _C, _D = (np.uint32(word) for word in (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476))
_SINES = np.array([int(2**32 * abs(math.sin(step + 1))) for step in range(64)], dtype=np.uint32)
_SHIFTS = np.array([(7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21)], dtype=np.uint32)
_WORD_BITS = np.uint32(32)
_END = np.uint8(0x80)
_BYTE = np.int64(255)


@_inlined
def _fill_block(data, start, left, block):
    """Lay the next bytes of a string with `left` bytes to go into block uint8[64], with the mark of its end; zeros beyond.

    left is negative where the mark was in the block before.
    """
    length = max(0, min(left, BLOCK_BYTES))
    copy_bytes(data, start, block, 0, length)
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
