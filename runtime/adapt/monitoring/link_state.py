"""What one directed link does, from the transit times of its messages: calm, suspected, or changed; pure, events in, estimates out.

A step's lower quartile is what is tested: messages that queue behind others count for little. An alarm of the test alone
changes nothing. It asks for pings of the link, which its sender sends between two steps; only where they show at least
half of the change is it believed. A link that calms down again is found in the same way.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from schedc.runtime.adapt.monitoring.change import ChangeTest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.runtime.adapt.monitoring.change import Rate

__all__ = ["LinkWatch"]

LEAST_NS = 200_000
"""Smaller changes of a link do not count: waking up takes about as long."""
UNANSWERED = 16
"""After this many steps without an answer, a ping is asked for once more, and the alarm forgotten."""
CALM_EVERY = 128
"""After this many calm steps the link is pinged, so that it is known what pings take."""
RECENT = 3
"""From this many last steps a new level is estimated."""


class Ping(NamedTuple):
    """What pings found."""

    transit_ns: float
    """Of one alone."""
    gap_ns: float
    """Between two that were sent one right behind the other: for how long each occupies the link."""


class LinkWatch:
    """One directed link."""

    def __init__(self, rate: Rate) -> None:
        """Know nothing yet."""
        self._rate = rate
        self._test = ChangeTest(rate, least=LEAST_NS)
        self._usual: ChangeTest | None = None
        """What was learned before the first change."""
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._alarm = 0
        self._since_ping = CALM_EVERY
        self._asked = 0
        self._ping: Ping | None = None
        """The last one of this level."""
        self._usual_ping: Ping | None = None
        self.wants_ping = False
        """Whether a ping is to be asked for; its answer goes to `pinged`."""
        self.alarms = self.confirmed = self.rejected = self.unanswered = 0
        """How many there have been."""

    @property
    def known(self) -> bool:
        """Whether anything has been learned yet."""
        return self._test.level == self._test.level

    @property
    def excess_ns(self) -> int:
        """By how much a message takes longer than at first; 0: nothing has certainly changed."""
        return 0 if self._usual is None else round(self._test.level - self._usual.level)

    @property
    def occupancy_excess_ns(self) -> int:
        """What of it is more time on the link for each message, so that the link carries fewer of them."""
        if self._usual is None or self._usual_ping is None or self._ping is None:
            return 0
        more_ns = self._ping.gap_ns - self._usual_ping.gap_ns
        shift_ns = abs(self._ping.transit_ns - self._usual_ping.transit_ns)
        return round(more_ns) if abs(more_ns) > max(LEAST_NS, shift_ns / 4) else 0

    def step(self, transits_ns: Sequence[float]) -> None:
        """Take the transit times of one step's messages, in nanoseconds; a step without any says nothing."""
        if not transits_ns:
            return
        value = sorted(transits_ns)[(len(transits_ns) - 1) // 4]
        self._recent.append(value)
        if self._alarm:
            self._asked += 1
            if self._asked > UNANSWERED:
                self.unanswered += 1
                self._forget()
                self._since_ping = 0
            return
        self._alarm = self._test.add(value)
        if self._alarm:
            self.alarms += 1
            self._asked = 0
            self.wants_ping = True
            return
        self._since_ping += 1
        if self.known and self._since_ping >= CALM_EVERY and not self._test.suspicious:
            self._since_ping = 0
            self.wants_ping = True

    def pinged(self, transits_ns: Sequence[float]) -> None:
        """Take the transit times of the pings that were asked for, sent one right behind the other."""
        gap_ns = max(0.0, (transits_ns[-1] - transits_ns[0]) / (len(transits_ns) - 1))
        found = Ping(median(transit_ns - at * gap_ns for at, transit_ns in enumerate(transits_ns)), gap_ns)
        self.wants_ping = False
        if not self._alarm:
            if not self._test.suspicious:
                self._ping = found
            return
        level_ns = median(self._recent)
        before_ns = self._test.level if self._ping is None else self._ping.transit_ns
        if self._alarm * (found.transit_ns - before_ns) >= self._alarm * (level_ns - self._test.level) / 2:
            self._move(level_ns, found)
        else:
            self.rejected += 1
            self._forget()

    def _move(self, level_ns: float, ping: Ping) -> None:
        """The link has changed: its level is another, or the usual one."""
        self.confirmed += 1
        self._alarm = 0
        if self._usual is None:
            self._usual, self._usual_ping = self._test, self._ping
        usual = self._usual
        if abs(level_ns - usual.level) <= max(LEAST_NS, 0.1 * usual.level):
            self._test, self._ping, self._usual = usual, self._usual_ping, None
            return
        # how much it varies is known of the usual level only: as much for its size, at first
        self._test = ChangeTest(self._rate, least=LEAST_NS, pool=[level_ns * value / usual.level for value in usual.pool[-128:]])
        self._ping = ping

    def _forget(self) -> None:
        self._alarm = 0
        self.wants_ping = False
        self._test.forgive()
