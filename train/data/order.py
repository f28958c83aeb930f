"""A random order of any number of samples, computed where it is asked for: no rank keeps all of it.

`torch.randperm` of 10^9 samples takes 8 GB on every rank. A Feistel network over the numbers below a power of
two is a permutation of them, whatever its round function; following it until it is back among the numbers
below `count` is one of those: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002, method 2.
Mitchell et al., Bandwidth-Optimal Random Shuffling for GPUs, 2021 (arXiv:2106.06161), shuffle in this way,
and find that few samples need 24 rounds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 24
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, its bits irregular: 2^64 / the golden ratio
_HALF = np.uint64(32)
_ONE = np.uint64(1)

Numbers = NDArray[np.uint64]


def shuffled(positions: Numbers, count: int, seed: tuple[int, ...]) -> Numbers:
    """Return which of `count` samples comes at each of `positions` in the order of `seed`, numbers from 0."""
    bits = max(2, (count - 1).bit_length())
    keys = np.asarray(np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64), np.uint64)
    numbers = _permuted(positions, bits, keys)
    while len(beyond := np.flatnonzero(numbers >= count)):
        numbers[beyond] = _permuted(numbers[beyond], bits, keys)
    return numbers


def _permuted(numbers: Numbers, bits: int, keys: Numbers) -> Numbers:
    """Permute the numbers of so many bits: each round mixes one part of them into the other, in turn."""
    low = np.uint64(bits // 2)  # bits of the lower part; the upper has as many, or one more
    lower, upper = numbers & ((_ONE << low) - _ONE), numbers >> low
    masks = ((_ONE << low) - _ONE, (_ONE << np.uint64(bits - bits // 2)) - _ONE)
    for round_number, key in enumerate(keys):
        if round_number % 2:
            lower = lower ^ (_mixed(upper, key) & masks[0])
        else:
            upper = upper ^ (_mixed(lower, key) & masks[1])
    joined: Numbers = (upper << low) | lower
    return joined


def _mixed(numbers: Numbers, key: np.uint64) -> Numbers:
    """Return the upper half of a product, in which every bit of number and key has a say."""
    product = (numbers ^ key) * _FACTOR
    half: Numbers = ((product ^ (product >> _HALF)) * _FACTOR) >> _HALF
    return half
