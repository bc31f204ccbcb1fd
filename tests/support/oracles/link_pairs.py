"""Simulated links and what watches them, with the delays by which two ranks of a job hear from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.runtime.adapt.monitoring.link_state import LinkWatch
from schedc.runtime.adapt.monitoring.peer import LinkPair

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.runtime.adapt.monitoring.change import Rate

PINGS = 3


class SimulatedLink:
    """One direction. Who doubts in the middle of a step has pings when it has ended; who does later, a step later."""

    def __init__(self, rate: Rate, messages: int = 4) -> None:
        """Nothing is known."""
        self.watch = LinkWatch(rate)
        self._messages = messages
        self._asked = False

    def step(self, transit_ns: Callable[[], Callable[[], float]], *, answers: bool = True) -> bool:
        """One step, of whose messages `transit_ns()` draws one after the other; pings have noise of their own.

        Returns:
            Whether there were pings.
        """
        draw, watch = transit_ns(), self.watch
        found = [draw() for _ in range(self._messages)]
        watch.doubt(found[: self._messages // 2])
        asked = self._asked or watch.wants_ping
        watch.step(found)
        pinged = asked and watch.wants_ping and answers
        if pinged:
            draw = transit_ns()
            watch.pinged([draw() for _ in range(PINGS)])
        self._asked = watch.wants_ping
        return pinged


class BothEnds:
    """Two directions. What is said in a step arrives with the next."""

    def __init__(self, rate: Rate, messages: int = 4, *, compared: bool = True) -> None:
        """Nothing is known. Where they are not `compared`, each direction is reported for itself."""
        self._compared = compared
        self._links = [SimulatedLink(rate, messages) for _ in range(2)]
        self.watches = [link.watch for link in self._links]
        self.pairs = [LinkPair(watch) for watch in self.watches]

    def step(self, transit_ns: Callable[[int], Callable[[], float]], *, answers: bool = True) -> None:
        """One step of both directions.

        Args:
            transit_ns: by direction, what gives the nanoseconds of each of a step's messages.
            answers: whether pings are answered.
        """
        said = [pair.news for pair in self.pairs]
        for way, link in enumerate(self._links):
            pinged = link.step(lambda way=way: transit_ns(way), answers=answers)  # type: ignore[misc]
            if self._compared:
                self.pairs[way].step(said[1 - way])
                if pinged:
                    self.pairs[way].pinged()

    @property
    def reported_ns(self) -> tuple[int, int]:
        """What is reported to be more than at first, by direction."""
        found = self.pairs if self._compared else self.watches
        return found[0].excess_ns, found[1].excess_ns
