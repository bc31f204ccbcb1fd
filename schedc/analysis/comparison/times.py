"""Something measured several times: its median and how far the samples spread."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGE_SPREAD = 0.1
"""From where on a spread is worth a warning."""


@dataclass(frozen=True, slots=True)
class SampledTimes:
    """The samples of one duration, at least one."""

    samples_ns: tuple[int, ...]

    @property
    def median_ns(self) -> int:
        """The median, to the nanosecond."""
        return round(statistics.median(self.samples_ns))

    @property
    def spread(self) -> float:
        """The middle half of the samples, from first to third quartile, relative to the median; 0 for a single sample."""
        if len(self.samples_ns) < 2 or not self.median_ns:
            return 0.0
        first, _, third = statistics.quantiles(self.samples_ns, n=4, method="inclusive")
        return (third - first) / self.median_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median and how far most of the values are from it."""

    median_ns: int
    low_ns: int
    """A tenth of the values are below it; of fewer than ten, the smallest."""
    high_ns: int
    """A tenth of the values are above it; of fewer than ten, the largest."""
    count: int


def spread_of(values_ns: Iterable[int]) -> Spread:
    """The spread of the values, at least one."""
    ordered = sorted(values_ns)
    tenth, count = len(ordered) // 10, len(ordered)
    return Spread(
        median_ns=round(statistics.median(ordered)), low_ns=ordered[tenth], high_ns=ordered[count - 1 - tenth], count=count
    )
