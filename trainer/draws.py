"""Random draws that are pure functions of (seed, epoch, user hash, token position, purpose, draw).

No generator has a state that a checkpoint would have to keep. A resumed run, another order of the work or another thread
draws the same numbers. A draw is SplitMix64 at a counter: `mix(key + GAMMA * counter)`, where `key`
is a hash of (seed, epoch, user) and the counter packs (position, purpose, draw) into disjoint bits.
Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (mix64variant13).
"""

import numpy as np
from numpy.typing import NDArray

GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MASK = 2**64 - 1

INIT, SUBSAMPLE, NEGATIVE, ORDER, HELDOUT, WINDOW, ROUND, TILE = (0, 1, 2, 3, 4, 5, 7, 8)
"""Purposes of a draw: two purposes never use the same counter."""

DRAW_BITS = 12
PURPOSE_BITS = 4


def mix(x: int) -> int:
    """SplitMix64's finalizer: a bijection of 64-bit integers in which every output bit depends on every input bit."""
    x = ((x ^ (x >> 30)) * MIX_1) & MASK
    x = ((x ^ (x >> 27)) * MIX_2) & MASK
    return x ^ (x >> 31)


def epoch_key(seed: int, epoch: int) -> int:
    """Return the key of an epoch, from which its users' keys are computed. Epoch -1 is the initialization."""
    return mix((mix(seed & MASK) + GAMMA * (epoch + 2)) & MASK)


def counter(position: int, purpose: int, draw: int) -> int:
    """Return the counter of one draw: token position, purpose and number of the draw in disjoint bits."""
    return (((position << PURPOSE_BITS) | purpose) << DRAW_BITS | draw) + 1


def mix_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `mix` of every element; arithmetic modulo 2**64."""
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(MIX_1)  # in place: new pages would take longer than the arithmetic
    x ^= x >> np.uint64(27)
    x *= np.uint64(MIX_2)
    x ^= x >> np.uint64(31)
    return x


def user_keys(seed: int, epoch: int, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the key of each user in an epoch, uint64[n], from the users' hashes, uint64[n]."""
    return mix_array(hashes ^ np.uint64(epoch_key(seed, epoch)))


def draws(keys: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return one 64-bit draw for each (key, counter), broadcast against each other."""
    return mix_array(keys + counters * np.uint64(GAMMA))
