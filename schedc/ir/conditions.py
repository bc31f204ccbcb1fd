"""What links and ranks cost at a time, where that differs from what a Problem says: a slow link, a rank whose compute has slowed.

A link trace (which says from when to when), a monitor or a sample of a distribution gives these Conditions;
`schedc.lower.problem` makes the Problem under them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from schedc.ir.network import Link

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


@dataclass(frozen=True, slots=True)
class LinkTrace:
    """What links cost over time."""

    entries: tuple[tuple[int, Conditions], ...]
    """From this nanosecond on, these conditions, until the next entry; times rise. Before the first, all is as planned."""

    def __post_init__(self) -> None:
        """Refuse times that do not rise."""
        times_ns = [time_ns for time_ns, _ in self.entries]
        if any(time_ns < 0 for time_ns in times_ns) or any(after <= before for before, after in pairwise(times_ns)):
            raise ValueError("the times of a link trace must be at least 0 and rise")

    @classmethod
    def of(cls, changes: Iterable[tuple[int, tuple[int, int], LinkState]]) -> LinkTrace:
        """The trace of these changes: from a nanosecond on, a directed link has a state, in the place of the one before.

        Args:
            changes: times do not fall; of several for one link at one time, the last counts.
        """
        links: dict[tuple[int, int], LinkState] = {}
        entries: dict[int, Conditions] = {}
        for time_ns, link, state in changes:
            links = {**links, link: state}
            if state.latency_ns is None and state.bytes_per_second is None:
                del links[link]
            entries[time_ns] = Conditions(links=links)
        return cls(tuple(entries.items()))

    def at(self, time_ns: int) -> Conditions:
        """The conditions at a time; a negative one is before the first entry."""
        place = bisect_right(self.entries, time_ns, key=lambda entry: entry[0])
        return self.entries[place - 1][1] if place else AS_PLANNED

    def since(self, time_ns: int) -> LinkTrace:
        """The trace on a clock that begins at this time."""
        after = tuple((at_ns - time_ns, conditions) for at_ns, conditions in self.entries if at_ns > time_ns)
        return LinkTrace(((0, self.at(time_ns)), *after))
