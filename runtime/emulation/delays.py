"""What a transfer meets on its way by the cost model: its occupancy of a link or a trunk, then its latency.

`delay_of` takes a wire and the problem's costs; gives the wire's `WireDelay`, `traced_delay` one that changes with time, by a link
trace and its `TraceClock`. `Reservable` is what transfers occupy, one at a time;
an `OwnLink` is occupied from one process only.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from schedc.ir.conditions import AS_PLANNED, Conditions, LinkTrace

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.runtime.common.program import Message, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class WireDelay:
    """What the transfers of one wire meet: `arrival = max(ready, link free) + occupancy + latency` (cost model, "Transfers")."""

    latency_ns: int
    occupancy_ns: tuple[int, ...]
    """Per transfer of the wire."""
    trunk: str | None = None
    """The trunk that they share with other wires; None: the link is this wire's alone."""

    def at(self, _now_ns: int) -> WireDelay:
        """The same at all times."""
        return self


class DelayOfTransfers(Protocol):
    """What the transfers of a wire meet, which may change."""

    def at(self, now_ns: int) -> WireDelay:
        """What a transfer meets that begins at this time, on `time.perf_counter_ns`."""


class TraceClock:
    """The clock of a link trace. It starts at 0, and while it is stopped, it stays where it is."""

    def __init__(self, scale: float = 1.0, before_ns: int = 0) -> None:
        """Not running yet.

        Args:
            scale: a nanosecond of the trace takes this many.
            before_ns: what it shows until it starts; below 0, links are as planned until then.
        """
        self._scale = scale
        self._before_ns = before_ns
        self._passed_ns = 0
        self._since_ns: int | None = None

    def start(self, now_ns: int) -> None:
        """Run from this time of `time.perf_counter_ns` on."""
        self._since_ns = now_ns
        self._before_ns = 0

    def stop(self, now_ns: int) -> None:
        """Stay, from this time on."""
        assert self._since_ns is not None, "it runs"
        self._passed_ns += now_ns - self._since_ns
        self._since_ns = None

    def time_ns(self, now_ns: int) -> int:
        """The trace's time."""
        running_ns = 0 if self._since_ns is None else now_ns - self._since_ns
        return self._before_ns + round((self._passed_ns + running_ns) / self._scale)


class _TracedDelay:
    """One wire's delay by a link trace."""

    def __init__(self, times_ns: list[int], delays: list[WireDelay], clock: TraceClock) -> None:
        self._times_ns = times_ns
        self._delays = delays
        self._clock = clock

    def at(self, now_ns: int) -> WireDelay:
        """As `DelayOfTransfers.at`."""
        return self._delays[max(0, bisect_right(self._times_ns, self._clock.time_ns(now_ns)) - 1)]


class Reservable(Protocol):
    """What one transfer occupies at a time."""

    def reserve(self, ready_ns: int, occupancy_ns: int) -> int:
        """Occupy it from when it is free, not before `ready_ns`; returns when it is free again."""


class OwnLink:
    """A link that nobody else occupies."""

    def __init__(self) -> None:
        """Free from the beginning of time."""
        self._free_ns = 0

    def reserve(self, ready_ns: int, occupancy_ns: int) -> int:
        """As `Reservable.reserve`."""
        self._free_ns = max(ready_ns, self._free_ns) + occupancy_ns
        return self._free_ns


def delay_of(problem: Problem, wire: Wire, scale: float = 1.0, conditions: Conditions = AS_PLANNED) -> WireDelay:
    """The wire's delay by the problem's link and message sizes.

    Args:
        problem: whose costs count; its stages are those of the wire's plan.
        wire: one of a plan's.
        scale: what all times are multiplied by.
        conditions: what of the link's costs is different.
    """
    link = conditions.link(problem.link(wire.source, wire.destination))
    return WireDelay(
        latency_ns=round(link.latency_ns * scale),
        occupancy_ns=tuple(round(link.occupancy_ns(_size_bytes(problem, message)) * scale) for message in wire.messages),
        trunk=link.trunk,
    )


def traced_delay(problem: Problem, wire: Wire, scale: float, trace: LinkTrace, clock: TraceClock) -> DelayOfTransfers:
    """The wire's delay under a link trace, whose clock others start; the other arguments are those of `delay_of`."""
    times_ns, delays = [0], [delay_of(problem, wire, scale)]
    for time_ns, conditions in trace.entries:
        delay = delay_of(problem, wire, scale, conditions)
        if delay != delays[-1]:
            times_ns.append(time_ns)
            delays.append(delay)
    return delays[0] if len(delays) == 1 else _TracedDelay(times_ns, delays, clock)


def _size_bytes(problem: Problem, message: Message) -> int:
    stage = problem.stages[message.boundary]
    return stage.gradient_message_bytes if message.gradient else stage.message_bytes
