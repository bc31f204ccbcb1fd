"""Random numbers for kernels: drawn ahead by numpy, taken one by one by the kernel, the same whether it runs plain or compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.compiled.kernel import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOW_32 = 0xFFFFFFFF
MOST = 1 << 22
"""At most this many numbers are drawn: 32 MiB."""


class Draws(NamedTuple):
    """Numbers of 32 random bits."""

    bits: NDArray[np.int64]
    at: NDArray[np.int64]
    """One entry: how many are taken. After the last they come again."""


def draw(seed: int, count: int) -> Draws:
    """`count` numbers of the Mersenne Twister of this seed, at most `MOST`."""
    if not count:  # seeding it takes longer than many a rule
        return Draws(np.zeros(1, np.int64), np.zeros(1, np.int64))
    bits = np.random.RandomState(seed & LOW_32).randint(0, 1 << 32, min(count, MOST), np.uint32)
    return Draws(bits.astype(np.int64), np.zeros(1, np.int64))


@kernel()
def _next(draws: Any) -> Any:
    at = draws.at[0]
    draws.at[0] = at + 1
    return draws.bits[at % len(draws.bits)]


@kernel()
def below(limit: Any, draws: Any) -> Any:
    """A whole number from 0 up to, but not including, `limit`, as `numpy.random.randint` has it."""
    if limit <= 1:
        return 0
    mask = 1
    while mask < limit - 1:
        mask = 2 * mask + 1
    while True:
        number = _next(draws) & mask
        if mask > LOW_32:
            high = number & (mask >> 32)
            number = (high << 32) + _next(draws)
        if number < limit:
            return number


@kernel()
def fraction(draws: Any) -> float:
    """A number from 0 up to, but not including, 1, as `numpy.random.random` has it."""
    high = _next(draws) >> 5
    return float((high * (1 << 26) + (_next(draws) >> 6)) / (1 << 53))
