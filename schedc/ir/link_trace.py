"""The LinkTrace: how links change with time, as Conditions from one time to the next."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir.conditions import AS_PLANNED, Conditions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schedc.ir.conditions import LinkState


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
