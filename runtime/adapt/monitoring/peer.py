"""The links of a rank with one peer: stamps and pings of both directions in, what of the one to this rank has changed out.

Each rank watches the direction to it; where one has changed, the other is looked at too, and both are reported with the same step
(`LinkPair`). At an alarm the peer asks for a ping of its own direction, too; once the alarm is confirmed, that ping and the last
steps decide about the peer's direction. Whoever has found a change says so, and reports it when the peer answers that it has
looked; the peer reports what it has found one step after its answer. So nobody re-plans for half a change. A change that is plain
(`LinkWatch.sure`) waits for nobody: it is as plain in the other direction, or has not happened there.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from schedc.runtime.adapt.monitoring.link_state import LinkWatch
from schedc.runtime.adapt.monitoring.stamps import UNKNOWN, InLink, News, OutLink, Words
from schedc.runtime.measure.clocks import PairClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.runtime.adapt.monitoring.change import Rate

LOOKS = 6
"""After this many steps without a ping of the other direction, it counts as unchanged."""
HOLDS = LOOKS + 4
"""After this many steps without an answer, a change is reported alone."""


class LinkPair:
    """One rank's side of a link. Pure: what the ranks say to each other goes in and out."""

    def __init__(self, watch: LinkWatch) -> None:
        """Nothing has been said.

        Args:
            watch: of the direction to this rank.
        """
        self._watch = watch
        self._alarms = self._looked = 0
        """The peer's alarms that this rank has taken note of; the confirmed ones that it has looked into."""
        self._looking = 0
        """For how many steps it has looked into the next one."""
        self._confirmed = 0
        """This rank's own, at the last step."""
        self._holds = 0
        """After this many steps what has been found is reported; 0: it is."""
        self.excess_ns = self.occupancy_excess_ns = 0
        """As of `LinkWatch`, as far as it is to be reported."""

    @property
    def news(self) -> News:
        """What to say to the peer."""
        return News(self._watch.alarms, self._watch.confirmed, self._looked)

    def step(self, heard: News) -> None:
        """Take note of what the peer has said last, once in each step, after the watch has taken the step and its pings."""
        watch = self._watch
        self._holds = max(0, self._holds - 1)
        self._take_note()
        unreported = self._holds > 0
        if heard.looked >= self._confirmed:
            self._holds = 0
        if heard.alarms > self._alarms:
            self._alarms = heard.alarms
            watch.look()
        if heard.confirmed > self._looked:
            self._look(heard.confirmed, unreported=unreported)
        self._report()

    def pinged(self) -> None:
        """Take note of what the watch has found, after it has taken pings: what is plain is reported at once."""
        self._take_note()
        self._report()

    def _take_note(self) -> None:
        if self._watch.confirmed > self._confirmed:
            self._confirmed, self._holds = self._watch.confirmed, 0 if self._watch.sure else HOLDS

    def _report(self) -> None:
        if not self._holds:
            self.excess_ns, self.occupancy_excess_ns = self._watch.excess_ns, self._watch.occupancy_excess_ns

    def _look(self, confirmed: int, *, unreported: bool) -> None:
        """Find out whether this direction has changed as well; the peer gets the answer with the next step, and reports then."""
        changed = unreported or self._watch.follow()
        if changed is None and self._looking < LOOKS:
            self._looking += 1
            return
        self._looked, self._looking = confirmed, 0
        if unreported:
            self._holds = min(self._holds, 1)
        elif changed:
            self._holds = 1


class PeerLinks:
    """What is known of them, and the ends of their wires."""

    def __init__(self, rate: Rate, clock: int, unequal_ns: int, look: Callable[[], object]) -> None:
        """Know nothing.

        Args:
            rate: of false alarms.
            clock: of this rank, as of `Words`; 0: it has no name.
            unequal_ns: by how much the way here takes longer than the way there, as the plan says.
            look: called in another thread when pings have come, or stamps that leave doubt: `come` is to be called.
        """
        self.out, self.into = OutLink(), InLink(self._suspect, look)
        self.watch = LinkWatch(rate)
        """Of the link to this rank."""
        self.pair = LinkPair(self.watch)
        self.awaits_pings = False
        """Whether the peer has been asked for pings which have not been taken yet."""
        self._clock = clock
        self._pair_clock = PairClock(unequal_ns)
        self._look = look

    def answer(self) -> None:
        """Between two steps: send the pings that the peer has asked for."""
        wanted = self.into.words.wanted
        if self.out.kind is not None and wanted > self.out.answered:
            self.out.answered = wanted
            self.out.ping()

    def measure(self) -> None:
        """Take the stamps that have come since the last call as those of one step."""
        stamps = [self.into.stamps.popleft() for _ in range(len(self.into.stamps))]
        if not stamps:
            return
        ways_ns = [stamp.came_ns - stamp.sent_ns for stamp in stamps]
        now_ns, words, way_ns = stamps[-1].came_ns, stamps[-1].words, min(ways_ns)
        if words.clock or words.way_ns != UNKNOWN:  # else it has said nothing yet
            if words.way_ns != UNKNOWN and not self._is_own(words):
                self._pair_clock.add(now_ns, way_ns, words.way_ns)
            offset_ns = self._offset_ns(words, now_ns)
            if offset_ns is not None:
                self.watch.step([each_ns - offset_ns for each_ns in ways_ns])
        if self.out.end is None:
            return
        self._take_pings()
        self.pair.step(words.news)
        self._ask()
        with self.out.lock:
            self.out.words = self.out.words._replace(clock=self._clock, way_ns=way_ns, news=self.pair.news)

    def come(self) -> None:
        """Pings have come, or stamps that leave doubt: take those, ask for some."""
        if self.out.end is None:
            return
        self._take_pings()
        stamps = list(self.into.stamps)
        offset_ns = self._offset_ns(stamps[-1].words, stamps[-1].came_ns) if stamps else None
        if offset_ns is not None:
            self.watch.doubt([stamp.came_ns - stamp.sent_ns - offset_ns for stamp in stamps])
        self._ask()

    def close(self) -> None:
        """End the thread of the link to this rank; say nothing of it any more."""
        self.into.close()
        with self.out.lock:
            self.out.words = self.out.words._replace(way_ns=UNKNOWN)

    def _suspect(self) -> None:
        """In the link's thread, in the middle of a step: let somebody look at once if two messages are both too late."""
        stamps = list(self.into.stamps)
        if self.watch.known and len(stamps) > 1 and not self.watch.wants_ping:
            offset_ns = self._offset_ns(stamps[-1].words, stamps[-1].came_ns)
            if offset_ns is not None and self.watch.doubts(min(stamp.came_ns - stamp.sent_ns for stamp in stamps) - offset_ns):
                self._look()

    def _take_pings(self) -> None:
        """If they have come, or never will."""
        if not self.awaits_pings:
            return
        ways_ns = self.into.pings_ns
        if ways_ns is None and not self.into.pings_lost:
            return
        self.awaits_pings = False
        offset_ns = self._offset_ns(self.into.words, perf_counter_ns())
        if ways_ns is not None and offset_ns is not None and self.watch.wants_ping:
            self.watch.pinged([way_ns - offset_ns for way_ns in ways_ns])
            self.pair.pinged()

    def _ask(self) -> None:
        """Ask for pings where they are wanted and not under way."""
        if not self.awaits_pings and self.watch.wants_ping and self.into.expect_pings():
            self.awaits_pings = True
            with self.out.lock:
                self.out.words = self.out.words._replace(wanted=self.out.words.wanted + 1)

    def _is_own(self, words: Words) -> bool:
        """Whether the peer reads the same clock."""
        return self._clock != 0 and words.clock == self._clock

    def _offset_ns(self, words: Words, now_ns: int) -> float | None:
        """By how much this rank's clock is ahead of the peer's at a time; None: nobody knows yet."""
        if self._is_own(words):
            return 0.0
        return self._pair_clock.offset_ns(now_ns) if self._pair_clock.known else None
