"""The offset between the clocks of two hosts, from what messages both ways take by their two clocks: NTP without its own messages.

A message that is sent at s on one clock and arrives at a on the other says a - s = way + offset; one the other way
says way back - offset. Half the difference of the two is the offset, wrong by half of what the ways differ: nobody can tell how
unequal two ways are. It is assumed that they are as unequal as the plan says. Each step's shortest ways make a point; a line
through the points follows the drift of the clocks. A way that gets slower looks like a jump, which no clock makes: points
far from the line are left out, so that the line goes on as before.
"""

from __future__ import annotations

from collections import deque
from statistics import median

__all__ = ["PairClock"]

POINTS = 256
FIRST = 8
GATE_NS = 100_000
"""A point this near to the line is always taken."""
PATIENCE = 512
"""After this many points in a row that are left out, a clock has been set: begin anew."""


class PairClock:
    """Of this rank's clock against a peer's."""

    def __init__(self, unequal_ns: int = 0) -> None:
        """Know nothing.

        Args:
            unequal_ns: by how much the way here takes longer than the way there, as the plan says.
        """
        self._unequal_ns = unequal_ns
        self._points: deque[tuple[int, float]] = deque(maxlen=POINTS)
        self._left_out = 0
        self._line = (0, 0.0, 0.0)  # a time, the offset then, and its growth per nanosecond

    @property
    def known(self) -> bool:
        """Whether `offset_ns` says anything."""
        return bool(self._points)

    def add(self, now_ns: int, here_ns: int, there_ns: int) -> None:
        """Take a step's shortest ways, each as arrival by the receiver's clock less sending by the sender's.

        Args:
            now_ns: about when, on this rank's clock.
            here_ns: from the peer to this rank.
            there_ns: from this rank to the peer.
        """
        offset_ns = (here_ns - there_ns - self._unequal_ns) / 2
        if len(self._points) >= FIRST and abs(offset_ns - self.offset_ns(now_ns)) > self._gate_ns():
            self._left_out += 1
            if self._left_out < PATIENCE:
                return
            self._points.clear()
        self._left_out = 0
        self._points.append((now_ns, offset_ns))
        self._fit()

    def offset_ns(self, now_ns: int) -> float:
        """By how much this rank's clock is ahead of the peer's at a time."""
        since_ns, offset_ns, drift = self._line
        return offset_ns + drift * (now_ns - since_ns)

    def _gate_ns(self) -> float:
        return GATE_NS + 5 * median(abs(offset_ns - self.offset_ns(at_ns)) for at_ns, offset_ns in self._points)

    def _fit(self) -> None:
        """Through the medians of the older and the newer half: a few wrong points move it little."""
        points = list(self._points)
        half = len(points) // 2
        if half < FIRST // 2:
            self._line = (points[-1][0], median(offset_ns for _, offset_ns in points), 0.0)
            return
        (old_ns, old), (new_ns, new) = (
            (median(at_ns for at_ns, _ in part), median(offset_ns for _, offset_ns in part))
            for part in (points[:half], points[half:])
        )
        drift = (new - old) / (new_ns - old_ns) if new_ns > old_ns else 0.0
        self._line = (round(new_ns), new, drift)
