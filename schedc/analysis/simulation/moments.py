"""Moments: a nanosecond and a delta within it, in which what takes no time still has an order (cost model, "Moments").

For simulators in plain Python; the compiled event loop has the same rules written out.
"""

from __future__ import annotations

__all__ = ["BEGIN", "Moment", "after", "arrived"]

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
