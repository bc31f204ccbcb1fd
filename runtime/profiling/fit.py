"""The line through measured transfers: time = latency + bytes / bandwidth, by least squares.

Sizes and times span several powers of ten, so it is the *relative* errors whose squares are summed: each size counts the same, and
neither the latency drowns in the noise of the largest message nor the bandwidth in that of the smallest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """What a directed link costs, as the cost model has it."""

    latency_ns: int
    bytes_per_second: int | None
    """None: larger messages did not take longer."""
    residual: float
    """The root mean square of the relative errors."""
    worst: tuple[int, float]
    """The size with the largest relative error, and that error: (line − measured) / measured."""

    def time_ns(self, size_bytes: float) -> float:
        """What the line says of a message."""
        return self.latency_ns + (0.0 if self.bytes_per_second is None else size_bytes * 1e9 / self.bytes_per_second)


def fit_link(times_ns: Mapping[int, float]) -> LinkFit:
    """The line through the times of messages by their size in bytes; neither latency nor bandwidth is negative.

    Minimizes Σ ((latency + bytes · slope − time) / time)²: linear regression with the weights 1 / time². As the times are positive,
    at most one of the two comes out negative, and the best with it at 0 is the best of all.

    Raises:
        ValueError: fewer than two sizes, or a time that is not above 0.
    """
    if len(times_ns) < 2:
        raise ValueError(f"a line needs two sizes or more, got {len(times_ns)}")
    if min(times_ns.values()) <= 0:
        raise ValueError(f"times must be above 0, got {min(times_ns.values())}")
    sizes, times = np.array([*times_ns], float), np.array([*times_ns.values()], float)
    slope, latency = map(float, np.polyfit(sizes, times, 1, w=1 / times))
    if latency < 0:  # the best line through the origin
        ratios = sizes / times
        latency, slope = 0.0, float(ratios.sum() / (ratios**2).sum())
    elif slope < 0:  # the best level one
        latency, slope = float(np.average(times, weights=times**-2)), 0.0
    fit = LinkFit(
        latency_ns=round(latency),
        bytes_per_second=max(1, round(1e9 / slope)) if slope > 1e-9 else None,  # an exabyte per second is none
        residual=0.0,
        worst=(0, 0.0),
    )
    errors = {size: fit.time_ns(size) / time - 1 for size, time in times_ns.items()}
    worst = max(errors, key=lambda size: abs(errors[size]))
    return LinkFit(
        latency_ns=fit.latency_ns,
        bytes_per_second=fit.bytes_per_second,
        residual=math.sqrt(math.fsum(error * error for error in errors.values()) / len(errors)),
        worst=(worst, errors[worst]),
    )
