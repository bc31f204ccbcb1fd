"""What one directed link does, from the transit times of its messages: calm, suspected, or changed; pure, events in, estimates out.

A step's lower quartile is what is tested: messages that queue behind others count for little. As soon as there is doubt it asks
for pings of the link, which its sender sends between two steps. Their fastest is evidence as a step's is: it is assumed that
it is no likelier to be far away. An alarm of the test alone changes nothing: only where the last pings show at least half of
the change is it believed. A link that calms down again is found in the same way. Where the other direction has changed for
certain, a ping and the last steps are enough (`look`, `follow`).
"""

from __future__ import annotations

from collections import deque
from statistics import median, median_low
from typing import TYPE_CHECKING, NamedTuple

from schedc.runtime.adapt.monitoring.change import ChangeTest, Rate

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


LEAST_NS = 200_000
"""Smaller changes of a link do not count: waking up takes about as long."""
UNANSWERED = 16
"""After this many steps without an answer, a ping is asked for once more, and the alarm forgotten."""
CALM_EVERY, FIRST_CALM_EVERY, CALM_PINGS = 128, 8, 5
"""After this many calm steps the link is pinged, so that it is known what pings take: sooner until this many are known."""
RECENT = 3
"""From this many last steps a new level is estimated."""
PLAIN = 3
"""A change that takes no more values is plain."""
POOLED = 512
"""How many values of the usual level say how much another one varies."""
MIDDLES, AGAIN = 64, 16
"""Of this many last steps at most the estimate is the median; how often it is made again, sooner at first."""


class Ping(NamedTuple):
    """What pings found."""

    transit_ns: float
    """Of one alone."""
    gap_ns: float
    """Between two that were sent one right behind the other: for how long each occupies the link."""
    fastest_ns: float
    """The least transit time."""


class LinkWatch:
    """One directed link."""

    def __init__(self, rate: Rate) -> None:
        """Know nothing yet."""
        self._rate = rate
        self._test = ChangeTest(rate, least=LEAST_NS)
        self._usual: ChangeTest | None = None
        """What was learned before the first change."""
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._middles: deque[float] = deque(maxlen=MIDDLES)
        """The medians of this level's last steps."""
        self._usual_middle_ns = 0.0
        self.excess_ns = 0
        """By how much a message takes longer than at first, to three digits; 0: nothing has certainly changed."""
        self._steps = 0
        self._alarm = 0
        self._since_ping = CALM_EVERY
        self._asked = 0
        self._pings: deque[Ping] = deque(maxlen=CALM_PINGS)
        """The last of this level."""
        self._usual_pings = self._pings
        self.wants_ping = False
        """Whether a ping is to be asked for; its answer goes to `pinged`."""
        self._looking = False
        """Whether the next pings are asked for as the other direction may have changed."""
        self._seen: Ping | None = None
        """These."""
        self._fresh: Ping | None = None
        """The last that came while there was doubt."""
        self.sure = False
        """Whether the last change was so plain that the alarm came within `PLAIN` values: there is no need to wait for more."""
        self._doubted = 0
        """How many values have come since there is doubt; and how many of them are steps'."""
        self._doubted_steps = 0
        self.alarms = self.confirmed = self.rejected = self.unanswered = 0
        """How many there have been."""
        self.followed = 0
        """How often a change has been believed as the other direction had changed."""

    @property
    def known(self) -> bool:
        """Whether anything has been learned yet."""
        return self._test.level == self._test.level

    @property
    def occupancy_excess_ns(self) -> int:
        """What of it is more time on the link for each message, so that the link carries fewer of them."""
        if self._usual is None or not self._usual_pings or not self._pings:
            return 0
        now, before = _middle(self._pings), _middle(self._usual_pings)
        more_ns = now.gap_ns - before.gap_ns
        shift_ns = abs(now.transit_ns - before.transit_ns)
        return round(more_ns) if abs(more_ns) > max(LEAST_NS, shift_ns / 4) else 0

    def step(self, transits_ns: Sequence[float]) -> None:
        """Take the transit times of one step's messages, in nanoseconds; a step without any says nothing."""
        if not transits_ns:
            return
        value = sorted(transits_ns)[(len(transits_ns) - 1) // 4]
        self._recent.append(value)
        self._middles.append(median(transits_ns))
        self._doubted_steps += 1
        if self._alarm and self._fresh is not None:  # by pings; a step has to show it, too
            if self._test.beyond(value) == self._alarm:
                self._confirm(self._fresh)
            else:
                self._reject()
            return
        if self._alarm:
            self._asked += 1
            if self._asked > UNANSWERED:
                self.unanswered += 1
                self._forget()
                self._since_ping = 0
            return
        if self._weighed(self._test.add(value)):
            return
        self._steps += 1
        again = self._steps in (2, 4, 8) or self._steps % AGAIN == 0
        if self._usual is not None and again and not self._test.suspicious:
            self._estimate()
        self._since_ping += 1
        if (
            self.known
            and self._since_ping >= (CALM_EVERY if len(self._pings) == CALM_PINGS else FIRST_CALM_EVERY)
            and not self._test.suspicious
        ):
            self._since_ping = 0
            self.wants_ping = True

    def pinged(self, transits_ns: Sequence[float]) -> None:
        """Take the transit times of the pings that were asked for, sent one right behind the other."""
        gap_ns = max(0.0, (transits_ns[-1] - transits_ns[0]) / (len(transits_ns) - 1))
        found = Ping(median(transit_ns - at * gap_ns for at, transit_ns in enumerate(transits_ns)), gap_ns, min(transits_ns))
        self.wants_ping = False
        if self._looking:
            self._looking, self._seen = False, found
        if self._alarm:
            self._confirm(found)
            return
        more_ns = self._more_ns(found)
        if self._test.suspicious or self._test.far(self._test.level + more_ns):
            self._fresh = found
            if len(self._pings) == CALM_PINGS:
                self._weighed(self._test.weigh(self._test.level + more_ns))
        elif self._seen is not found:
            self._pings.append(found)

    def _more_ns(self, found: Ping) -> float:
        """By how much the fastest took longer than that of pings of this level usually does, or less than any did; 0: it did not.

        Noise adds, so the middle of a few pings may be much too high, but hardly too low.
        """
        if len(self._pings) < CALM_PINGS:
            return 0.0
        known_ns = [ping.fastest_ns for ping in self._pings]
        return max(0.0, found.fastest_ns - median(known_ns)) + min(0.0, found.fastest_ns - min(known_ns))

    def doubts(self, least_ns: float) -> bool:
        """In the middle of a step: whether the fastest of the messages that have come so far is farther away than all before."""
        return not self._alarm and self._test.far(least_ns)

    def doubt(self, transits_ns: Sequence[float]) -> None:
        """In the middle of a step: ask for pings at its end if these messages leave doubt."""
        self.wants_ping = self.wants_ping or (len(transits_ns) > 1 and self.doubts(min(transits_ns)))

    def _weighed(self, alarm: int) -> bool:
        """Act on what the test says of a value; whether there is an alarm."""
        self._doubted += 1
        if not (alarm or self._test.doubtful):
            self._doubted = self._doubted_steps = 0
        if alarm:
            self._alarm = alarm
            self.alarms += 1
            self._asked = 0
            if self._fresh is None:
                self.wants_ping = True
            elif self._test.beyond(self._recent[-1]) == alarm:
                self._confirm(self._fresh)
            return True
        if self._test.doubtful:
            self.wants_ping = True
        elif not self._test.suspicious:
            self._fresh = None
        return False

    def _confirm(self, found: Ping) -> None:
        """Believe the alarm if pings show it."""
        self._fresh = None
        self.sure = self._doubted <= PLAIN
        steps, self._doubted, self._doubted_steps = self._doubted_steps, 0, 0
        level_ns = self._level_ns(steps, found)
        if self._shows(found, self._alarm, level_ns):
            self.confirmed += 1
            self._move(level_ns, found, steps)
        else:
            self._reject()

    def _reject(self) -> None:
        """The alarm was false."""
        self.rejected += 1
        self._forget()
        if self._usual is not None:
            self._estimate()

    def _level_ns(self, steps: int, found: Ping) -> float:
        """The new level by `steps` steps and by pings: the usual one if either says so; else of two the lower."""
        last = list(self._recent)[-min(RECENT, steps) :] if steps else []
        if not self._usual_pings:
            return median_low(last)
        by_ping_ns = self._by_ping_ns(found)
        for value in (median_low(last or [by_ping_ns]), by_ping_ns):
            if self._usual is not None and not self._usual.beyond(value):
                return value
        return median_low([*last, by_ping_ns])

    def _by_ping_ns(self, found: Ping) -> float:
        """The level that pings show, by those of the usual one."""
        return (self._usual or self._test).level + found.transit_ns - _middle(self._usual_pings).transit_ns

    def look(self) -> None:
        """The other direction may have changed: ask for pings, to be ready for `follow`."""
        self._looking, self._seen = True, None
        self.wants_ping = True

    def follow(self) -> bool | None:
        """The other direction has changed: whether this one has, too, by its pings and its last steps.

        As much counts as where the test has given an alarm: the median of the last steps is beyond what is usual, and pings show at
        least half of that.

        Returns:
            None: nobody knows yet; ask again after the next step.
        """
        if self._alarm:
            return None  # its own pings are under way
        if self._seen is None:
            if not self._looking:
                self.look()
            return None
        found, self._seen = self._seen, None
        level_ns = median(self._recent) if self.known else 0.0
        way = self._test.beyond(level_ns)
        if not way or not self._shows(found, way, level_ns):
            return False
        self.followed += 1
        self._test.changed()
        self._move(level_ns, found, RECENT)
        return True

    def _shows(self, found: Ping, way: int, level_ns: float) -> bool:
        """Whether pings show at least half of a change to this level; or that the usual one, which this is, is back."""
        usual = self._usual
        if usual is not None and self._usual_pings and not usual.beyond(level_ns) and not usual.beyond(self._by_ping_ns(found)):
            return True
        before_ns = _middle(self._pings).transit_ns if self._pings else self._test.level
        return way * (found.transit_ns - before_ns) >= way * (level_ns - self._test.level) / 2

    def _move(self, level_ns: float, ping: Ping, steps: int) -> None:
        """The link has changed: its level is another, or the usual one; the last `steps` steps are of this level."""
        self._alarm = 0
        if self._usual is None:
            self._usual, self._usual_pings = self._test, self._pings
            before = list(self._middles)[: -2 * RECENT] or list(self._middles)
            self._usual_middle_ns = median(before)
        if not steps:
            self._middles.append(self._middles[-1] + level_ns - self._test.level)
        while len(self._middles) > max(1, min(RECENT, steps)):
            self._middles.popleft()
        self._steps = 0
        usual = self._usual
        if abs(level_ns - usual.level) <= max(LEAST_NS, 0.1 * usual.level) or not usual.beyond(level_ns):
            self._go_back(usual)
            return
        # how much it varies is known of the usual level only: as much, at first
        pool = [level_ns + value - usual.level for value in usual.pool[-POOLED:]]
        self._test = ChangeTest(self._rate, least=LEAST_NS, pool=pool)
        shift_ns = ping.transit_ns - _middle(self._usual_pings or (ping,)).transit_ns
        self._pings = deque(
            (Ping(one.transit_ns + shift_ns, ping.gap_ns, one.fastest_ns + shift_ns) for one in self._usual_pings or (ping,)),
            maxlen=CALM_PINGS,
        )
        self._estimate()

    def _go_back(self, usual: ChangeTest) -> None:
        """The level is the usual one."""
        self._test, self._pings, self._usual = usual, self._usual_pings, None
        self.excess_ns = 0

    def _estimate(self) -> None:
        """By how much messages take longer. The middle of a step, not its fast ones: a plan is best for what is usual."""
        excess_ns = median(self._middles) - self._usual_middle_ns
        if abs(excess_ns - self.excess_ns) > max(LEAST_NS / 4, abs(self.excess_ns) / 20):
            self.excess_ns = int(round(excess_ns, 3 - len(str(round(abs(excess_ns))))))  # or each step would give other conditions
        if self._usual is not None and abs(self.excess_ns) <= max(LEAST_NS, 0.1 * self._usual.level):
            self._go_back(self._usual)  # what it was taken for at first came of few values

    def _forget(self) -> None:
        self._alarm = 0
        self.wants_ping = False
        self._fresh = None
        self._test.forgive()


def _middle(pings: Collection[Ping]) -> Ping:
    """Their medians."""
    return Ping(*map(median, zip(*pings, strict=True)))
