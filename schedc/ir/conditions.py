"""What links and ranks cost at a time, where that differs from what a Problem says: a slow link, a rank whose compute has slowed.

A link trace, a monitor or a sample of a distribution gives it; `schedc.lower.conditions` makes the Problem under it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.ir.ops import Kind
    from schedc.ir.problem import Link

__all__ = ["AS_PLANNED", "Conditions", "LinkState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """What a message meets on a directed link; None: what the plan says."""

    latency_ns: int | None = None
    bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        if self.latency_ns is not None and self.latency_ns < 0:
            raise ValueError(f"latency_ns must be at least 0, got {self.latency_ns}")
        if self.bytes_per_second is not None and self.bytes_per_second <= 0:
            raise ValueError(f"bytes_per_second must be above 0, got {self.bytes_per_second}")


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
