"""A link's two directions together: where one has changed, the other is looked at too, and both are reported with the same step.

Each rank watches the direction to it. At an alarm the peer asks for a ping of its own direction, too; once the alarm is confirmed,
that ping and the last steps decide about the peer's direction. Whoever has found a change says so, and reports it when the peer
answers that it has looked; the peer reports what it has found one step after its answer. So nobody re-plans for half a change.
A change that is plain (`LinkWatch.sure`) waits for nobody: it is as plain in the other direction, or has not happened there.
Pure: what the ranks say to each other goes in and out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from schedc.runtime.adapt.monitoring.link_state import LinkWatch

LOOKS = 6
"""After this many steps without a ping of the other direction, it counts as unchanged."""
HOLDS = LOOKS + 4
"""After this many steps without an answer, a change is reported alone."""


class News(NamedTuple):
    """What one rank says to the other of the direction to it. Numbers count from the start."""

    alarms: int = 0
    confirmed: int = 0
    """The alarms that pings have confirmed."""
    looked: int = 0
    """The peer's confirmed alarms for which it has looked at its own direction."""


class LinkPair:
    """One rank's side of a link."""

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
