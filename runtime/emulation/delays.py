"""What a transfer meets on its way by the cost model: its occupancy of a link or a trunk, then its latency.

`delay_of` takes a wire and the problem's costs; gives the wire's `WireDelay`, `traced_delay` one that changes with time, by a link
trace and its `TraceClock`. `Reservable` is what transfers occupy, one at a time; an `OwnLink` is occupied from one process only.

A `Trunk` is what the links of several ranks of one host share, held in memory that their processes share. All ranks call
`open_trunks` together. Reservations are made in the order in which they are asked for, one at a time; the lock is a file's, which
the system takes from a process that ends.
"""

from __future__ import annotations

import os
import struct
import tempfile
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from mmap import mmap
from typing import TYPE_CHECKING, Protocol, TypeAlias

from schedc.errors import Unsupported
from schedc.ir import AS_PLANNED, Conditions, LinkTrace, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire

FREE_NS = struct.Struct("=q")


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


@dataclass(frozen=True, slots=True)
class TracedDelay:
    """What the transfers of one wire meet by a link trace."""

    times_ns: list[int]
    """From when each of the delays holds; the first is that of the plan."""
    delays: list[WireDelay]
    clock: TraceClock

    def at(self, now_ns: int) -> WireDelay:
        """What a transfer meets that begins at this time, on `time.perf_counter_ns`."""
        return self.delays[max(0, bisect_right(self.times_ns, self.clock.time_ns(now_ns)) - 1)]


DelayOfTransfers: TypeAlias = WireDelay | TracedDelay


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


class Trunk:
    """One rank's end of a trunk, as `Reservable`: the time at which it is free, in a file that all who share it have open."""

    def __init__(self, file: int, place: int) -> None:
        """Take a place in the file, which is closed with this."""
        self._file = file
        self._memory = mmap(file, 0)
        self._at = place * FREE_NS.size

    def __del__(self) -> None:
        """Close the file."""
        os.close(self._file)

    def reserve(self, ready_ns: int, occupancy_ns: int) -> int:
        """As `Reservable.reserve`."""
        import fcntl  # not every system that trains has it

        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            (free_ns,) = FREE_NS.unpack_from(self._memory, self._at)
            left_ns: int = max(ready_ns, free_ns) + occupancy_ns
            FREE_NS.pack_into(self._memory, self._at, left_ns)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return left_ns


def delay_of(problem: Problem, wire: Wire, scale: float = 1.0, conditions: Conditions = AS_PLANNED) -> WireDelay:
    """The wire's delay by the problem's link and message sizes.

    The problem's stages are those of the wire's plan; `conditions` say what of the link's costs is different.
    """
    link = conditions.link(problem.link(wire.source, wire.destination))
    return WireDelay(
        latency_ns=round(link.latency_ns * scale),
        occupancy_ns=tuple(round(link.occupancy_ns(problem.message_bytes(op)) * scale) for op in wire.transfers),
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
    return delays[0] if len(delays) == 1 else TracedDelay(times_ns, delays, clock)


def open_trunks(senders: Mapping[str, Sequence[int]], hosts: Sequence[str], groups: Groups) -> dict[str, Trunk]:
    """The trunks, by name. All ranks call it together; their file has no name any more when it returns.

    `senders` has, by trunk, the ranks that send on it.

    Raises:
        Unsupported: a trunk's senders are on several hosts, or cannot open one file.
        TransferFailed: another rank has ended.
    """
    if not senders:
        return {}
    for trunk, ranks in senders.items():
        other = next((rank for rank in ranks if hosts[rank] != hosts[ranks[0]]), None)
        if other is not None:
            raise Unsupported(
                f"ranks {ranks[0]} and {other} share the trunk {trunk!r}, but not a host, so that neither knows when the other"
                " occupies it; run them on one host, or give the job's links no trunk (one site, or [[topology.link]] for each)"
            )
    leader = hosts.index(hosts[groups.rank])
    own: str | None = None
    try:
        if leader == groups.rank:
            handle, own = tempfile.mkstemp(prefix="schedc-trunks-")
            os.truncate(handle, FREE_NS.size * len(senders))
            os.close(handle)
        path = groups.exchange(own)[leader]
        assert path is not None
        files: list[int] = []
        with suppress(OSError):
            files = [os.open(path, os.O_RDWR) for _ in senders]
        shared = groups.exchange(bool(files))
    finally:
        if own is not None:
            os.unlink(own)
    if not all(shared):
        absent = shared.index(False)
        raise Unsupported(f"rank {absent} is on the host of rank {hosts.index(hosts[absent])}, but sees another file system")
    return {trunk: Trunk(file, place) for place, (trunk, file) in enumerate(zip(senders, files, strict=True))}
