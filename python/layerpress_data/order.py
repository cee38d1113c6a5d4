"""The seeded permutation of `shuffle`, identical on every machine and in the C++ library."""

from __future__ import annotations

from array import array
from typing import Iterator

_MASK = 2**64 - 1


def splitmix64(seed: int) -> Iterator[int]:
    """Yields the splitmix64 sequence (Steele, Lea, Flood 2014) with initial state `seed`."""
    state = seed & _MASK
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        value = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        yield value ^ (value >> 31)


def shuffled_order(count: int, seed: int) -> array:
    """Returns 0..count-1 shuffled: Fisher-Yates from the end, index = next value modulo (i + 1)."""
    order = array("q", range(count))
    for i, value in zip(range(count - 1, 0, -1), splitmix64(seed)):
        j = value % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order
