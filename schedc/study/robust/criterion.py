"""What makes one number of a step's ends under many conditions: their mean, or a percentile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Criterion:
    """What is minimized."""

    percentile: float | None = None
    """From above 0 to 100; None: the mean."""

    def __post_init__(self) -> None:
        """Refuse a percentile that is none."""
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise ValueError(f"a percentile must be above 0 and at most 100, got {self.percentile}")

    def of(self, values: Sequence[float], weights: Sequence[float]) -> float:
        """The number of these values, each with a weight."""
        if self.percentile is not None:
            return percentile_of(values, weights, self.percentile)
        return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / math.fsum(weights)

    @property
    def text(self) -> str:
        """What it is called."""
        return "mean" if self.percentile is None else f"percentile {self.percentile:g}"


MEAN = Criterion()


def percentile_of(values: Sequence[float], weights: Sequence[float], percentile: float) -> float:
    """The least value by which at least this percentage of the weight lies."""
    wanted, total = percentile / 100 * math.fsum(weights), 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        total += weight
        if total >= wanted * (1 - 1e-12):
            return value
    return max(values)
