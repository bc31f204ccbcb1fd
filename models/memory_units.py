"""Bytes as the numbers that a solver gets: small enough that nothing overflows and no tolerance counts, and still a relaxation.

A solver is given how much each thing holds and a limit, both in units of `unit` bytes and both rounded down. Nothing is lost: if
things of h1, h2, … bytes fit together into the limit, h1 + h2 + … <= limit, then floor(h1 / unit) + floor(h2 / unit) + … is an
integer that is at most limit / unit, so at most its floor. So bounds of such a model hold for the problem in bytes. The other way
is true only where the unit divides all that is held: a schedule that the model allows is checked in bytes before it is taken.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def unit_bytes(held_bytes: Iterable[int], limit_bytes: int, most: int) -> int:
    """How many bytes a unit has: the least that keeps sums small, and exact (a common divisor) where one is large enough.

    Args:
        held_bytes: all that a row of the model adds up, each at least 0.
        limit_bytes: what they are compared with, at least 0.
        most: the sum of all that is held, and the limit, are at most this many units.
    """
    total_bytes, divisor = 0, 0
    for held in held_bytes:
        total_bytes += held
        divisor = gcd(divisor, held)
    return max(divisor, -(-max(total_bytes, limit_bytes) // most), 1)
