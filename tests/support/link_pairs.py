"""Both directions of a simulated link and what watches them, with the delays by which two ranks of a job hear from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.runtime.adapt.monitoring.both_ways import BothWays
from schedc.runtime.adapt.monitoring.link_state import LinkWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.runtime.adapt.monitoring.change import Rate

PINGS = 3


class LinkPair:
    """Two directions. What is said in a step arrives with the next; pings that are asked for then are known one step later."""

    def __init__(self, rate: Rate, messages: int = 4, *, compared: bool = True) -> None:
        """Nothing is known. Where they are not `compared`, each direction is reported for itself."""
        self._compared = compared
        self.watches = [LinkWatch(rate) for _ in range(2)]
        self.pairs = [BothWays(watch) for watch in self.watches]
        self._messages = messages
        self._asked = [0, 0]

    def step(self, transit_ns: Callable[[int], Callable[[], float]], *, answers: bool = True) -> None:
        """One step of both directions.

        Args:
            transit_ns: by direction, what gives the nanoseconds of each of a step's messages.
            answers: whether pings are answered.
        """
        said = [pair.news for pair in self.pairs]
        for way, watch in enumerate(self.watches):
            draw = transit_ns(way)
            watch.step([draw() for _ in range(self._messages)])
            if self._asked[way] == 1 and answers:
                self._asked[way] = 0
                if watch.wants_ping:
                    draw = transit_ns(way)
                    watch.pinged([draw() for _ in range(PINGS)])
            self._asked[way] = max(0, self._asked[way] - 1)
            if self._compared:
                self.pairs[way].step(said[1 - way])
            if watch.wants_ping and not self._asked[way]:
                self._asked[way] = 2

    @property
    def reported_ns(self) -> tuple[int, int]:
        """What is reported to be more than at first, by direction."""
        found = self.pairs if self._compared else self.watches
        return found[0].excess_ns, found[1].excess_ns
