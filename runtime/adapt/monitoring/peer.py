"""The links of a rank with one peer: stamps and pings of both directions in, what of the one to this rank has changed out."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from schedc.runtime.adapt.monitoring.link_pair import LinkPair
from schedc.runtime.adapt.monitoring.link_state import LinkWatch
from schedc.runtime.adapt.monitoring.pair_clock import PairClock
from schedc.runtime.adapt.monitoring.stamps import UNKNOWN, InLink, OutLink, Stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.runtime.adapt.monitoring.change import Rate


class PeerLinks:
    """What is known of them, and the ends of their wires."""

    def __init__(self, rate: Rate, clock: int, unequal_ns: Callable[[], int], look: Callable[[], None]) -> None:
        """Know nothing.

        Args:
            rate: of false alarms.
            clock: of this rank, as of `Words`; 0: it has no name.
            unequal_ns: gives by how much the way here takes longer than the way there, as the plan says.
            look: called in another thread when pings have come, or stamps that leave doubt: `come` is to be called.
        """
        self.out, self.into = OutLink(), InLink()
        self.into.on_stamp, self.into.on_pings = self._suspect, look
        self.watch: LinkWatch | None = None
        """Of the link to this rank, once something has come."""
        self.pair: LinkPair | None = None
        self.awaits_pings = False
        """Whether the peer has been asked for pings which have not been taken yet."""
        self._rate = rate
        self._clock = clock
        self._unequal_ns = unequal_ns
        self._look = look
        self._pair_clock: PairClock | None = None

    def answer(self) -> None:
        """Between two steps: send the pings that the peer has asked for."""
        wanted = self.into.words.wanted
        if self.out.kind is not None and wanted > self.out.answered:
            self.out.answered = wanted
            self.out.ping()

    def measure(self) -> None:
        """Take the stamps that have come since the last call as those of one step."""
        stamps = [self.into.stamps.popleft() for _ in range(len(self.into.stamps))]
        if stamps:
            self._take(stamps)

    def come(self) -> None:
        """Pings have come, or stamps that leave doubt: take those, ask for some."""
        if self.watch is None or self.out.end is None:
            return
        self._take_pings(self.watch)
        stamps = list(self.into.stamps)
        offset_ns = self._offset_now_ns(stamps[-1]) if stamps else None
        if offset_ns is not None:
            self.watch.doubt([stamp.came_ns - stamp.sent_ns - offset_ns for stamp in stamps])
        self._ask(self.watch)

    def close(self) -> None:
        """End the thread of the link to this rank; say nothing of it any more."""
        self.into.close()
        with self.out.lock:
            self.out.words = self.out.words._replace(way_ns=UNKNOWN)

    def _suspect(self) -> None:
        """In the link's thread, in the middle of a step: let somebody look at once if two messages are both too late."""
        watch, stamps = self.watch, list(self.into.stamps)
        if watch is not None and len(stamps) > 1 and not watch.wants_ping:
            offset_ns = self._offset_now_ns(stamps[-1])
            if offset_ns is not None and watch.doubts(min(stamp.came_ns - stamp.sent_ns for stamp in stamps) - offset_ns):
                self._look()

    def _take(self, stamps: Sequence[Stamp]) -> None:
        """What the stamps of one step say."""
        if self.watch is None or self.pair is None:
            watch = LinkWatch(self._rate)
            self.watch, self.pair = watch, LinkPair(watch)
        ways_ns = [stamp.came_ns - stamp.sent_ns for stamp in stamps]
        last, way_ns = stamps[-1], min(ways_ns)
        offset_ns = self._offset_ns(last, way_ns)
        if offset_ns is not None:
            self.watch.step([each_ns - offset_ns for each_ns in ways_ns])
        if self.out.end is None:
            return
        self._take_pings(self.watch)
        self.pair.step(last.words.news)
        self._ask(self.watch)
        with self.out.lock:
            self.out.words = self.out.words._replace(clock=self._clock, way_ns=way_ns, news=self.pair.news)

    def _take_pings(self, watch: LinkWatch) -> None:
        """If they have come, or never will."""
        if not self.awaits_pings:
            return
        ways_ns = self.into.pings_ns
        if ways_ns is None and not self.into.pings_lost:
            return
        self.awaits_pings = False
        offset_ns = self._offset_now_ns(Stamp(perf_counter_ns(), 0, self.into.words))
        if ways_ns is not None and offset_ns is not None and watch.wants_ping and self.pair is not None:
            watch.pinged([way_ns - offset_ns for way_ns in ways_ns])
            self.pair.pinged()

    def _ask(self, watch: LinkWatch) -> None:
        """Ask for pings where they are wanted and not under way."""
        if not self.awaits_pings and watch.wants_ping and self.into.expect_pings():
            self.awaits_pings = True
            with self.out.lock:
                self.out.words = self.out.words._replace(wanted=self.out.words.wanted + 1)

    def _offset_ns(self, last: Stamp, way_ns: int) -> float | None:
        """By how much this rank's clock is ahead of the peer's, learned from a step's shortest way here; None: nobody knows yet."""
        words = last.words
        if words.clock == 0 and words.way_ns == UNKNOWN:
            return None  # it has said nothing yet
        if not self._clock or words.clock != self._clock:
            if self._pair_clock is None:
                self._pair_clock = PairClock(self._unequal_ns())
            if words.way_ns != UNKNOWN:
                self._pair_clock.add(last.came_ns, way_ns, words.way_ns)
        return self._offset_now_ns(last)

    def _offset_now_ns(self, last: Stamp) -> float | None:
        """As `_offset_ns`, from what is known so far."""
        if self._clock and last.words.clock == self._clock:
            return 0.0
        clock = self._pair_clock
        return clock.offset_ns(last.came_ns) if clock is not None and clock.known else None
