"""What links and ranks cost at a time, where that differs from what a Problem says: a slow link, a rank whose compute has slowed.

A link trace, a monitor or a sample of a distribution gives it; `schedc.lower.conditions` makes the Problem under it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.ir.problem import Link

MOST = 2**53 - 1
"""A plan file can say no larger number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """What a message meets on a directed link; None: what the plan says."""

    latency_ns: int | None = None
    bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        for name, value, least in (("latency_ns", self.latency_ns, 0), ("bytes_per_second", self.bytes_per_second, 1)):
            if value is not None and not (isinstance(value, int) and least <= value <= MOST):
                raise ValueError(f"{name} must be a whole number from {least} to {MOST}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What differs from the plan's Problem; what is not named is as the Problem says."""

    links: Mapping[tuple[int, int], LinkState] = field(default_factory=dict)
    """By source and destination rank. Links that the Problem does not have count for nothing."""
    slowdown: Mapping[tuple[int, Kind], float] = field(default_factory=dict)
    """By rank and kind of block, what durations are multiplied by: 2.0 is half as fast. F, B and W; BW follows from B and W."""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        for (rank, kind), factor in self.slowdown.items():
            if kind not in (Kind.F, Kind.B, Kind.W) or not isinstance(kind, Kind):
                raise ValueError(f"a slowdown must be of a rank and Kind.F, Kind.B or Kind.W, got {(rank, kind)}")
            if not (math.isfinite(factor) and factor > 0):
                raise ValueError(f"the slowdown of {kind.name} on rank {rank} must be a number above 0, got {factor}")

    def link(self, link: Link) -> Link:
        """A Problem's link under these conditions. A bandwidth takes the place of an occupancy that is given outright."""
        state = self.links.get((link.source, link.destination))
        if state is None:
            return link
        latency_ns = link.latency_ns if state.latency_ns is None else state.latency_ns
        if state.bytes_per_second is None:
            return replace(link, latency_ns=latency_ns)
        return replace(link, latency_ns=latency_ns, transfer_ns=None, bytes_per_second=state.bytes_per_second)


AS_PLANNED = Conditions()
"""Nothing differs."""
