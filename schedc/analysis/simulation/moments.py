"""Moments: a nanosecond and a delta within it, in which what takes no time still has an order (cost model, "Moments").

For simulators in plain Python; the compiled event loop has the same rules written out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedc.analysis.simulation.flow import Flow

Moment = tuple[int, int]
"""(nanosecond, delta); compared in that order."""
BEGIN: Moment = (0, 0)


def after(start: Moment, duration_ns: int) -> Moment:
    """The end of an op, an occupancy or a collective that starts then."""
    start_ns, delta = start
    return (start_ns + duration_ns, 0) if duration_ns > 0 else (start_ns, delta + 1)


def arrived(left: Moment, latency_ns: int) -> Moment:
    """The arrival of a transfer that leaves its link then."""
    return (left[0] + latency_ns, 0) if latency_ns > 0 else left


def gates_of(flow: Flow) -> list[Moment]:
    """Per op, the moment before which an all-gather holds it back."""
    return list(zip(*flow.gates.tolist(), strict=True))


class Resources:
    """Links, trunks and what collectives queue on: each serves one thing at a time, in the order in which they are served."""

    def __init__(self, flow: Flow) -> None:
        """All-gathers have been served."""
        self._free: list[Moment] = list(zip(*flow.free.tolist(), strict=True))
        self._scatters: list[tuple[int, int]] = list(zip(flow.scatter_resource.tolist(), flow.scatter_ns.tolist(), strict=True))

    def serve(self, resource: int, ready: Moment, duration_ns: int) -> tuple[Moment, Moment]:
        """When something that is ready then begins and ends."""
        start = max(ready, self._free[resource])
        self._free[resource] = after(start, duration_ns)
        return start, self._free[resource]

    def reduce_scatter(self, collective: int, ready: Moment) -> int:
        """The nanosecond in which a reduce-scatter begins that is ready then."""
        resource, duration_ns = self._scatters[collective]
        return self.serve(resource, ready, duration_ns)[0][0]
