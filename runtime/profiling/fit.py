"""The line through measured transfers: time = latency + bytes / bandwidth, by least squares.

Sizes and times span several powers of ten, so it is the *relative* errors whose squares are summed: each size counts the same, and
neither the latency drowns in the noise of the largest message nor the bandwidth in that of the smallest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    sizes, times = list(times_ns), list(times_ns.values())
    weights = [1 / time**2 for time in times]
    total = math.fsum(weights)
    size_mean = math.fsum(map(math.prod, zip(weights, sizes, strict=True))) / total
    time_mean = math.fsum(map(math.prod, zip(weights, times, strict=True))) / total
    apart = [
        (weight * (size - size_mean), size - size_mean, time) for weight, size, time in zip(weights, sizes, times, strict=True)
    ]
    slope = math.fsum(scaled * (time - time_mean) for scaled, _, time in apart) / math.fsum(
        scaled * off for scaled, off, _ in apart
    )
    latency = time_mean - slope * size_mean
    if latency < 0:  # the best line through the origin
        latency = 0.0
        slope = math.fsum(size / time for size, time in times_ns.items()) / math.fsum(
            (size / time) ** 2 for size, time in times_ns.items()
        )
    elif slope < 0:  # the best level one
        latency, slope = time_mean, 0.0
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
