"""Many measurements of one thing as three numbers."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median and how far most of the values are from it."""

    median_ns: int
    low_ns: int
    """A tenth of the values are below it; of fewer than ten, the smallest."""
    high_ns: int
    """A tenth of the values are above it; of fewer than ten, the largest."""
    count: int


def spread_of(values_ns: Iterable[int]) -> Spread | None:
    """The spread of the values, or None where there are none."""
    ordered = sorted(values_ns)
    if not ordered:
        return None
    tenth = len(ordered) // 10
    return Spread(
        median_ns=round(median(ordered)), low_ns=ordered[tenth], high_ns=ordered[len(ordered) - 1 - tenth], count=len(ordered)
    )
